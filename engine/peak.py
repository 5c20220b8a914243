"""How fast this device can multiply matrices at best: what the speed of training is held against (MFU).

Model FLOPs utilization (PaLM, arXiv:2204.02311, appendix B) is the share of that peak which the model's operations make
up, those of `model.flops_per_token`; nothing else that a step does counts.
"""

import re
import time
from functools import partial

import torch

from engine import products
from engine.runtime import Runtime

TERA = 1e12
MEASURING_SECONDS = 0.12  # longer products come nearer to the peak; this is within a tenth of it
DIMENSIONS = (256, 512, 1024, 2048, 4096)  # of the square matrices
REPETITIONS = 4  # of each product; the fastest one counts, since what else the machine does only slows one down

# 10^12 operations per second: in fp16, and in bf16 where the card has it, on the tensor cores, dense and added up in
# fp32 as torch does; and in fp32 outside of them (torch does not use TF32 unless told to). From NVIDIA's data sheets,
# and for RTX cards from the tables in its papers on the architectures (GA102, Ada, Blackwell). Half of a figure that is
# given with sparsity only.
# A card that is not here, as those of laptops, is measured.
NVIDIA_TERAFLOPS = {
    "V100 SXM2": (125, 15.7),
    "V100 SXM3": (125, 15.7),
    "V100 PCIE": (112, 14),
    "V100S PCIE": (130, 16.4),
    "T4": (65, 8.1),
    "A10": (125, 31.2),
    "A30": (165, 10.3),
    "A40": (149.7, 37.4),
    "A100 SXM4": (312, 19.5),
    "A100 PCIE": (312, 19.5),
    "L4": (121, 30.3),
    "L40": (181, 90.5),
    "L40S": (362, 91.6),
    "H100": (989, 67),
    "H100 PCIE": (756, 51),
    "H100 NVL": (835, 60),
    "GH200": (989, 67),
    "H200": (989, 67),
    "H200 NVL": (835, 60),
    "B200": (2250, 75),
    "RTX A4000": (76.7, 19.2),
    "RTX A5000": (111.1, 27.8),
    "RTX A6000": (154.8, 38.7),
    "RTX 6000 ADA GENERATION": (364.2, 91.1),
    "RTX 3060": (25.5, 12.7),
    "RTX 3060 TI": (32.4, 16.2),
    "RTX 3070": (40.6, 20.3),
    "RTX 3070 TI": (43.5, 21.7),
    "RTX 3080": (59.5, 29.8),
    "RTX 3080 TI": (68.2, 34.1),
    "RTX 3090": (71, 35.6),
    "RTX 3090 TI": (80, 40),
    "RTX 4060": (30.2, 15.1),
    "RTX 4060 TI": (44.1, 22.1),
    "RTX 4070": (58.3, 29.1),
    "RTX 4070 SUPER": (71, 35.5),
    "RTX 4070 TI": (80.2, 40.1),
    "RTX 4070 TI SUPER": (88.2, 44.1),
    "RTX 4080": (97.5, 48.7),
    "RTX 4080 SUPER": (104.4, 52.2),
    "RTX 4090": (165.2, 82.6),
    "RTX 5070": (61.7, 30.9),
    "RTX 5070 TI": (87.9, 43.9),
    "RTX 5080": (112.6, 56.3),
    "RTX 5090": (209.5, 104.8),
}


def peak_flops(runtime: Runtime) -> float:
    """Floating-point operations per second that matrix products reach at best, in this run's precision and threads.

    A known NVIDIA GPU has the figure of its data sheet; anything else is measured now, which takes about 0.1 s.
    """
    published = None
    if runtime.device.type == "cuda":
        published = published_flops(torch.cuda.get_device_name(runtime.device), runtime.precision)
    return published or measured_flops(runtime)


def published_flops(device_name: str, precision: str) -> float | None:
    """What NVIDIA says of the GPU that the driver calls so, in operations per second; None where it is not known."""
    # NVIDIA A100-SXM4-80GB, NVIDIA GH200 144G HBM3e, Tesla V100-PCIE-16GB, NVIDIA GeForce RTX 3060: what is left is the
    # model in the table. A part of a card ("MIG 1g.10gb") or a slower variant ("Laptop GPU") keeps its words.
    words = re.split(r"[ -]", device_name)
    telling = [w for w in words if not re.fullmatch(r"NVIDIA|Tesla|GeForce|Quadro|\d+GB?|HBM3e?", w)]
    model = " ".join(telling).upper()
    if model not in NVIDIA_TERAFLOPS:
        return None
    half, single = NVIDIA_TERAFLOPS[model]
    return TERA * (single if precision == "fp32" else half)


def measured_flops(runtime: Runtime) -> float:
    """The most operations per second of a few products of square matrices, larger and larger while there is time.

    No random numbers: the generators of training stay as they are.
    """
    best, deadline = 0.0, time.perf_counter() + MEASURING_SECONDS
    for dimension in DIMENSIONS:
        seconds = fastest_product(runtime, dimension)
        best = max(best, 2 * dimension**3 / seconds)
        if time.perf_counter() + 8 * (REPETITIONS + 1) * seconds > deadline:
            break
    return best


def fastest_product(runtime: Runtime, dimension: int) -> float:
    """Seconds of the fastest of a few products of matrices with so many rows and columns."""
    numbers = torch.linspace(-1, 1, dimension * dimension, device=runtime.device)
    matrix = numbers.view(dimension, dimension).to(runtime.dtype)
    multiply = products.multiply if products.pay(runtime) else partial(torch.mm, out=torch.empty_like(matrix))
    fastest = float("inf")
    for _ in range(REPETITIONS + 1):  # the first one sets up what the others use
        runtime.synchronize()
        start = time.perf_counter()
        multiply(matrix, matrix)
        runtime.synchronize()
        fastest = min(fastest, max(time.perf_counter() - start, 1e-9))
    return fastest


def describe_flops(flops: float) -> str:
    """Operations per second as people read them: 620 GFLOP/s, 989 TFLOP/s."""
    giga = flops / 1e9
    if giga < 10:
        return f"{giga:.1f} GFLOP/s"
    return f"{giga:.0f} GFLOP/s" if giga < 9999.5 else f"{flops / TERA:.0f} TFLOP/s"

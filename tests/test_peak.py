"""What a device can do at best: by name from the data sheets, or measured; and the share of it that a run uses."""

import math
import re
import time
from pathlib import Path

import pytest
import torch
from commands import ENGLISH, TINY, metrics, succeed

from config.schema import RuntimeConfig
from engine.peak import NVIDIA_TERAFLOPS, describe_flops, measured_flops, peak_flops, published_flops
from engine.runtime import Runtime, choose_runtime, generator_states
from model import ModelConfig, flops_per_token


@pytest.mark.parametrize(
    ("name", "bf16", "fp32"),
    [
        ("Tesla V100-SXM2-16GB", 125, 15.7),
        ("Tesla V100-PCIE-32GB", 112, 14),
        ("Tesla T4", 65, 8.1),
        ("NVIDIA A10", 125, 31.2),
        ("NVIDIA A100-SXM4-40GB", 312, 19.5),
        ("NVIDIA A100-SXM4-80GB", 312, 19.5),
        ("NVIDIA A100-PCIE-40GB", 312, 19.5),
        ("NVIDIA A100 80GB PCIe", 312, 19.5),
        ("NVIDIA L4", 121, 30.3),
        ("NVIDIA L40", 181, 90.5),
        ("NVIDIA L40S", 362, 91.6),
        ("NVIDIA H100 80GB HBM3", 989, 67),
        ("NVIDIA H100 PCIe", 756, 51),
        ("NVIDIA H100 NVL", 835, 60),
        ("NVIDIA GH200 480GB", 989, 67),
        ("NVIDIA GH200 144G HBM3e", 989, 67),
        ("NVIDIA H200", 989, 67),
        ("NVIDIA H200 NVL", 835, 60),
        ("NVIDIA B200", 2250, 75),
        ("NVIDIA RTX A6000", 154.8, 38.7),
        ("NVIDIA RTX 6000 Ada Generation", 364.2, 91.1),
        ("NVIDIA GeForce RTX 3060", 25.5, 12.7),
        ("GeForce RTX 3090", 71, 35.6),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", 88.2, 44.1),
        ("NVIDIA GeForce RTX 4090", 165.2, 82.6),
        ("NVIDIA GeForce RTX 5090", 209.5, 104.8),
    ],
)
def test_a_gpu_is_known_by_the_name_that_its_driver_gives(name: str, bf16: float, fp32: float) -> None:
    assert published_flops(name, "bf16") == published_flops(name, "fp16") == pytest.approx(bf16 * 1e12)
    assert published_flops(name, "fp32") == pytest.approx(fp32 * 1e12)


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA A10G",
        "NVIDIA GeForce RTX 3080 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4060 Max-Q",
        "NVIDIA GeForce GTX 1080",
        "NVIDIA RTX 6000",
        "AMD Instinct MI300X",
        "NVIDIA",
        "",
    ],
)
def test_what_is_only_similar_is_not_known(name: str) -> None:
    assert published_flops(name, "fp16") is None


def test_half_precision_is_about_twice_as_fast_or_more_on_every_card() -> None:
    assert all(half > 1.9 * single > 0 for half, single in NVIDIA_TERAFLOPS.values())


def test_a_known_gpu_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "NVIDIA L4")
    runtime = Runtime(torch.device("cuda", 0), "bf16", compile=True, threads=1, reason="")
    assert peak_flops(runtime) == 121e12


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_processor_is_measured_soon_and_draws_no_random_numbers(precision: str) -> None:
    runtime = choose_runtime(RuntimeConfig(device="cpu", precision=precision), 1_000_000)
    before, start = generator_states(runtime.device), time.perf_counter()
    measured = peak_flops(runtime)
    assert time.perf_counter() - start < 3  # 0.1 s where nothing else runs
    assert math.isfinite(measured)
    assert measured > 1e7
    assert torch.equal(generator_states(runtime.device)["cpu"], before["cpu"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_gpu_reaches_about_what_its_data_sheet_says() -> None:
    runtime = choose_runtime(RuntimeConfig(device="cuda"), 1_000_000)
    published = published_flops(torch.cuda.get_device_name(), runtime.precision)
    if published is None:
        pytest.skip("this GPU is not in the table")
    # GeForce cards clock higher than their data sheets assume, where they stay cool.
    assert 0.3 < measured_flops(runtime) / published < 1.25


def test_speeds_are_readable() -> None:
    assert [describe_flops(flops) for flops in (5.25e9, 620.4e9, 9.9e12, 9.9999e12, 989e12)] == [
        "5.2 GFLOP/s",
        "620 GFLOP/s",
        "9900 GFLOP/s",
        "10 TFLOP/s",
        "989 TFLOP/s",
    ]


def test_a_run_says_the_peak_and_reports_its_share(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(ENGLISH, encoding="utf-8")
    settings = (*TINY, "data.source=text.txt", "data.cache_dir=cache", "train.max_steps=4", "train.log_interval=1")
    shown = succeed(tmp_path, "train.py", "name=a", *settings).err
    found = re.search(r"^peak     (\d+)(\.\d)? ([GT])FLOP/s, of which MFU is a share$", shown, re.MULTILINE)
    assert found is not None, shown
    whole, tenths, unit = found[1], found[2] or "", {"G": 1e9, "T": 1e12}[found[3]]
    printed, half_a_digit = float(whole + tenths), 0.05 if tenths else 0.5
    assert re.search(r"^step 1/4 .* tokens/s  MFU +\d+\.\d%  .* left$", shown, re.MULTILINE), shown
    vocab_size = int(re.findall(r"vocabulary of (\d+)", shown)[0])
    model = ModelConfig(d_model=16, num_heads=2, num_layers=2, context_length=8)
    for line in metrics(tmp_path / "runs" / "a"):
        used = line["perf/tokens_per_second"] * flops_per_token(model, vocab_size)
        assert line["perf/mfu"] == pytest.approx(used / (printed * unit), rel=1.1 * half_a_digit / printed)

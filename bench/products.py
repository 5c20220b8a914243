"""Linear layers through MKL and through oneDNN: each product of training, and a step of a whole model, in fp32.

The rule that follows from it is in engine/products.py. Run: python bench/products.py
"""

import argparse
from collections.abc import Callable

from common import alternate, machine, model_config, print_table

import torch  # isort: skip
import torch.nn.functional as F  # isort: skip
from torch import Tensor, nn  # isort: skip
from engine.products import FROM_MULTIPLICATIONS, FastLinear, multiply, pay, weight_gradient  # isort: skip
from engine.runtime import Runtime  # isort: skip
from model import GPT, next_token_loss  # isort: skip

VOCAB_SIZE = 65
SHAPES = [  # rows, in, out
    (1, 128, 512),
    (16, 128, 512),
    (64, 128, 512),
    (256, 128, 128),
    (768, 128, 65),
    (768, 128, 128),
    (768, 128, 384),
    (768, 128, 512),
    (768, 512, 128),
    (2048, 384, 1536),
    (2048, 1536, 384),
]
MODELS = [(64, 128, 4, 4, 12), (256, 384, 6, 6, 8)]  # context_length, d_model, num_heads, num_layers, batch_size


def speeds(rows: int, inputs: int, outputs: int) -> list[str]:
    """GFLOP/s, MKL → oneDNN, of the three products that a layer takes."""
    x, weight, gradient = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(rows, outputs)
    pairs: list[tuple[Callable[[], Tensor], Callable[[], Tensor]]] = [
        (lambda: F.linear(x, weight), lambda: multiply(x, weight)),
        (lambda: gradient @ weight, lambda: multiply(gradient, weight.t())),
        # As a gradient it is kept in the order of the weight.
        (lambda: gradient.t() @ x, lambda: weight_gradient(gradient, x).contiguous()),
    ]
    cells = []
    for mkl, onednn in pairs:
        times = alternate({"mkl": mkl, "onednn": onednn}, rounds=100 if rows < 2000 else 15)
        cells.append(" → ".join(f"{2e-9 * rows * inputs * outputs / seconds:.0f}" for seconds in times.values()))
    return cells


def pass_of(model: GPT, idx: Tensor) -> Callable[[], None]:
    """One forward and backward pass."""

    def run() -> None:
        next_token_loss(model(idx), idx).backward()
        model.zero_grad()

    return run


def main() -> None:
    """Print the tables."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    pays = pay(Runtime(torch.device("cpu"), "fp32", compile=False, threads=0, reason="measured"))
    print(f"{machine()}; the trainer takes {'oneDNN' if pays else 'MKL'} here\n")
    rows = [
        [f"{M} × {K} → {N}", "oneDNN" if M * K * N >= FROM_MULTIPLICATIONS else "MKL", *speeds(M, K, N)]
        for M, K, N in SHAPES
    ]
    print_table(["rows × in → out", "large enough for", "output", "gradient of x", "gradient of W"], rows)
    print()
    rows = []
    for architecture in ("gpt2", "qwen3"):
        for size in MODELS:
            config = model_config(architecture, size)
            context_length, d_model, _, num_layers, batch_size = size
            plain, fast = GPT(config, VOCAB_SIZE), GPT(config, VOCAB_SIZE)
            for module in fast.modules():
                if type(module) is nn.Linear:
                    module.__class__ = FastLinear
            idx = torch.randint(VOCAB_SIZE, (batch_size, context_length))
            runs = {"mkl": pass_of(plain, idx), "onednn": pass_of(fast, idx)}
            mkl, onednn = alternate(runs, rounds=7 if d_model > 128 else 60).values()
            shape = f"{num_layers} layers, d {d_model}, {batch_size}×{context_length}"
            rows.append([architecture, shape, f"{mkl * 1e3:.1f}", f"{onednn * 1e3:.1f}", f"{mkl / onednn:.2f}"])
    print_table(["architecture", "forward and backward of", "MKL, ms", "oneDNN, ms", "MKL ÷ oneDNN"], rows)


if __name__ == "__main__":
    main()

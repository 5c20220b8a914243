"""What an update by Muon costs: torch's own, one matrix after the other, against ours.

Ours makes equal shapes orthogonal as one batch, queries, keys and values apart, in four steps with coefficients of
their own; "torch's steps" are its five with one triple. Run: python bench/muon.py
"""

import argparse
from collections.abc import Callable
from unittest import mock

from common import alternate, machine, print_table

import torch  # isort: skip
from config.schema import ModelConfig, RuntimeConfig  # isort: skip
from engine import muon  # isort: skip
from engine.muon import Muon  # isort: skip
from engine.runtime import choose_runtime  # isort: skip
from engine.optim import muon_groups, split_parameters  # isort: skip
from model import GPT  # isort: skip

VOCAB_SIZE = 65
TORCH_POLYNOMIALS = ((3.4445, -4.775, 2.0315),) * 5
SIZES = [(128, 4, 4), (160, 5, 4), (256, 4, 6), (384, 6, 6)]  # d_model, num_heads, num_layers


def contender(d_model: int, num_heads: int, num_layers: int, kind: str) -> Callable[[], object]:
    """One update of all matrices in the blocks of a model."""
    model = GPT(ModelConfig(d_model=d_model, num_heads=num_heads, num_layers=num_layers), VOCAB_SIZE)
    matrices, _, _ = split_parameters(model)
    for matrix in matrices:
        matrix.grad = torch.randn_like(matrix)
    if kind == "torch":
        return torch.optim.Muon(matrices, lr=0.01, weight_decay=0.1).step
    dtype = torch.float32 if kind == "ours, fp32" else torch.bfloat16
    ours = Muon(muon_groups(model), learning_rate=0.01, weight_decay=0.1, dtype=dtype)
    polynomials = TORCH_POLYNOMIALS if kind == "ours, torch's steps" else muon.POLYNOMIALS

    def update() -> None:
        with mock.patch.object(muon, "POLYNOMIALS", polynomials):
            ours.step()

    return update


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    choose_runtime(RuntimeConfig(device="cpu"), num_parameters=1)  # memory as in training
    print(machine() + "\n")
    kinds = ("torch", "ours, torch's steps", "ours", "ours, fp32")
    rows = []
    for size in SIZES:
        times = alternate({kind: contender(*size, kind) for kind in kinds}, rounds=15)
        milliseconds = [f"{1000 * seconds:.1f}" for seconds in times.values()]
        rows.append([f"{size[2]} layers, d {size[0]}", *milliseconds, f"{times['torch'] / times['ours']:.2f}"])
    print_table(["model", *(f"{kind}, ms" for kind in kinds), "torch ÷ ours"], rows)


if __name__ == "__main__":
    main()

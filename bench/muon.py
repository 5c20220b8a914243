"""What an update by Muon costs: torch's own, one matrix after the other, against ours, equal shapes as one batch.

Run: python bench/muon.py
"""

import argparse
from collections.abc import Callable

from common import alternate, machine, print_table

import torch  # isort: skip
from config.schema import ModelConfig  # isort: skip
from engine.muon import Muon  # isort: skip
from engine.optim import muon_groups, split_parameters  # isort: skip
from model import GPT  # isort: skip

VOCAB_SIZE = 65
SIZES = [(128, 4, 4), (160, 5, 4), (256, 4, 6), (384, 6, 6)]  # d_model, num_heads, num_layers


def contender(d_model: int, num_heads: int, num_layers: int, kind: str) -> Callable[[], object]:
    """One update of all matrices in the blocks of a model."""
    model = GPT(ModelConfig(d_model=d_model, num_heads=num_heads, num_layers=num_layers), VOCAB_SIZE)
    matrices, _, _ = split_parameters(model)
    for matrix in matrices:
        matrix.grad = torch.randn_like(matrix)
    if kind == "torch, bf16":
        return torch.optim.Muon(matrices, lr=0.01, weight_decay=0.1).step
    dtype = torch.bfloat16 if kind == "ours, bf16" else torch.float32
    return Muon(muon_groups(model), learning_rate=0.01, weight_decay=0.1, dtype=dtype).step


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(machine() + "\n")
    kinds = ("torch, bf16", "ours, bf16", "ours, fp32")
    rows = []
    for size in SIZES:
        times = alternate({kind: contender(*size, kind) for kind in kinds}, rounds=15)
        milliseconds = [f"{1000 * seconds:.1f}" for seconds in times.values()]
        ratio = f"{times['torch, bf16'] / times['ours, bf16']:.2f}"
        rows.append([f"{size[2]} layers, d {size[0]}", *milliseconds, ratio])
    print_table(["model", *(f"{kind}, ms" for kind in kinds), "torch ÷ ours, bf16"], rows)


if __name__ == "__main__":
    main()

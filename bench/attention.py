"""Which path of `model.attend` is faster where: written out or fused, forward and backward.

The rule that follows from it is `model.prefers_fused`. Run: python bench/attention.py
"""

import argparse
from collections.abc import Callable

from common import alternate, machine, print_table

import torch  # isort: skip
from model import WRITTEN_OUT_UP_TO, attend  # isort: skip

SHAPES = [  # B, nh, T, hs
    (12, 4, 64, 32),
    (24, 5, 64, 32),
    (16, 4, 128, 32),
    (16, 4, 256, 64),
    (8, 6, 256, 64),
    (8, 4, 384, 64),
    (8, 4, 512, 64),
    (4, 4, 1024, 64),
]


def contender(shape: tuple[int, int, int, int], dtype: torch.dtype, *, fused: bool) -> Callable[[], None]:
    """One forward and backward pass of attention, its tensors laid out as the model lays them out."""
    B, nh, T, hs = shape
    q, k, v = (torch.randn(B, T, nh, hs, dtype=dtype).transpose(1, 2).requires_grad_() for _ in range(3))
    gradient = torch.randn(B, nh, T, hs, dtype=dtype)
    return lambda: attend(q, k, v, fused=fused).backward(gradient)


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(f"{machine()}; in bf16 the model writes attention out up to {WRITTEN_OUT_UP_TO} positions\n")
    rows = []
    for shape in SHAPES:
        row: list[object] = ["×".join(map(str, shape))]
        for dtype in (torch.float32, torch.bfloat16):
            paths = {"written out": False, "fused": True}
            times = alternate({name: contender(shape, dtype, fused=fused) for name, fused in paths.items()}, rounds=15)
            ratio = times["fused"] / times["written out"]
            row += [*(f"{1000 * seconds:.2f}" for seconds in times.values()), f"{ratio:.2f}"]
        rows.append(row)
    names = [
        f"{precision} {path}" for precision in ("fp32", "bf16") for path in ("written out, ms", "fused, ms", "ratio")
    ]
    print_table(["B×nh×T×hs", *names], rows)


if __name__ == "__main__":
    main()

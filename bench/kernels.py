"""Why the parts of the model are written as they are: each beside its usual form, forward and backward, on a CPU.

Run: python bench/kernels.py
"""

import argparse
from collections.abc import Callable

from common import alternate, machine, print_table

import torch  # isort: skip
from torch import Tensor, nn  # isort: skip
from torch.nn import functional as F  # isort: skip
from config.schema import ModelConfig, RuntimeConfig  # isort: skip
from engine.runtime import choose_runtime  # isort: skip
from model import Dropout, GatedFeedForward, RMSNorm, rotary_tables, rotate  # isort: skip

SHAPES = [(24, 64, 5, 32), (16, 256, 4, 64)]  # B, T, nh, hs: those of two recipes
ROUNDS = 31

Pass = Callable[[], object]


def both_ways(function: Callable[[Tensor], Tensor], x: Tensor, parameters: list[nn.Parameter]) -> Pass:
    """One forward and backward pass of a function."""
    x = x.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        grad = torch.randn_like(function(x))

    def run() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = function(x)
        torch.autograd.grad(y, (x, *parameters), grad)

    return run


def norms(B: int, T: int, nh: int, hs: int) -> dict[str, Pass]:
    """RMSNorm of the residual stream: PyTorch's, and ours with its gradient written out."""
    ours, x = RMSNorm(nh * hs, eps=1e-6), torch.randn(B, T, nh * hs)
    weight = ours.weight
    theirs = lambda x: F.rms_norm(x, (nh * hs,), weight, 1e-6)  # noqa: E731
    return {"usual": both_ways(theirs, x.clone(), [weight]), "ours": both_ways(ours, x, [weight])}


def rotations(B: int, T: int, nh: int, hs: int) -> dict[str, Pass]:
    """Rotary positions of queries that a product has left in bf16: in bf16 by halves, and in fp32 by a swap."""
    tables = rotary_tables(hs, T)
    cos, sin = tables[0].bfloat16(), tables[1].abs().bfloat16()

    def by_halves(x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-right, left), dim=-1) * sin

    x = torch.randn(B, T, nh, hs).bfloat16().transpose(1, 2)
    swapped = lambda x: rotate(x.float(), tables).bfloat16()  # noqa: E731
    return {"usual": both_ways(by_halves, x.clone(), []), "ours": both_ways(swapped, x, [])}


def feed_forwards(B: int, T: int, nh: int, hs: int) -> dict[str, Pass]:
    """SwiGLU: gate and up as one product whose result is split, and as two products."""
    d_model = nh * hs
    ours = GatedFeedForward(ModelConfig(d_model=d_model, num_heads=nh))
    joined = nn.Linear(d_model, 2 * ours.up.out_features, bias=False)

    def split(x: Tensor) -> Tensor:
        gate, up = joined(x).chunk(2, dim=-1)
        down: Tensor = ours.down(F.silu(gate) * up)
        return down

    x = torch.randn(B, T, d_model)
    return {
        "usual": both_ways(split, x.clone(), [joined.weight, ours.down.weight]),
        "ours": both_ways(ours, x, list(ours.parameters())),
    }


def dropouts(B: int, T: int, nh: int, hs: int) -> dict[str, Pass]:
    """A tenth of what a layer adds to the residual stream dropped: PyTorch's way, and ours, a random byte for each."""
    x = torch.randn(B, T, nh * hs).bfloat16()
    theirs, ours = nn.Dropout(0.1), Dropout(0.1)
    return {"usual": both_ways(theirs, x.clone(), []), "ours": both_ways(ours, x, [])}


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    choose_runtime(RuntimeConfig(device="cpu"), num_parameters=1)  # memory as in training
    print(machine() + "\n")
    parts = {"RMSNorm": norms, "rotation, with the casts": rotations, "SwiGLU": feed_forwards, "dropout": dropouts}
    rows = []
    for name, make in parts.items():
        for shape in SHAPES:
            times = alternate(make(*shape), ROUNDS)
            milliseconds = [f"{1000 * seconds:.2f}" for seconds in times.values()]
            rows.append([name, "×".join(map(str, shape)), *milliseconds, f"{times['usual'] / times['ours']:.2f}"])
    print_table(["part", "B×T×nh×hs", "usual, ms", "ours, ms", "usual ÷ ours"], rows)


if __name__ == "__main__":
    main()

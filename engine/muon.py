"""Muon: momentum whose direction is made orthogonal before it is applied, for the matrices inside the blocks.

Keller Jordan et al., "Muon: An optimizer for hidden layers in neural networks", kellerjordan.github.io/posts/muon.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
EPSILON = 1e-7
# Coefficients a, b, c of the odd polynomials a·x + b·x³ + c·x⁵ that are applied one after the other to all singular
# values. Each is the one that brings the interval where the one before has left them nearest to 1: algorithm 1 of "The
# Polar Express" (arXiv:2505.16932) for 4 steps from the interval [0.003, 1], with the paper's cushion of 0.02, and a
# margin of 2 % so that rounding in bf16 never leaves the interval. The source's five steps end less near to 1.
POLYNOMIALS = (
    (8.089256959190564, -22.297789245260542, 15.747758400660437),
    (3.940457955811323, -2.783920480072094, 0.5039305827759749),
    (3.4500246266336143, -2.4844233681389873, 0.4771720292298273),
    (2.5060695816638097, -1.8478249605898898, 0.4383240685649472),
)
MARGIN = 1.02


class Muon(torch.optim.Optimizer):
    """Like `torch.optim.Muon`, but all matrices of one shape are made orthogonal as one batch, in a chosen `dtype`.

    torch's own always computes in bf16, which is many times slower than fp32 on processors that lack it. A parameter
    of a group with `parts` is as many matrices, one above the other, such as the maps to queries, keys and values.
    """

    def __init__(
        self,
        groups: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        *,
        learning_rate: float,
        weight_decay: float,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(groups, {"lr": learning_rate, "weight_decay": weight_decay, "parts": 1})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        alike: dict[torch.Size, list[tuple[Tensor, Tensor, float]]] = {}
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not parameters:
                continue
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            for parameter, momentum in zip(parameters, self.momenta(parameters), strict=True):
                parts = group["parts"]
                for matrix, change in zip(parameter.chunk(parts), momentum.chunk(parts), strict=True):
                    alike.setdefault(matrix.shape, []).append((matrix, change, group["lr"]))
        for shape, updates in alike.items():
            matrices, changes, rates = zip(*updates, strict=True)
            directions = orthogonal(torch.stack(changes), self.dtype)
            # A tall matrix is scaled up so that each of its outputs moves as much as that of a square one.
            scale = math.sqrt(max(1.0, shape[0] / shape[1]))
            for matrix, direction, rate in zip(matrices, directions, rates, strict=True):
                matrix.add_(direction, alpha=-rate * scale)

    def momenta(self, parameters: list[nn.Parameter]) -> list[Tensor]:
        """Take the gradients into their running means; the means as they will be after another such step (Nesterov)."""
        for parameter in parameters:
            if "momentum_buffer" not in self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        buffers = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
        gradients = [cast(Tensor, parameter.grad) for parameter in parameters]
        torch._foreach_lerp_(buffers, gradients, 1 - MOMENTUM)
        return list(torch._foreach_lerp(gradients, buffers, MOMENTUM))


def orthogonal(matrices: Tensor, dtype: torch.dtype) -> Tensor:
    """About the nearest orthogonal matrix to each of a batch, (N, rows, columns) → the same, in `dtype`.

    Polynomials of odd powers, computed by matrix products alone, drive all singular values towards one: those above
    0.003 of the matrix's norm to between 0.75 and 1.25, which serves as well as exactly one.
    """
    x = matrices.to(dtype)
    is_tall = x.shape[-2] > x.shape[-1]
    if is_tall:
        x = x.mT
    x = x / (MARGIN * x.norm(dim=(-2, -1), keepdim=True)).clamp(min=EPSILON)  # no singular value is above 1
    for a, b, c in POLYNOMIALS:
        gram = x @ x.mT  # (N, rows, rows)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x

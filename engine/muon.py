"""Muon: momentum whose direction is made orthogonal before it is applied, for the matrices inside the blocks.

Keller Jordan et al., "Muon: An optimizer for hidden layers in neural networks", kellerjordan.github.io/posts/muon.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
STEPS = 5
COEFFICIENTS = (3.4445, -4.775, 2.0315)  # of the source's iteration
EPSILON = 1e-7


class Muon(torch.optim.Optimizer):
    """Like `torch.optim.Muon`, but all matrices of one shape are made orthogonal as one batch, in a chosen `dtype`.

    torch's own always computes in bf16, which is many times slower than fp32 on processors that lack it.
    """

    def __init__(
        self, matrices: Iterable[nn.Parameter], *, learning_rate: float, weight_decay: float, dtype: torch.dtype
    ) -> None:
        super().__init__(matrices, {"lr": learning_rate, "weight_decay": weight_decay})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            alike: dict[torch.Size, list[Tensor]] = {}
            for matrix in group["params"]:
                if matrix.grad is not None:
                    alike.setdefault(matrix.shape, []).append(matrix)
            for shape, matrices in alike.items():
                directions = orthogonal(torch.stack([self.momentum(matrix) for matrix in matrices]), self.dtype)
                # A tall matrix is scaled up so that each of its outputs moves as much as that of a square one.
                rate = group["lr"] * math.sqrt(max(1.0, shape[0] / shape[1]))
                for matrix, direction in zip(matrices, directions, strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"]).add_(direction, alpha=-rate)

    def momentum(self, matrix: Tensor) -> Tensor:
        """Take the gradient into the running mean; the mean as it will be after another such step (Nesterov)."""
        assert matrix.grad is not None
        state = self.state[matrix]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        buffer = state["momentum_buffer"].lerp_(matrix.grad, 1 - MOMENTUM)
        return matrix.grad.lerp(buffer, MOMENTUM)


def orthogonal(matrices: Tensor, dtype: torch.dtype) -> Tensor:
    """About the nearest orthogonal matrix to each of a batch, (N, rows, columns) → the same, in `dtype`.

    A Newton-Schulz iteration drives all singular values towards one, to between 0.7 and 1.2 in five steps, which
    serves as well as exactly one.
    """
    a, b, c = COEFFICIENTS
    x = matrices.to(dtype)
    is_tall = x.shape[-2] > x.shape[-1]
    if is_tall:
        x = x.mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=EPSILON)
    for _ in range(STEPS):
        gram = x @ x.mT  # (N, rows, rows)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x

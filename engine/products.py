"""The matrix products of linear layers through oneDNN, on the processors where it is much faster than MKL.

PyTorch multiplies fp32 matrices on a CPU with Intel's MKL, which keeps to AVX2 on the processors of other makers. AMD's
since Zen 5 multiply twice as fast in AVX-512, which oneDNN, another part of PyTorch, makes use of. The model knows
nothing of this. The measurements behind it: bench/products.py.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from engine.runtime import Runtime

# Multiplications in a product below which MKL is the faster one, as for the single row of a token that is written.
FROM_MULTIPLICATIONS = 2**22


def install_fast_products(model: nn.Module, runtime: Runtime) -> None:
    """Let the model's linear layers compute through oneDNN, where that pays in this run.

    Parameters and their names stay as they are, and the results, too, but for the rounding of fp32.
    """
    if pay(runtime):
        for module in model.modules():
            if type(module) is nn.Linear:
                module.__class__ = FastLinear


def pay(runtime: Runtime) -> bool:
    """Whether products through oneDNN are the faster ones in this run."""
    # The operation is PyTorch's private one, so another version may lack it.
    has_both = torch.backends.mkl.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")  # type: ignore[no-untyped-call]
    is_theirs = runtime.device.type == "cpu" and runtime.precision == "fp32"
    return is_theirs and has_both and is_slow_with_mkl(torch.cpu.get_capabilities())


def is_slow_with_mkl(capabilities: Mapping[str, Any]) -> bool:
    """Whether a processor is AMD's Zen 5 or later, by what `torch.cpu.get_capabilities()` says.

    By the kind and not by a clock, so that a resumed run computes as before. Only AMD's processors have SSE4a, and the
    first of them with AVX-VNNI is Zen 5; Zen 4 has AVX-512, too, but no faster than AVX2.
    """
    return all(capabilities.get(name, False) for name in ("sse4a", "avx512_f", "avx_vnni"))


class FastLinear(nn.Linear):
    """`nn.Linear` that computes through oneDNN what is large enough and fp32."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling() or not self.is_for_onednn(x):
            return super().forward(x)
        if torch.is_grad_enabled():
            return LinearFunction.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return multiply(x, self.weight, self.bias)

    def is_for_onednn(self, x: Tensor) -> bool:
        """Whether the product is one of fp32 on a CPU, and large enough."""
        fits = x.is_cpu and x.dtype == torch.float32 and x.dim() > 1 and not torch.is_autocast_enabled("cpu")
        return fits and x.numel() * self.out_features >= FROM_MULTIPLICATIONS


class LinearFunction(torch.autograd.Function):
    """xWᵀ + b and its gradients: x (..., in), W (out, in), b (out) or None → (..., out)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return multiply(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        rows = gradient.flatten(0, -2)  # (rows, out)
        return (
            multiply(gradient, weight.t()) if needs_x else None,
            weight_gradient(rows, x.flatten(0, -2)) if needs_weight else None,
            rows.sum(0) if needs_bias else None,
        )


def weight_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """gradientᵀ·x: (rows, out), (rows, in) → (out, in)."""
    # A transposed first factor is copied, so the smaller one takes that place.
    if x.shape[1] < gradient.shape[1]:
        return multiply(x.t(), gradient.t()).t()
    return multiply(gradient.t(), x.t())


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """What `F.linear` gives, by oneDNN: x (..., in), weight (out, in) → (..., out). Transposed views will do."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")

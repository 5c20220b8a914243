"""The matrix products of a token that is written: one row, or a few, times a matrix.

With so few rows a product takes as long as its weights take to be read, so their layout and their size decide. The
measurements behind every choice here: bench/sample.py.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

RowFunction = Callable[[Tensor], Tensor]  # (B, in) → (B, out)

# Weights of a matrix from which a product, with several rows or with one, is worth oneDNN's larger overhead.
FROM_WEIGHTS, FROM_WEIGHTS_ONE_ROW = 2**17, 2**18 + 1
INT8_MAX = 127
INT8_LANES = 16  # that PyTorch's operation reads at a time, also behind the end of a shorter row


def row_product(linear: nn.Linear, dtype: torch.dtype, *, rows: int = 1, int8: bool = False) -> RowFunction:
    """What the layer computes, x (B, in) → (B, out), from its weights as they are now, in the fastest way known here.

    `dtype` is that of the product; x may be fp32. `rows` is how many there usually are. `int8` computes with the
    weights of `quantize`.
    """
    weight, bias = linear.weight.detach(), None if linear.bias is None else linear.bias.detach()
    if int8:
        return int8_product(weight, bias)
    if dtype != torch.float32:
        return half_product(weight.to(dtype), None if bias is None else bias.to(dtype))
    if weight.is_cpu and weight.numel() < (FROM_WEIGHTS if rows > 1 else FROM_WEIGHTS_ONE_ROW):
        return transposed_product(weight, bias)
    if has_onednn(weight):
        return lambda x: torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return lambda x: F.linear(x, weight, bias)


def is_one_thread_enough(model: nn.Module, rows: int) -> bool:
    """Whether more threads gain next to nothing on a CPU: for one row, and matrices that one thread multiplies anyway.

    Threads wait for each other at every operation, so where other programs run, two can be many times slower than one.
    """
    sizes = [module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear)]
    return rows == 1 and max(sizes) < FROM_WEIGHTS_ONE_ROW


def has_onednn(weight: Tensor) -> bool:
    """Whether oneDNN multiplies with this weight, in fp32 or bf16, on this processor."""
    # The operations are PyTorch's private ones, so another version may lack them.
    is_there = all(hasattr(torch.ops.mkldnn, name) for name in ("_linear_pointwise", "_reorder_linear_weight"))
    if not (weight.is_cpu and is_there and torch.backends.mkldnn.is_available()):  # type: ignore[no-untyped-call]
        return False
    return weight.dtype == torch.float32 or (
        weight.dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


def transposed_product(weight: Tensor, bias: Tensor | None) -> RowFunction:
    """By MKL, which multiplies one row faster with a matrix that lies the other way round."""
    transposed = weight.t().contiguous()  # (in, out)
    if bias is None:
        return lambda x: torch.mm(x, transposed)
    return lambda x: torch.addmm(bias, x, transposed)


def half_product(weight: Tensor, bias: Tensor | None) -> RowFunction:
    """In the 16 bits of the weights, which are stored once in the order that oneDNN reads them in."""
    dtype = weight.dtype
    if has_onednn(weight):
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        return lambda x: torch.ops.mkldnn._linear_pointwise(x.to(dtype), packed, bias, "none", [], "")
    return lambda x: F.linear(x.to(dtype), weight, bias)


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The weight as whole numbers from -127 to 127 and what one of them is worth in each row.

    (out, in) → (out, in) int8 and (out) fp32. The largest of a row becomes 127 or -127, so quantizing twice changes
    nothing more.
    """
    scale = weight.abs().amax(dim=1) / INT8_MAX
    scale = scale.clamp(min=torch.finfo(scale.dtype).tiny)  # a row of zeros stays one
    return (weight / scale[:, None]).round().to(torch.int8), scale


def int8_product(weight: Tensor, bias: Tensor | None) -> RowFunction:
    """With the weights in 8 bits, and x and the sums in bf16."""
    whole, scale = quantize(weight)
    ones = torch.ones_like(scale, dtype=torch.bfloat16)  # PyTorch's own scale would be rounded to bf16
    missing = -weight.shape[1] % INT8_LANES
    whole = F.pad(whole, (0, missing))

    def multiply(x: Tensor) -> Tensor:
        x = x.to(torch.bfloat16)
        return torch._weight_int8pack_mm(F.pad(x, (0, missing)) if missing else x, whole, ones) * scale

    return multiply if bias is None else lambda x: multiply(x) + bias


@torch.no_grad()
def round_to_int8(model: nn.Module) -> None:
    """Give every linear layer of the model the weights that int8 leaves of them, to measure or to compute with them."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            whole, scale = quantize(module.weight)
            module.weight.copy_(whole * scale[:, None])

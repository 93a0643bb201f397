"""Linear layers that multiply by oneDNN on a CPU.

PyTorch multiplies matrices of single precision by MKL, which leaves AVX-512 unused on processors of other makers than
Intel; oneDNN, by which it multiplies in bfloat16, does not. Both are part of PyTorch, and the products are the same
but for the order of additions.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# What torch.compile calls for a linear layer: [A, K] and [B, K] -> [A, B]. Not in every build.
_multiply: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)


class Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear: [..., K] and [B, K] -> [..., B]"""
    if not _suits_onednn(x, weight):
        return F.linear(x, weight, bias)
    flat = x.reshape(-1, x.shape[-1])
    if torch.is_grad_enabled():
        y: Tensor = _OneDnnLinear.apply(flat, weight, bias)  # type: ignore[no-untyped-call]
    else:
        y = _product(flat, weight, bias)
    return y.view(*x.shape[:-1], -1)


def linear_per_digit(x: Tensor, tables: Tensor) -> Tensor:
    """A product for each digit: [*, n, d] and [n, M, d] -> [*, n, M]"""
    return torch.stack([linear(part, table) for part, table in zip(x.unbind(-2), tables)], dim=-2)


def _suits_onednn(x: Tensor, weight: Tensor) -> bool:
    return (
        _multiply is not None
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and x.numel() > 0
        and bool(torch.backends.mkldnn.enabled)
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def _product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    product: Tensor = _multiply(_close_gaps(a), _close_gaps(b), bias, "none", [], "")
    return product


def _close_gaps(x: Tensor) -> Tensor:
    """oneDNN is a hundred times slower on a matrix whose rows lie apart in memory."""
    return x if x.is_contiguous() or x.T.is_contiguous() else x.contiguous()


class _OneDnnLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (of_y,), (x, weight) = gradients, ctx.saved_tensors  # [A, B]; [A, K], [B, K]
        of_x = _product(of_y, weight.T) if ctx.needs_input_grad[0] else None
        of_weight = _multiply_transposed(of_y, x) if ctx.needs_input_grad[1] else None
        return of_x, of_weight, of_y.sum(dim=0) if ctx.needs_input_grad[2] else None


def _multiply_transposed(a: Tensor, b: Tensor) -> Tensor:
    """[A, B], [A, K] -> [B, K]: the smaller one first, which is faster."""
    return _product(a.T, b.T) if a.shape[1] <= b.shape[1] else _product(b.T, a.T).T

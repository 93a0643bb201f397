"""Losses of many targets at once."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

LOGITS_AT_ONCE = 2**23  # 32 MiB


def cross_entropy_in_chunks(
    rows: Sequence[Tensor],
    labels: Tensor,
    logits_of: Callable[..., Tensor],
    num_classes: int,
    tensors: Sequence[Tensor],
) -> Tensor:
    """The mean cross-entropy of labels [T]. Logits are logits_of(*rows, *tensors) [T, num_classes]; `rows` [T, ...] are
    cut into chunks, `tensors` are not. Whatever takes a gradient must be among the two.

    Only the logits of one chunk are held, LOGITS_AT_ONCE of them or those of one target: each chunk's gradients are
    computed at once, with its loss. Chunks of one size, however many targets a batch of sequences has, also let freed
    memory fit the next ones; else what is kept between steps (memory.keep_freed_memory) fragments.
    """
    size = max(1, LOGITS_AT_ONCE // num_classes)
    if len(labels) <= size:
        return F.cross_entropy(logits_of(*rows, *tensors), labels)
    total: Tensor = _SumOfChunks.apply(logits_of, size, len(rows), labels, *rows, *tensors)  # type: ignore[no-untyped-call]
    return total / len(labels)


class _SumOfChunks(torch.autograd.Function):
    """The sum of the losses. Its gradients are known when it is."""

    @staticmethod
    def forward(
        ctx: Any, logits_of: Callable[..., Tensor], size: int, num_rows: int, labels: Tensor, *inputs: Tensor
    ) -> Tensor:
        takes_grad = ctx.needs_input_grad[4:]
        rows, tensors = (
            inputs[:num_rows],
            [_leaf(x, takes) for x, takes in zip(inputs[num_rows:], takes_grad[num_rows:])],
        )
        grads = [_zeros(x) if takes else None for x, takes in zip(inputs, takes_grad)]
        total = torch.zeros((), dtype=torch.float64 if rows[0].dtype == torch.float64 else None, device=labels.device)
        for start in range(0, len(labels), size):
            chunk = slice(start, start + size)
            leaves = [*(_leaf(x[chunk], takes) for x, takes in zip(rows, takes_grad)), *tensors]
            with torch.set_grad_enabled(any(takes_grad)):
                loss = F.cross_entropy(logits_of(*leaves), labels[chunk], reduction="sum")
            total += loss.detach()
            if any(takes_grad):
                wanted = [number for number, takes in enumerate(takes_grad) if takes]
                found = torch.autograd.grad(loss, [leaves[number] for number in wanted], allow_unused=True)
                for number, grad in zip(wanted, found):
                    whole = grads[number]
                    if grad is not None and whole is not None:
                        (whole[chunk] if number < num_rows else whole).add_(grad)
        ctx.grads = [None if grad is None else grad.to(x.dtype) for x, grad in zip(inputs, grads)]
        return total

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        (grad,) = grad_outputs
        return None, None, None, None, *(None if of_input is None else of_input * grad for of_input in ctx.grads)


def _zeros(x: Tensor) -> Tensor:
    """Mixed precision's bfloat16 has 8 bits: the sum of many chunks needs more."""
    return torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32))


def _leaf(x: Tensor, takes_grad: bool) -> Tensor:
    return x.detach().requires_grad_(takes_grad)

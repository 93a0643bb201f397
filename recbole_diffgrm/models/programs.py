"""A generating model as two functions of tensors, which torch.export can write down. The search between them is plain
PyTorch (generation), and so is whoever uses them (serving/exported.py).

Letters in shapes: B users, L items of a history, S states that the decoder attends to, W branches of a user, n digits
with M codes each, N items, h heads, c head size.
"""

from typing import Any, NamedTuple

from torch import Tensor, nn

# What the decoder attends to: `keys` and `values` are lists of [B, h, S, c], one for each layer, `bias` is
# [B, 1, 1, S]; others are [B, ...].
MemoryTensors = dict[str, list[Tensor] | Tensor]


class Programs(NamedTuple):
    encode: nn.Module  # items [B, L], length [B] -> (memory, scores of all items [B, N + 1] or None)
    step: nn.Module  # digits [B, W, n], memory -> log-probabilities of codes [B, W, n, M]
    search: dict[str, Any]  # what serving/exported.py needs to know: plain data

"""A generating model as two functions of tensors, which torch.export can write down. The search between them is plain
PyTorch (generation), and so is whoever uses them (serving/exported.py).

Letters in shapes: B users, L items of a history, S states that the decoder attends to, W branches of a user, n digits
with M codes each, N items, h heads, c head size.
"""

from typing import Any, NamedTuple

from torch import nn


class Programs(NamedTuple):
    encode: nn.Module  # items [B, L], length [B] -> keys, values, bias and, if items have scores, these [B, N + 1]
    step: nn.Module  # digits [B, W, n], keys and values (lists of [B, h, S, c]), bias [B, 1, 1, S] -> [B, W, n, M]
    search: dict[str, Any]  # what serving/exported.py needs to know: plain data

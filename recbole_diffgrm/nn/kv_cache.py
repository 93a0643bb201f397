"""Keys and values that a decoder keeps: of the history it attends to, and of the tokens it has generated.

Letters in shapes: B samples, S states of a history, U users, W branches of a user in a beam search, t tokens of a
branch, h heads, c head size.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Memory(NamedTuple):
    """What a decoder attends to, computed once per sample for all branches and steps."""

    keys: Sequence[Tensor]  # per decoder layer [B, h, S, c]
    values: Sequence[Tensor]
    bias: Tensor  # [B, 1, 1, S] added to the attention's logits: -inf for padding


class BranchCache:
    """Tokens of every branch of a beam search, per decoder layer."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []  # per layer [U, W, t, h, c]
        self.values: list[Tensor] = []

    @property
    def num_tokens(self) -> int:
        return self.keys[0].shape[2] if self.keys else 0

    def reorder(self, parent: Tensor | None) -> None:
        """Branch w becomes a copy of branch parent[u, w] [U, W']; None before the first token."""
        if parent is None:
            return
        num_users, num_branches = self.keys[0].shape[:2]
        offset = torch.arange(num_users, device=parent.device)[:, None] * num_branches
        row = (parent + offset).flatten()  # of [U * W]
        self.keys, self.values = (
            [part.flatten(0, 1).index_select(0, row).view(*parent.shape, *part.shape[2:]) for part in parts]
            for parts in (self.keys, self.values)
        )

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None, scale: float = 1.0
    ) -> Tensor:
        """The next token of every branch joins the cache and attends to its branch: [U, W, h, c] -> [U, W, h * c].

        Layers come in their order; `bias` [t, h] is added to the logits, which are multiplied by `scale`. Sums of
        products take a fifth of the time of so many tiny matrix products.
        """
        key, value = self._append(layer, key, value)
        logits = (query[:, :, None] * key).sum(dim=-1) * scale  # [U, W, t, h]
        if bias is not None:
            logits = logits + bias
        return (logits.softmax(dim=2)[..., None] * value).sum(dim=2).flatten(2)

    def _append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """[U, W, h, c] -> those of all tokens [U, W, t, h, c]"""
        key, value = key[:, :, None], value[:, :, None]
        if layer == len(self.keys):
            self.keys.append(key)
            self.values.append(value)
        else:
            self.keys[layer] = torch.cat([self.keys[layer], key], dim=2)
            self.values[layer] = torch.cat([self.values[layer], value], dim=2)
        return self.keys[layer], self.values[layer]

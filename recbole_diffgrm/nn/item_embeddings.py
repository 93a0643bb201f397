"""Vectors of items from their ids, the codes of their semantic IDs and their text.

Tables that other parts of a network share (of codes, of ids) are arguments; a module holds only its layers. Letters in
shapes: n digits with M codes each, d hidden size, t text dimensions.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recbole_diffgrm.nn.linear import Linear

TEXT_SCALE = 4.0  # length of a text vector, so that it counts although the projection starts as small as all weights


class ConcatenatedCodes(nn.Module):
    """An MLP on the concatenated code embeddings of an item (Sec. 3.1 of the paper)."""

    def __init__(self, num_digits: int, hidden_size: int):
        super().__init__()
        self.inner = Linear(num_digits * hidden_size, hidden_size)
        self.outer = Linear(hidden_size, hidden_size)

    def forward(self, sids: Tensor, code_table: Tensor) -> Tensor:
        """SIDs [..., n] and code embeddings [n, M, d] -> [..., d].

        The first layer is linear in each digit's embedding, so it is applied once to the n * M codes, not to every
        item of every history.
        """
        n, _, d = code_table.shape
        weight = self.inner.weight.view(d, n, d).permute(1, 2, 0)  # [n, d in, d out]
        x: Tensor = self.outer(F.relu(sum_codes(sids, torch.bmm(code_table, weight)) + self.inner.bias))
        return x


class SummedEmbeddings(nn.Module):
    """The sum of an item's id embedding, its code embeddings and, with `text_dim`, its projected text vector."""

    def __init__(self, hidden_size: int, text_dim: int = 0):
        super().__init__()
        self.text_projection = Linear(text_dim, hidden_size, bias=False) if text_dim else None

    def forward(
        self, items: Tensor, sids: Tensor, id_table: Tensor, code_table: Tensor, text: Tensor | None = None
    ) -> Tensor:
        """Items [...], their SIDs [..., n] and text vectors [..., t], id embeddings [items, d] and code embeddings
        [n, M, d] -> [..., d]"""
        x = F.embedding(items, id_table) + sum_codes(sids, code_table)
        if text is None:
            return x
        if self.text_projection is None:
            raise ValueError("text vectors are given, but text_dim is 0")
        projected: Tensor = self.text_projection(TEXT_SCALE * text)
        return x + projected


def sum_codes(sids: Tensor, code_table: Tensor) -> Tensor:
    """SIDs [..., n] and a vector for each code [n, M, d] -> the sum over the digits [..., d]"""
    n, m, d = code_table.shape
    index = sids + torch.arange(n, device=sids.device) * m  # into [n * M, d]
    return F.embedding_bag(index.view(-1, n), code_table.flatten(0, 1), mode="sum").view(*sids.shape[:-1], d)

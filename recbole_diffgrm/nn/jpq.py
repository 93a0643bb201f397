"""Joint product quantization of item embeddings (RecJPQ, Petrov & Macdonald, WSDM 2024) and two exact searches on it.

An item is the concatenation of one short vector for each code of its semantic ID, so a catalogue takes as many vectors
as there are codes. A state's product with an item is the sum of its products with the item's codes, which are computed
once for all items that share them. Letters in shapes: n digits with M codes each, d hidden size, T states, N items.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recbole_diffgrm.nn.item_embeddings import sum_codes

CODES_AT_ONCE = 8  # codes whose items the pruned search looks at before it checks whether it may stop


class JPQEmbedding(nn.Module):
    """The width must be a multiple of the number of digits."""

    def __init__(self, num_digits: int, codebook_size: int, hidden_size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_digits, codebook_size, hidden_size // num_digits))  # [n, M, d / n]
        nn.init.uniform_(self.weight, -0.05, 0.05)

    def forward(self, sids: Tensor) -> Tensor:
        """SIDs [..., n] -> item embeddings [..., d]"""
        n, m, _ = self.weight.shape
        index = sids + torch.arange(n, device=sids.device) * m  # into [n * M, d / n]
        return F.embedding(index, self.weight.flatten(0, 1)).flatten(-2)


def score_codes(states: Tensor, weight: Tensor) -> Tensor:
    """States [T, d] and vectors of codes [n, M, d / n] -> [n, M, T]: the product of each code with its slice of a
    state."""
    slices = states.view(len(states), len(weight), -1).permute(1, 2, 0)  # [n, d / n, T]
    return torch.bmm(weight, slices)


def score_items(code_scores: Tensor, sids: Tensor) -> Tensor:
    """PQTopK: scores of codes [n, M, T] and SIDs [N, n] -> of items [N, T]. Rows of all states add up at once."""
    return sum_codes(sids, code_scores)


class InvertedLists(NamedTuple):
    """The items of every code."""

    start: Tensor  # [n, M + 1] where those of each code begin
    rows: Tensor  # [n, N] rows of the table of SIDs, by their code of a digit


def build_inverted_lists(sids: Tensor, codebook_size: int) -> InvertedLists:
    """From the SIDs of all items [N, n]."""
    codes, rows = sids.T.contiguous().sort(dim=1, stable=True)
    bounds = torch.arange(codebook_size + 1, device=sids.device).expand(len(codes), -1).contiguous()
    return InvertedLists(torch.searchsorted(codes, bounds), rows)


def search_pruned(
    code_scores: Tensor, sids: Tensor, lists: InvertedLists, k: int, is_hidden: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """RecJPQPrune (SIGIR 2025): rows and scores [at most k] of one state's best items, without scoring all of them.

    Codes [n, M] are looked at from the best one down, and with them the items that have them. All codes of an item not
    yet seen are still ahead, so the sum of the best ones ahead bounds its score. Exact: the higher score first, then
    the smaller row. `is_hidden` [N] items are left out.
    """
    table = code_scores[:, :, None].contiguous()
    order = code_scores.argsort(dim=1, descending=True)
    num_digits, codebook_size = order.shape
    looked_at = [0] * num_digits
    rows, scores = order.new_empty(0), code_scores.new_empty(0)
    while max(looked_at) < codebook_size:  # else every item was seen by its code of that digit
        ahead = torch.stack([codes[number] for codes, number in zip(order, looked_at)])  # [n]
        # Not "<=": an item that reaches the bound may come first by its row. Summed up as scores are, the bound is not
        # below a score by rounding.
        if len(rows) == k and sum_codes(ahead[None], table).item() < scores[-1].item():
            break
        digit = int(code_scores.gather(1, ahead[:, None]).argmax())
        codes = order[digit, looked_at[digit] : looked_at[digit] + CODES_AT_ONCE].tolist()
        looked_at[digit] += len(codes)
        start = lists.start[digit].tolist()
        found = torch.cat([lists.rows[digit, start[code] : start[code + 1]] for code in codes])
        if is_hidden is not None:
            found = found[~is_hidden[found]]
        rows = torch.unique(torch.cat([rows, found]))  # ascending
        scores = sum_codes(sids[rows], table).squeeze(1)
        best = scores.argsort(descending=True, stable=True)[:k]
        rows, scores = rows[best], scores[best]
    return rows, scores

"""Ranks and top-K lists out of score rows, with a defined order: higher score first, then the smaller item id."""

import torch
from torch import Tensor

NOT_RANKED = torch.iinfo(torch.int32).max  # rank of a target that the rules keep out of the list


def mask_scores(scores: Tensor, seen: tuple[Tensor, Tensor] | None) -> Tensor:
    """Take the padding item and the users' histories out of the ranking, in place. scores: [B, items]"""
    scores[:, 0] = -torch.inf
    if seen is not None:
        scores[seen] = -torch.inf
    return scores


def target_ranks(scores: Tensor, target: Tensor) -> Tensor:
    """[B] int32 rank of the target from 1; NOT_RANKED where its own score is -inf (or NaN)."""
    score = scores.gather(1, target[:, None])  # [B, 1]
    above = (scores > score).sum(1)
    item = torch.arange(scores.shape[1], device=scores.device)
    ties_before = ((scores == score) & (item < target[:, None])).sum(1)
    ranked = score.squeeze(1) > -torch.inf
    return torch.where(ranked, above + ties_before + 1, NOT_RANKED).int()


def place_in(lists: Tensor, wanted: Tensor) -> Tensor:
    """[B] int32 place from 1 of each row's wanted number in its list [B, K]; NOT_RANKED where it is not there."""
    is_wanted = lists == wanted[:, None]
    return torch.where(is_wanted.any(1), is_wanted.int().argmax(1) + 1, NOT_RANKED).int()


def top_items(scores: Tensor, k: int) -> Tensor:
    """[B, k] item ids, best first; 0 where a row has fewer than k ranked items."""
    k = min(k, scores.shape[1])
    values, items = torch.topk(scores, k)
    # torch.topk leaves the order of equal scores open: sort by id, then stably by score.
    items, order = items.sort(1)
    order = values.gather(1, order).argsort(dim=1, descending=True, stable=True)
    items = items.gather(1, order)
    # Where equal scores straddle the end of the list, which of them are in it is open too: sort those rows whole.
    last = values[:, -1:]
    straddles = (scores >= last).sum(1) > k
    if straddles.any():
        items[straddles] = scores[straddles].argsort(dim=1, descending=True, stable=True)[:, :k]
    return items.masked_fill(scores.gather(1, items) == -torch.inf, 0)

"""Rows of scores, one for each item: what is left out of them, and the best ones in a defined order: higher score
first, then the smaller item id. Knows nothing of the network."""

import torch
from torch import Tensor

from recbole_diffgrm.decoding.items import Seen


def mask_scores(scores: Tensor, seen: Seen | None) -> Tensor:
    """Take the padding item and the users' histories out of the ranking, in place. scores: [B, items]"""
    scores[:, 0] = -torch.inf
    if seen is not None:
        scores[seen] = -torch.inf
    return scores


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


def scores_of_ids(rows: Tensor, score: Tensor, ids: int) -> Tensor:
    """IDs found for each user as rows of the catalogue [B, W], -1 for none, and their scores -> [B, ids].

    An ID that was not found counts as the last one that was: the search says no more of it than that it is not better.
    """
    is_found = rows >= 0
    last = torch.where(is_found, score, torch.inf).amin(dim=1, keepdim=True)  # [B, 1]
    last = torch.where(last == torch.inf, 0.0, last)  # nothing found: all the same
    spread = last.expand(-1, ids + 1).clone()
    place = torch.where(is_found, rows, ids)  # those for none go to a column of their own
    return spread.scatter(1, place, torch.where(is_found, score, last))[:, :ids]


def best_ids(scores: Tensor, row: Tensor, ids: int, count: int) -> Tensor:
    """Scores of items [B, items] and the ID of each as a row of the catalogue [items] -> the `count` IDs [B, count]
    with the best items, -1 for none."""
    best = scores.new_full((len(scores), 1 + ids), -torch.inf)
    best[:, 1:].scatter_reduce_(1, row[1:].long().expand(len(scores), -1), scores[:, 1:], "amax")
    return top_items(best, count) - 1

"""From ranked semantic IDs, or from scores of all items, to ranked items; and back.

Items that share a SID follow each other in a fixed order (semantic_ids.ItemGroups). Scores are ranked in a defined
order: the higher score first, then the smaller item number. Letters in shapes: U users, W SIDs of a user, D distinct
SIDs, N items, numbered from 1 (0 is padding).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from recbole_diffgrm.generation.beam_search import Beams
from recbole_diffgrm.generation.ranges import expand_ranges, number_within
from recbole_diffgrm.generation.semantic_ids import ItemGroups, SemanticIds

SeenPairs = tuple[Tensor, Tensor]  # (row of the user in the batch, item) pairs that are filtered out


class GeneratedSids(NamedTuple):
    """Existing SIDs for each user, each once, best first."""

    rows: Tensor  # [U, W] rows of SemanticIds.sids, -1 for none
    scores: Tensor  # [U, W] log-probability, -inf for none
    num_generated: Tensor  # [U] SIDs that the model generated
    num_distinct: Tensor  # [U] distinct ones among them


def keep_existing(beams: Beams, semantic_ids: SemanticIds) -> GeneratedSids:
    """Each SID once, with its best score, and only those that an item has."""
    num_users, width, _ = beams.sids.shape
    is_live = beams.scores > -torch.inf
    rows = semantic_ids.find(beams.sids.flatten(0, 1)).view(num_users, width)
    is_first = is_live & _is_first(beams.sids)
    kept = is_first & (rows >= 0)
    return GeneratedSids(
        rows=compact_left(rows, kept, -1),
        scores=compact_left(beams.scores, kept, -torch.inf),
        num_generated=is_live.sum(1),
        num_distinct=is_first.sum(1),
    )


def concat(parts: Sequence[GeneratedSids]) -> GeneratedSids:
    """Of several chunks of users."""
    width = max(part.rows.shape[1] for part in parts)

    def pad(values: Tensor, empty: float) -> Tensor:
        return F.pad(values, (0, width - values.shape[1]), value=empty)

    return GeneratedSids(
        rows=torch.cat([pad(part.rows, -1) for part in parts]),
        scores=torch.cat([pad(part.scores, -torch.inf) for part in parts]),
        num_generated=torch.cat([part.num_generated for part in parts]),
        num_distinct=torch.cat([part.num_distinct for part in parts]),
    )


class RankedPairs(NamedTuple):
    """Items of users, by user and best first. All [P]."""

    user: Tensor
    item: Tensor
    scores: Tensor

    def without(self, seen: SeenPairs | None, num_items: int) -> "RankedPairs":
        if seen is None or not len(seen[0]):
            return self
        base = num_items + 1  # user * base + item is a key of the pair
        kept = ~torch.isin(self.user * base + self.item, seen[0] * base + seen[1])
        return RankedPairs(*(part[kept] for part in self))


def rank_items(
    rows: Tensor, groups: ItemGroups, popular: Tensor, k: int, seen: SeenPairs | None = None
) -> tuple[Tensor, Tensor]:
    """SIDs of each user [U, W], best first, -1 for none -> items [U, k], and how many of them [U] have these SIDs."""
    branch, item = _members(rows, groups)
    return list_items(RankedPairs(branch // rows.shape[1], item, item), len(rows), popular, k, seen)


def list_items(
    pairs: RankedPairs, num_users: int, popular: Tensor, k: int, seen: SeenPairs | None = None
) -> tuple[Tensor, Tensor]:
    """The first k items of each user [U, k], and how many of them [U] are from `pairs`.

    If these are fewer than k, `popular` ones [N] follow: a list is short (0 for none) only if the catalogue is.
    """
    user, item, _ = pairs.without(seen, len(popular))
    rank = number_within(user)
    kept = rank < k
    ranked = torch.zeros(num_users, k, dtype=torch.int64, device=user.device)
    ranked[user[kept], rank[kept]] = item[kept]
    num_ranked = (ranked > 0).sum(1)
    short = torch.nonzero(num_ranked < k).squeeze(1)
    if len(short):
        base = len(popular) + 1
        hidden = user[:0] if seen is None else seen[0] * base + seen[1]
        ranked[short] = _fill_with_popular(ranked[short], short, popular, hidden, base)
    return ranked, num_ranked


def rank_sids(pairs: RankedPairs, sid_index: Tensor, num_users: int) -> Tensor:
    """The SIDs of each user's items, each where its first item is: rows [U, W], -1 for none."""
    row = sid_index[pairs.item].long()
    key = pairs.user * (int(sid_index.max()) + 1) + row
    key, number = torch.unique(key, return_inverse=True)
    index = torch.arange(len(row), device=row.device)
    first = torch.full_like(key, len(row)).scatter_reduce(0, number, index, "amin").sort().values
    user = pairs.user[first]
    rank = number_within(user)
    rows = torch.full((num_users, int(rank.max()) + 1 if len(rank) else 1), -1, device=row.device)
    rows[user, rank] = row[first]
    return rows


def score_leaves(beams: Beams, groups: ItemGroups) -> RankedPairs:
    """All items below a user's branches, each once, with the score of the best branch above it; by user and item."""
    assert beams.below is not None
    begin, length, rows = beams.below
    width = beams.scores.shape[1]
    branch, index = expand_ranges(begin.flatten(), length.flatten())
    leaf, item = _members(rows[index][:, None], groups)
    branch = branch[leaf]
    key = branch // width * (len(groups.items) + 1) + item
    key, number = torch.unique(key, return_inverse=True)
    scores = beams.scores.flatten()[branch]
    best = scores.new_full((len(key),), -torch.inf).scatter_reduce(0, number, scores, "amax")
    return RankedPairs(key // (len(groups.items) + 1), key % (len(groups.items) + 1), best)


def sort_pairs(pairs: RankedPairs) -> RankedPairs:
    """By user, then the higher score, then the smaller item."""
    order = pairs.item.argsort(stable=True)
    order = order[pairs.scores[order].argsort(descending=True, stable=True)]
    order = order[pairs.user[order].argsort(stable=True)]
    return RankedPairs(*(part[order] for part in pairs))


def has_unseen_item(rows: Tensor, groups: ItemGroups, seen: SeenPairs) -> Tensor:
    """[U, W]: does the SID have an item that is not filtered out?"""
    num_users, width = rows.shape
    branch, item = _members(rows, groups)
    base = len(groups.items) + 1
    is_unseen = ~torch.isin(branch // width * base + item, seen[0] * base + seen[1])
    has_one = torch.zeros(num_users * width, dtype=torch.bool, device=rows.device)
    has_one[branch[is_unseen]] = True
    return has_one.view(num_users, width)


def compact_left(values: Tensor, kept: Tensor, empty: float) -> Tensor:
    """[U, W]: the kept values of each row, in their order, then `empty`."""
    order = (~kept).int().argsort(dim=1, stable=True)
    return values.masked_fill(~kept, empty).gather(1, order)


def dense_scores(rows: Tensor, groups: ItemGroups, popular: Tensor) -> Tensor:
    """[U, N + 1]: a score of every item that ranks them as `rank_items` does."""
    branch, item = _members(rows, groups)
    return dense_ranks(branch // rows.shape[1], item, len(rows), popular)


def dense_ranks(user: Tensor, item: Tensor, num_users: int, popular: Tensor) -> Tensor:
    """[U, N + 1]: a score of every item that ranks them as `list_items` does, without ties: minus the rank, which
    float32 holds for up to 16 million items. Padding comes last."""
    num_items, device = len(popular), user.device
    place = torch.zeros(num_items + 1, dtype=torch.int64, device=device)
    place[popular.long()] = torch.arange(num_items, device=device)
    is_other = torch.ones(num_users, num_items, dtype=torch.bool, device=device)  # by popularity
    is_other[user, place[item]] = False
    num_ranked = torch.bincount(user, minlength=num_users)[:, None]
    scores = torch.full((num_users, num_items + 1), -float(num_items + 1), device=device)
    scores[:, popular.long()] = -(num_ranked + is_other.cumsum(1, dtype=torch.int32)).float()
    scores[user, item] = -(1 + number_within(user)).float()
    return scores


def mask_scores(scores: Tensor, seen: SeenPairs | None) -> Tensor:
    """Take padding and seen items out of the ranking, in place. scores: [U, N + 1]"""
    scores[:, 0] = -torch.inf
    if seen is not None:
        scores[seen] = -torch.inf
    return scores


def top_items(scores: Tensor, k: int) -> Tensor:
    """[U, N + 1] -> [U, k] items, best first; 0 where a row has fewer than k ranked items."""
    k = min(k, scores.shape[1])
    values, items = torch.topk(scores, k)
    # torch.topk leaves the order of equal scores open: sort by item, then stably by score.
    items, order = items.sort(1)
    order = values.gather(1, order).argsort(dim=1, descending=True, stable=True)
    items = items.gather(1, order)
    # Where equal scores straddle the end of the list, it is open too which of them are in it: sort those whole rows.
    last = values[:, -1:]
    straddles = (scores >= last).sum(1) > k
    if straddles.any():
        items[straddles] = scores[straddles].argsort(dim=1, descending=True, stable=True)[:, :k]
    return items.masked_fill(scores.gather(1, items) == -torch.inf, 0)


def best_score_per_sid(scores: Tensor, sid_index: Tensor, num_sids: int) -> Tensor:
    """Scores of items [U, N + 1] and the row of each item's SID [N + 1] -> [U, 1 + D]: the score of each SID's best
    item; that of padding, whose row is -1, comes first."""
    best = scores.new_full((len(scores), 1 + num_sids), -torch.inf)
    return best.scatter_reduce_(1, (1 + sid_index.long()).expand(len(scores), -1), scores, "amax")


def _is_first(sids: Tensor) -> Tensor:
    """[U, W]: is the SID different from all earlier ones of the user? sids: [U, W, n]"""
    num_users, width, _ = sids.shape
    user = torch.arange(num_users, device=sids.device)[:, None, None].expand(-1, width, 1)
    _, number = torch.unique(torch.cat([user, sids], dim=2).flatten(0, 1), dim=0, return_inverse=True)
    index = torch.arange(num_users * width, device=sids.device)
    first = index.new_full((int(number.max()) + 1,), num_users * width).scatter_reduce(0, number, index, "amin")
    return (first[number] == index).view(num_users, width)


def _members(rows: Tensor, groups: ItemGroups) -> tuple[Tensor, Tensor]:
    """The items of all SIDs of all users, in their order: (index of the SID in [U * W], item)."""
    flat = rows.flatten()
    begin = groups.start[flat.clamp(min=0)].long()
    size = groups.start[flat.clamp(min=0) + 1] - begin
    branch, index = expand_ranges(begin, torch.where(flat >= 0, size, 0))
    return branch, groups.items[index].long()


def _fill_with_popular(ranked: Tensor, user: Tensor, popular: Tensor, hidden: Tensor, base: int) -> Tensor:
    """Lists [S, k] of the users [S], with popular items instead of the zeros at their ends."""
    k = ranked.shape[1]
    longest = int(torch.bincount(hidden // base).max()) if len(hidden) else 0
    # At most k of these are in a user's list and `longest` are hidden from it: there are enough for every list.
    offered = popular[: k + longest].long().expand(len(ranked), -1)  # [S, P]
    user = user[:, None] * base
    is_free = ~torch.isin(user + offered, torch.cat([(user + ranked).flatten(), hidden]))
    missing = (ranked == 0).sum(1, keepdim=True)
    number = is_free.cumsum(1)  # 1 for the first free one
    row, column = torch.nonzero(is_free & (number <= missing), as_tuple=True)
    filled = ranked.clone()
    filled[row, k - missing[row, 0] + number[row, column] - 1] = offered[row, column]
    return filled

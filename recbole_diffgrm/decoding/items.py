"""From ranked IDs to ranked items. Knows nothing of the network.

Items that share an ID follow each other in an order of preference (popularity). Letters in shapes as in beam.py; D
distinct IDs, N items, numbered from 1.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from recbole_diffgrm.decoding.lattice import runs

Seen = tuple[Tensor, Tensor]  # (user, item) pairs that are left out


class ItemGroups(NamedTuple):
    start: Tensor  # [D + 1] where the items of each ID begin
    items: Tensor  # [N] item numbers


def group_items(row: Tensor, preference: Tensor) -> ItemGroups:
    """`row` [N + 1], the ID of each item as a number from 0, and `preference` [N + 1]; 0 is padding. More preferred
    items come first, then those with the smaller number."""
    order = preference[1:].argsort(descending=True, stable=True)
    order = order[row[1:][order].argsort(stable=True)]
    start = torch.searchsorted(row[1:][order], torch.arange(int(row.max()) + 2, device=row.device))
    return ItemGroups(start.int(), order.int() + 1)


def rank_items(
    rows: Tensor, groups: ItemGroups, popular: Tensor, count: int, seen: Seen | None = None
) -> tuple[Tensor, Tensor]:
    """IDs of each user as rows of the catalogue [U, W], best first and -1 for none -> items [U, count], and how many of
    them [U] have these IDs.

    Where the IDs have fewer items than that, `popular` ones [N] follow, so that the list is short (0 for none) only
    where the catalogue is.
    """
    users, width = rows.shape
    branch, item = _members(rows, groups)
    user = branch // width
    most = len(popular) + 1
    hidden = user[:0] if seen is None else seen[0] * most + seen[1]
    if len(hidden):
        is_new = ~torch.isin(user * most + item, hidden)
        user, item = user[is_new], item[is_new]
    rank = torch.arange(len(user), device=user.device) - torch.searchsorted(user, user)  # among its user's
    kept = rank < count
    ranked = rows.new_zeros(users, count)
    ranked[user[kept], rank[kept]] = item[kept]
    own = (ranked > 0).sum(1)
    short = torch.nonzero(own < count).squeeze(1)
    if len(short):
        ranked[short] = _filled(ranked[short], short, popular, hidden, most)
    return ranked, own


def has_new_item(rows: Tensor, groups: ItemGroups, seen: Seen) -> Tensor:
    """[U, W]: does the ID have an item that is not left out?"""
    users, width = rows.shape
    branch, item = _members(rows, groups)
    most = len(groups.items) + 1
    is_new = ~torch.isin(branch // width * most + item, seen[0] * most + seen[1])
    found = torch.zeros(users * width, dtype=torch.bool, device=rows.device)
    found[branch[is_new]] = True
    return found.view(users, width)


def moved_up(values: Tensor, kept: Tensor, empty: float) -> Tensor:
    """[U, W]: what is kept, in its order, then `empty`."""
    order = (~kept).int().argsort(dim=1, stable=True)
    return values.masked_fill(~kept, empty).gather(1, order)


def dense_scores(rows: Tensor, groups: ItemGroups, popular: Tensor) -> Tensor:
    """[U, N + 1]: a score of every item that orders them as `rank_items` does, without ties: minus the rank, which
    float32 holds for up to 16 million items. Padding comes last."""
    ranked, _ = rank_items(rows, groups, popular, len(popular))  # [U, N]: every item once
    place = torch.arange(1, len(popular) + 1, dtype=torch.float32, device=rows.device)
    scores = torch.full((len(rows), len(popular) + 1), -float(len(popular) + 1), device=rows.device)
    return scores.scatter(1, ranked, -place.expand(len(rows), -1))


def _members(rows: Tensor, groups: ItemGroups) -> tuple[Tensor, Tensor]:
    """The items of all IDs of all users, in their order: (place of the ID in [U * W], item)."""
    flat = rows.flatten()
    begin = groups.start[flat.clamp(min=0)].long()
    size = groups.start[flat.clamp(min=0) + 1] - begin
    branch, place = runs(begin, torch.where(flat >= 0, size, 0))
    return branch, groups.items[place].long()


def _filled(ranked: Tensor, user: Tensor, popular: Tensor, hidden: Tensor, most: int) -> Tensor:
    """Lists [S, count] of the users [S], with popular items in place of the 0s at their ends."""
    count = ranked.shape[1]
    longest = int(torch.bincount(hidden // most).max()) if len(hidden) else 0
    # So many popular items hold enough that are neither in a user's list nor kept from them.
    offered = popular[: count + longest].long().expand(len(ranked), -1)  # [S, P]
    user = user[:, None] * most
    is_free = ~torch.isin(user + offered, torch.cat([(user + ranked).flatten(), hidden]))
    missing = (ranked == 0).sum(1, keepdim=True)
    number = is_free.cumsum(1)  # 1 for the first free one
    which, place = torch.nonzero(is_free & (number <= missing), as_tuple=True)
    filled = ranked.clone()
    filled[which, count - missing[which, 0] + number[which, place] - 1] = offered[which, place]
    return filled

"""From ranked IDs to ranked items. Knows nothing of the network.

Items that share an ID follow each other in an order of preference (popularity). Letters in shapes as in beam.py; D
distinct IDs, N items, numbered from 1.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from recbole_diffgrm.decoding.lattice import runs


class ItemGroups(NamedTuple):
    start: Tensor  # [D + 1] where the items of each ID begin
    items: Tensor  # [N] item numbers


def group_items(sids: Tensor, preference: Tensor) -> ItemGroups:
    """`sids` [N + 1, n] and `preference` [N + 1] of all items, 0 being padding. More preferred items come first, then
    those with the smaller number."""
    ids, row = torch.unique(sids[1:], dim=0, return_inverse=True)
    order = preference[1:].argsort(descending=True, stable=True)
    order = order[row[order].argsort(stable=True)]
    start = torch.searchsorted(row[order], torch.arange(len(ids) + 1, device=sids.device))
    return ItemGroups(start, order + 1)


def rank_items(rows: Tensor, groups: ItemGroups, count: int, seen: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """IDs of each user as rows of the catalogue [U, W], best first and -1 for none -> items [U, count], 0 for none.

    `seen` are (user, item) pairs that are left out.
    """
    users, width = rows.shape
    size = groups.start.diff()
    flat = rows.flatten()
    length = torch.where(flat >= 0, size[flat.clamp(min=0)], 0)
    branch, place = runs(groups.start[flat.clamp(min=0)], length)
    user, item = branch // width, groups.items[place]
    if seen is not None:
        most = int(groups.items.max()) + 1
        is_new = ~torch.isin(user * most + item, seen[0] * most + seen[1])
        user, item = user[is_new], item[is_new]
    rank = torch.arange(len(user), device=user.device) - torch.searchsorted(user, user)  # among its user's
    kept = rank < count
    ranked = rows.new_zeros(users, count)
    ranked[user[kept], rank[kept]] = item[kept]
    return ranked

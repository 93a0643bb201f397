"""Items out of IDs, against a loop."""

import pytest
import torch

from recbole_diffgrm.decoding.items import group_items, rank_items


def looped(rows, sids, preference, count, seen):
    ids = sorted(set(map(tuple, sids[1:].tolist())))
    ranked = []
    for user, mine in enumerate(rows.tolist()):
        items = []
        for row in mine:
            if row >= 0:
                members = [item for item in range(1, len(sids)) if tuple(sids[item].tolist()) == ids[row]]
                items += sorted(members, key=lambda item: (-preference[item].item(), item))
        items = [item for item in items if (user, item) not in seen][:count]
        ranked.append(items + [0] * (count - len(items)))
    return ranked


@pytest.mark.parametrize(("codes", "count"), [(2, 5), (3, 20), (50, 4), (1, 7)])
def test_against_a_loop(codes, count):
    """Many items an ID, few, and all of them with the same."""
    draw = torch.Generator().manual_seed(codes)
    sids = torch.randint(codes, (31, 2), generator=draw)
    preference = torch.randint(4, (31,), generator=draw).float()  # with ties
    distinct = len(set(map(tuple, sids[1:].tolist())))
    rows = torch.stack([torch.randperm(distinct, generator=draw) for _ in range(6)])[:, :8]
    rows[2, rows.shape[1] // 2 :] = -1
    rows[3] = -1
    pairs = {(user, item) for user in (0, 2, 5) for item in range(1, 31, 3)}
    seen = tuple(torch.tensor(column) for column in zip(*sorted(pairs)))
    groups = group_items(sids, preference)
    assert rank_items(rows, groups, count).tolist() == looped(rows, sids, preference, count, set())
    assert rank_items(rows, groups, count, seen).tolist() == looped(rows, sids, preference, count, pairs)

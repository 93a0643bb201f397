"""The table of items and SIDs against loops."""

import itertools

import pytest
import torch

from recbole_diffgrm.generation.semantic_ids import SemanticIds, distinct_sids, find_rows
from tests.generation.helpers import random_sids


@pytest.mark.parametrize(
    ("num_items", "num_digits", "codebook_size"), [(30, 3, 4), (1, 2, 2), (200, 4, 3), (64, 1, 100), (90, 9, 2)]
)
def test_distinct_sids(num_items, num_digits, codebook_size):
    sids = random_sids(num_items, num_digits, codebook_size)
    distinct, row = distinct_sids(sids)
    assert distinct.tolist() == [list(sid) for sid in sorted(set(map(tuple, sids.tolist())))]
    assert distinct[row].tolist() == sids.tolist()


@pytest.mark.parametrize(
    ("num_items", "num_digits", "codebook_size"), [(30, 3, 4), (1, 2, 2), (200, 4, 3), (64, 1, 100)]
)
def test_rows_of_sids(num_items, num_digits, codebook_size):
    table = distinct_sids(random_sids(num_items, num_digits, codebook_size))[0].short()
    every = torch.tensor(list(itertools.product(range(-1, min(codebook_size, 6)), repeat=num_digits)))
    listed = table.tolist()
    expected = [listed.index(sid) if sid in listed else -1 for sid in every.tolist()]
    assert find_rows(table, every).tolist() == expected
    assert find_rows(table, table.long()).tolist() == list(range(len(table)))


@pytest.fixture
def catalog():
    """30 items of 2 digits of 3 codes, some equally popular."""
    draw = torch.Generator().manual_seed(3)
    sids, popularity = torch.randint(3, (31, 2), generator=draw), torch.randint(4, (31,), generator=draw)
    return sids, popularity


def test_items_and_sids(catalog):
    sids, popularity = catalog
    ids = SemanticIds.build(sids, 3, popularity)
    distinct = sorted(set(map(tuple, sids[1:].tolist())))
    assert (ids.num_digits, ids.codebook_size, ids.num_sids) == (2, 3, len(distinct))
    assert list(map(tuple, ids.sids.tolist())) == distinct
    items = torch.arange(1, 31)
    assert ids.lookup(items).tolist() == sids[1:].tolist()
    assert ids.lookup(items.view(5, 6))[2, 3].tolist() == sids[16].tolist()
    assert ids.sid_index.tolist() == [-1] + [distinct.index(tuple(sid)) for sid in sids[1:].tolist()]
    assert ids.find(sids).tolist() == [
        distinct.index(tuple(sid)) if tuple(sid) in distinct else -1 for sid in sids.tolist()
    ]
    assert ids.find(torch.tensor([[-1, -1], [7, 0]])).tolist() == [-1, -1]
    assert ids.group_size(items).tolist() == [(sids[1:] == sids[item]).all(1).sum().item() for item in range(1, 31)]
    assert ids.popular.tolist() == sorted(range(1, 31), key=lambda item: (-popularity[item].item(), item))


@pytest.mark.parametrize("collision_order", ["popularity", "number"])
def test_order_of_items_that_share_a_sid(catalog, collision_order):
    sids, popularity = catalog
    ids = SemanticIds.build(sids, 3, popularity, collision_order)
    start, items = (part.tolist() for part in ids.groups)
    for row, sid in enumerate(ids.sids.tolist()):
        members = [item for item in range(1, 31) if sids[item].tolist() == sid]
        if collision_order == "popularity":
            members.sort(key=lambda item: (-popularity[item].item(), item))
        assert items[start[row] : start[row + 1]] == members


def test_saving_and_loading(catalog):
    sids, popularity = catalog
    ids = SemanticIds.build(sids, 3, popularity).with_lattice().with_trie()
    state = torch.nn.ModuleDict({"semantic_ids": ids}).state_dict()
    again = SemanticIds.from_state(state, "semantic_ids.")
    assert (again.num_digits, again.codebook_size) == (2, 3)
    items = torch.arange(1, 31)
    assert again.lookup(items).tolist() == sids[1:].tolist()
    assert torch.equal(again.group_size(items), ids.group_size(items))
    for part in ("lattice", "groups"):
        for name, array in getattr(ids, part)._asdict().items():
            assert torch.equal(getattr(getattr(again, part), name), array)

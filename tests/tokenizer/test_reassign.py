"""Unique SIDs: the fewest moves and the least added error, against enumeration."""

import itertools

import numpy as np
import pytest

from recbole_diffgrm import UserError
from recbole_diffgrm.tokenizer import reassign as reassign_module
from recbole_diffgrm.tokenizer.collisions import group_sizes
from recbole_diffgrm.tokenizer.quantizers.distances import cheapest_sums
from recbole_diffgrm.tokenizer.reassign import reassign

NO_TABLE = np.zeros((0, 2), np.uint16)


class Items:
    """Points with one coordinate per digit, and centroids on each axis."""

    def __init__(self, num_items: int, codebook_size: int, seed: int, num_digits: int = 2):
        random = np.random.default_rng(seed)
        self.codebook_size = codebook_size
        points = random.standard_normal((num_items, num_digits, 1))
        self.costs = (points - random.standard_normal((num_digits, codebook_size))) ** 2
        self.codes = self.costs.argmin(axis=2).astype(np.uint16)

    def nearest(self, items, count):
        near = cheapest_sums(self.costs[items], count)
        return near.codes, near.errors - self.error(items, self.codes[items])[:, None]

    def error(self, items, codes):
        return np.take_along_axis(self.costs[items], codes[..., None].astype(int), axis=2).sum(axis=(1, 2))

    def added(self, sids) -> float:
        everyone = np.arange(len(sids))
        return (self.error(everyone, sids) - self.error(everyone, self.codes)).sum()

    def reassign(self, table=NO_TABLE):
        return reassign(self.codes, self.codebook_size, self.nearest, lambda items: items, table)


def best_by_enumeration(items: Items, table: np.ndarray) -> tuple[int, float]:
    """Fewest moves, and the least added error among all solutions with that few."""
    taken = {tuple(code) for code in table.tolist()}
    groups: dict[tuple, list[int]] = {}
    for item, code in enumerate(items.codes.tolist()):
        groups.setdefault(tuple(code), []).append(item)
    everything = itertools.product(range(items.codebook_size), repeat=items.codes.shape[1])
    free = [code for code in everything if code not in groups and code not in taken]
    best, moves = np.inf, 0
    for staying in itertools.product(*([None] if code in taken else members for code, members in groups.items())):
        moving = [item for item in range(len(items.codes)) if item not in staying]
        moves = len(moving)
        for targets in itertools.permutations(free, moves):
            sids = items.codes.copy()
            sids[moving] = np.array(targets, np.uint16).reshape(-1, items.codes.shape[1])
            best = min(best, items.added(sids))
    return moves, best


@pytest.mark.parametrize("candidates", [1, 2, 16])
@pytest.mark.parametrize("with_table", [False, True])
def test_optimal(monkeypatch, candidates, with_table):
    monkeypatch.setattr(reassign_module, "FIRST_CANDIDATES", candidates)
    greedy_was_worse = moved_any = 0
    for seed in range(12):
        items = Items(3 + seed % 3, 3, seed)
        table = np.array([items.codes[0], [2, 1]], np.uint16) if with_table else NO_TABLE
        moves, best = best_by_enumeration(items, table)
        sids = items.reassign(table)
        assert (sids != items.codes).any(axis=1).sum() == moves
        assert items.added(sids) == pytest.approx(best)
        assert len(np.unique(np.concatenate([sids, table]), axis=0)) == len(sids) + len(np.unique(table, axis=0))
        with monkeypatch.context() as patch:
            patch.setattr(reassign_module, "LARGE_GROUP", 0)
            greedy = items.reassign(table)
        assert (greedy != items.codes).any(axis=1).sum() == moves
        assert items.added(greedy) >= best - 1e-9
        greedy_was_worse += items.added(greedy) > best + 1e-9
        moved_any += moves > 0
    assert moved_any > 5
    assert greedy_was_worse > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "limits", [{}, {"LARGE_COMPONENT": 20}, {"LARGE_GROUP": 5}, {"LARGE_GROUP": 5, "EDGES_AT_ONCE": 64}]
)
def test_all_unique_with_the_fewest_moves(monkeypatch, limits):
    for name, value in limits.items():
        monkeypatch.setattr(reassign_module, name, value)
    items = Items(900, 32, 0)
    sids = items.reassign()
    distinct = len(np.unique(items.codes, axis=0))
    assert len(np.unique(sids, axis=0)) == 900
    assert (sids != items.codes).any(axis=1).sum() == 900 - distinct
    alone = group_sizes(items.codes, 32) == 1
    assert (sids[alone] == items.codes[alone]).all()
    assert (items.reassign() == sids).all()


@pytest.mark.parametrize("limits", [{}, {"LARGE_GROUP": 5}])
@pytest.mark.parametrize("num_digits", [40, 64])
def test_long_sids(monkeypatch, limits, num_digits):
    """Keys that do not fit 64 bits."""
    for name, value in limits.items():
        monkeypatch.setattr(reassign_module, name, value)
    items = Items(200, 4, 0, num_digits)
    items.costs[:] = items.costs[np.arange(200) % 20] + 1e-3 * items.costs
    items.codes = items.costs[np.arange(200) % 20].argmin(axis=2).astype(np.uint16)
    distinct = len(np.unique(items.codes, axis=0))
    table = np.concatenate([items.codes[:1], items.codes[:1] ^ 1])
    sids = items.reassign(table)
    assert distinct == 20
    assert len(np.unique(np.concatenate([sids, table]), axis=0)) == 202
    assert (sids != items.codes).any(axis=1).sum() == 200 - distinct + 1


def test_short_lists_lose_nothing(monkeypatch):
    """Lists of candidates that grow only where they must end at the same cost as lists of all codes."""
    items = Items(120, 16, 3)
    short = items.added(items.reassign())
    monkeypatch.setattr(reassign_module, "FIRST_CANDIDATES", 256)
    assert short == pytest.approx(items.added(items.reassign()))


def test_every_sid_in_use():
    """As many equal items as SIDs."""
    items = Items(64, 8, 0)
    items.costs[:] = items.costs[:1]
    items.codes[:] = items.codes[:1]
    assert len(np.unique(items.reassign(), axis=0)) == 64


def test_no_sid_to_spare_and_items_nearly_equal():
    """As many columns as rows, costs almost equal: the sparse solver would take minutes."""
    items = Items(1024, 32, 0)
    items.costs[:500] = items.costs[:1] + 1e-3 * items.costs[:500]
    items.codes = items.costs.argmin(axis=2).astype(np.uint16)
    assert len(np.unique(items.reassign(), axis=0)) == 1024


def test_equal_items_share_a_list():
    """One list of 2,000 candidates for items with the same vector, not 1,000 of them."""
    requested = []
    items = Items(1000, 64, 0)
    items.costs[:] = items.costs[:1]
    items.codes[:] = items.codes[:1]

    def nearest(chosen, count):
        requested.append(len(chosen))
        return items.nearest(chosen, count)

    sids = reassign(items.codes, 64, nearest, lambda chosen: np.zeros(len(chosen), int), NO_TABLE)
    assert len(np.unique(sids, axis=0)) == 1000
    assert set(requested) == {1}
    # for equal items nothing is better than to take the nearest codes
    near = cheapest_sums(items.costs[:1], 1000)
    assert items.added(sids) == pytest.approx((near.errors - near.errors[0, 0]).sum())


def test_more_items_than_sids():
    with pytest.raises(UserError, match=r"sid_collisions: 10 items .* 9 .*sid_num_digits 2, sid_codebook_size 3"):
        Items(10, 3, 0).reassign()

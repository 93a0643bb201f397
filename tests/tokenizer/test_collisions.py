"""Shared IDs: the rules against enumeration."""

import itertools

import numpy as np
import pytest

from recbole_diffgrm import UserError
from recbole_diffgrm.tokenizer import reassign as matching
from recbole_diffgrm.tokenizer.collisions import decode, group_sizes, keys, number_members
from recbole_diffgrm.tokenizer.quantiser import cheapest_sums
from recbole_diffgrm.tokenizer.reassign import reassign

NO_TABLE = np.zeros((0, 2), np.uint16)


class Catalogue:
    """Items on a plane, one digit per axis."""

    def __init__(self, items: int, size: int, seed: int, digits: int = 2):
        draw = np.random.default_rng(seed)
        self.size = size
        self.costs = (draw.standard_normal((items, digits, 1)) - draw.standard_normal((digits, size))) ** 2
        self.codes = self.costs.argmin(axis=2).astype(np.uint16)

    def nearest(self, items, count):
        near = cheapest_sums(self.costs[items], count)
        return near.codes, near.error - self.error(items, self.codes[items])[:, None]

    def error(self, items, codes):
        return np.take_along_axis(self.costs[items], codes[..., None].astype(int), axis=2).sum(axis=(1, 2))

    def added(self, codes) -> float:
        everyone = np.arange(len(codes))
        return (self.error(everyone, codes) - self.error(everyone, self.codes)).sum()

    def reassigned(self, table=NO_TABLE):
        return reassign(self.codes, self.size, self.nearest, lambda items: items, table)


def best_by_enumeration(catalogue: Catalogue, table: np.ndarray) -> tuple[int, float]:
    """Least moves, and the least added error among all ways to make so few."""
    taken = {tuple(code) for code in table.tolist()}
    groups: dict[tuple, list[int]] = {}
    for item, code in enumerate(catalogue.codes.tolist()):
        groups.setdefault(tuple(code), []).append(item)
    everything = itertools.product(range(catalogue.size), repeat=catalogue.codes.shape[1])
    free = [code for code in everything if code not in groups and code not in taken]
    best, moves = np.inf, 0
    for staying in itertools.product(*([None] if code in taken else members for code, members in groups.items())):
        moving = [item for item in range(len(catalogue.codes)) if item not in staying]
        moves = len(moving)
        for targets in itertools.permutations(free, moves):
            codes = catalogue.codes.copy()
            codes[moving] = np.array(targets, np.uint16).reshape(-1, catalogue.codes.shape[1])
            best = min(best, catalogue.added(codes))
    return moves, best


@pytest.mark.parametrize("candidates", [1, 2, 16])
@pytest.mark.parametrize("with_table", [False, True])
def test_reassign_is_optimal(monkeypatch, candidates, with_table):
    monkeypatch.setattr(matching, "FIRST_CANDIDATES", candidates)
    greedy_was_worse = moved_any = 0
    for seed in range(12):
        catalogue = Catalogue(3 + seed % 3, 3, seed)
        table = np.array([catalogue.codes[0], [2, 1]], np.uint16) if with_table else NO_TABLE
        moves, best = best_by_enumeration(catalogue, table)
        codes = catalogue.reassigned(table)
        assert (codes != catalogue.codes).any(axis=1).sum() == moves
        assert catalogue.added(codes) == pytest.approx(best)
        assert len(np.unique(np.concatenate([codes, table]), axis=0)) == len(codes) + len(np.unique(table, axis=0))
        with monkeypatch.context() as patch:
            patch.setattr(matching, "LARGE_GROUP", 0)
            greedy = catalogue.reassigned(table)
        assert (greedy != catalogue.codes).any(axis=1).sum() == moves
        assert catalogue.added(greedy) >= best - 1e-9
        greedy_was_worse += catalogue.added(greedy) > best + 1e-9
        moved_any += moves > 0
    assert moved_any > 5
    assert greedy_was_worse > 0


@pytest.mark.parametrize(
    "limits", [{}, {"LARGE_TANGLE": 20}, {"LARGE_GROUP": 5}, {"LARGE_GROUP": 5, "EDGES_AT_ONCE": 64}]
)
def test_everyone_gets_an_id_with_as_few_moves_as_can_be(monkeypatch, limits):
    for name, value in limits.items():
        monkeypatch.setattr(matching, name, value)
    catalogue = Catalogue(900, 32, 0)
    codes = catalogue.reassigned()
    distinct = len(np.unique(catalogue.codes, axis=0))
    assert len(np.unique(codes, axis=0)) == 900
    assert (codes != catalogue.codes).any(axis=1).sum() == 900 - distinct
    alone = group_sizes(catalogue.codes, 32) == 1
    assert (codes[alone] == catalogue.codes[alone]).all()
    assert (catalogue.reassigned() == codes).all()


def test_short_lists_lose_nothing(monkeypatch):
    """Lists that grow only where they must end at the same cost as lists of all codes."""
    catalogue = Catalogue(120, 16, 3)
    short = catalogue.added(catalogue.reassigned())
    monkeypatch.setattr(matching, "FIRST_CANDIDATES", 256)
    assert short == pytest.approx(catalogue.added(catalogue.reassigned()))


def test_every_code_in_use():
    """As many items as codes, all of them alike."""
    catalogue = Catalogue(64, 8, 0)
    catalogue.costs[:] = catalogue.costs[:1]
    catalogue.codes[:] = catalogue.codes[:1]
    assert len(np.unique(catalogue.reassigned(), axis=0)) == 64


def test_no_code_to_spare_and_items_nearly_alike():
    """Columns as scarce as rows, costs all but equal: the sparse solver would take minutes."""
    catalogue = Catalogue(1024, 32, 0)
    catalogue.costs[:500] = catalogue.costs[:1] + 1e-3 * catalogue.costs[:500]
    catalogue.codes = catalogue.costs.argmin(axis=2).astype(np.uint16)
    assert len(np.unique(catalogue.reassigned(), axis=0)) == 1024


def test_equal_items_by_the_hundred():
    """Items of the same vector share their list of codes: one list of 2,000, not 1,000 of them."""
    asked = []
    catalogue = Catalogue(1000, 64, 0)
    catalogue.costs[:] = catalogue.costs[:1]
    catalogue.codes[:] = catalogue.codes[:1]

    def nearest(items, count):
        asked.append(len(items))
        return catalogue.nearest(items, count)

    codes = reassign(catalogue.codes, 64, nearest, lambda items: np.zeros(len(items), int), NO_TABLE)
    assert len(np.unique(codes, axis=0)) == 1000
    assert set(asked) == {1}
    # alike as they are, the best that can be done is to take the nearest codes
    near = cheapest_sums(catalogue.costs[:1], 1000)
    assert catalogue.added(codes) == pytest.approx((near.error - near.error[0, 0]).sum())


def test_more_items_than_ids():
    catalogue = Catalogue(10, 3, 0)
    with pytest.raises(UserError, match="10 items cannot all have their own of 9 IDs"):
        catalogue.reassigned()


def test_number_members():
    codes = np.array([[1, 2], [3, 0], [1, 2], [1, 2]], np.uint16)
    empty = np.zeros((0, 3), np.uint16)
    numbered = number_members(codes, 4, empty)
    assert numbered.tolist() == [[1, 2, 0], [3, 0, 0], [1, 2, 1], [1, 2, 2]]
    more = number_members(np.array([[3, 0], [0, 0], [3, 0]], np.uint16), 4, numbered)
    assert more.tolist() == [[3, 0, 1], [0, 0, 0], [3, 0, 2]]
    with pytest.raises(UserError, match="4 items share one ID, but a digit has 3 codes"):
        number_members(np.array([[1, 2]], np.uint16), 3, numbered)


@pytest.mark.parametrize(("digits", "size"), [(1, 2), (4, 256), (5, 4096), (8, 256), (32, 4096), (3, 3)])
def test_keys(digits, size):
    codes = np.random.default_rng(0).integers(0, size, (500, digits)).astype(np.uint16)
    codes[:20] = 0
    codes[20:40, 1:] = 0
    key = keys(codes, size)
    assert (decode(key, digits, size) == codes).all()
    assert (codes[np.argsort(key, kind="stable")] == codes[np.lexsort(codes.T[::-1])]).all()
    assert len(np.unique(key)) == len(np.unique(codes, axis=0))
    sizes = group_sizes(codes, size)
    assert all(sizes[i] == (codes == codes[i]).all(axis=1).sum() for i in range(0, 500, 25))

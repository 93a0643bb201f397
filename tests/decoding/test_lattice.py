"""The lattice against sets of partial IDs written out."""

import itertools

import pytest
import torch

from recbole_diffgrm.decoding import lattice as lattices


def built(sids, codes):
    return lattices.build(lattices.distinct_ids(sids)[0], codes)


def table(items, digits, codes, seed=0):
    return torch.randint(codes, (items, digits), generator=torch.Generator().manual_seed(seed))


def written_out(sids, known):
    """{(digit, code): smallest ID} of all children of a partial ID {digit: code}."""
    ids = sorted(set(map(tuple, sids.tolist())))
    found = {}
    for number, one in enumerate(ids):
        if all(one[digit] == code for digit, code in known.items()):
            for digit in set(range(len(one))) - set(known):
                found.setdefault((digit, one[digit]), number)
    return found


@pytest.mark.parametrize(
    ("items", "digits", "codes"),
    [(30, 3, 4), (200, 4, 6), (1, 2, 2), (5, 5, 2), (40, 2, 3), (60, 3, 300), (150, 7, 2), (12, 4, 4096)],
)
@pytest.mark.parametrize("at_once", [lattices.PAIRS_AT_ONCE, 5])
def test_children(items, digits, codes, at_once, monkeypatch):
    """With a table of keys where lists are long, sorted where they are short, and in blocks of a few states."""
    monkeypatch.setattr(lattices, "PAIRS_AT_ONCE", at_once)
    sids = table(items, digits, codes)
    lattice = built(sids, codes)
    for digit, code in itertools.product(range(digits), range(min(codes, 300))):
        expected = written_out(sids, {digit: code})
        assert bool(lattice.exists[digit, code]) == bool(expected)
        children = lattices.after_one_digit(lattice, torch.tensor([digit]), torch.tensor([code]))
        assert as_dict(children) == expected
        for (second, other), _ in expected.items():
            known = {digit: code, second: other}
            check_below(lattice, sids, known, second, lists_of(children, second, other))


def lists_of(children, digit, code):
    which = (children.digit == digit) & (children.code == code)
    return children.below._replace(begin=children.below.begin[which], length=children.below.length[which])


def check_below(lattice, sids, known, newest, below):
    """All states further down, through every order of filling."""
    if len(known) == sids.shape[1]:
        return
    row = torch.full((1, sids.shape[1]), -1)
    for digit, code in known.items():
        row[0, digit] = code
    children = lattices.after_more_digits(lattice, row, torch.tensor([newest]), below)
    expected = written_out(sids, known)
    assert as_dict(children) == expected
    assert children.parent.tolist() == [0] * len(expected)
    for digit, code in list(expected)[:2]:
        check_below(lattice, sids, {**known, digit: code}, digit, lists_of(children, digit, code))


def as_dict(children):
    rows = zip(children.digit.tolist(), children.code.tolist(), children.first.tolist())
    found = {(digit, code): first for digit, code, first in rows}
    assert len(found) == len(children.digit), "a child is found twice"
    return found


def test_many_parents_at_once():
    sids = table(100, 4, 5)
    lattice = built(sids, 5)
    digit, code = torch.tensor([0, 3, 3, 1]), torch.tensor([2, 0, 0, 4])
    together = lattices.after_one_digit(lattice, digit, code)
    for row in range(4):
        alone = lattices.after_one_digit(lattice, digit[row : row + 1], code[row : row + 1])
        mine = together.parent == row
        assert together.code[mine].tolist() == alone.code.tolist()
        assert together.first[mine].tolist() == alone.first.tolist()


def test_one_digit():
    lattice = built(torch.tensor([[2], [0], [2]]), 4)
    assert lattice.ids.tolist() == [[0], [2]]
    assert lattice.exists.tolist() == [[True, False, True, False]]


@pytest.mark.parametrize(("items", "digits", "codes"), [(30, 3, 4), (1, 2, 2), (200, 4, 3), (64, 1, 100)])
def test_rows_of_ids(items, digits, codes):
    ids = built(table(items, digits, codes), codes).ids
    wanted = torch.tensor(list(itertools.product(range(-1, min(codes, 6)), repeat=digits)))
    written = ids.tolist()
    expected = [written.index(one) if one in written else -1 for one in wanted.tolist()]
    assert lattices.rows_of(ids, wanted).tolist() == expected
    assert lattices.rows_of(ids, ids.long()).tolist() == list(range(len(ids)))


@pytest.mark.parametrize(("items", "digits", "codes"), [(30, 3, 4), (1, 2, 2), (200, 4, 3), (64, 1, 100), (90, 9, 2)])
def test_distinct_ids(items, digits, codes):
    sids = table(items, digits, codes)
    ids, row = lattices.distinct_ids(sids)
    assert ids.tolist() == [list(one) for one in sorted(set(map(tuple, sids.tolist())))]
    assert ids[row].tolist() == sids.tolist()

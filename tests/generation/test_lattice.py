"""The lattice against enumerated sets of partial SIDs."""

import itertools

import pytest
import torch

from recbole_diffgrm.generation import lattice as lattices
from tests.generation.helpers import lattice_of, random_sids


def enumerate_children(distinct, known):
    """{(digit, code): smallest SID} of all children of a partial SID {digit: code}."""
    children = {}
    for number, sid in enumerate(distinct):
        if all(sid[digit] == code for digit, code in known.items()):
            for digit in set(range(len(sid))) - set(known):
                children.setdefault((digit, sid[digit]), number)
    return children


def as_dict(children):
    rows = zip(children.digit.tolist(), children.code.tolist(), children.first.tolist())
    by_choice = {(digit, code): first for digit, code, first in rows}
    assert len(by_choice) == len(children.digit), "a child appears twice"
    return by_choice


def lists_of(children, digit, code):
    which = (children.digit == digit) & (children.code == code)
    return children.below._replace(begin=children.below.begin[which], length=children.below.length[which])


def check_below(lattice, distinct, known, newest, below):
    """States further down, through many orders of filling."""
    n = len(distinct[0])
    if len(known) == n:
        return
    row = torch.full((1, n), -1)
    for digit, code in known.items():
        row[0, digit] = code
    open_digits = torch.tensor([[digit for digit in range(n) if digit not in known]])
    children = lattices.children_of_more_digits(lattice, row, open_digits, torch.tensor([newest]), below)
    expected = enumerate_children(distinct, known)
    assert as_dict(children) == expected
    assert children.parent.tolist() == [0] * len(expected)
    for digit, code in list(expected)[: 2 if len(known) < 4 else 1]:
        check_below(lattice, distinct, {**known, digit: code}, digit, lists_of(children, digit, code))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_items", "num_digits", "codebook_size"),
    [(30, 3, 4), (200, 4, 6), (1, 2, 2), (5, 5, 2), (40, 2, 3), (60, 3, 300), (150, 7, 2), (12, 4, 4096)],
)
@pytest.mark.parametrize("pairs_per_chunk", [lattices.PAIRS_PER_CHUNK, 5])
def test_children(num_items, num_digits, codebook_size, pairs_per_chunk, monkeypatch):
    """With a table of keys where lists are long, sorted where they are short, and in chunks of a few states."""
    monkeypatch.setattr(lattices, "PAIRS_PER_CHUNK", pairs_per_chunk)
    sids = random_sids(num_items, num_digits, codebook_size)
    lattice, distinct = lattice_of(sids, codebook_size), sorted(set(map(tuple, sids.tolist())))
    for digit, code in itertools.product(range(num_digits), range(min(codebook_size, 300))):
        expected = enumerate_children(distinct, {digit: code})
        assert bool(lattice.exists[digit, code]) == bool(expected)
        children = lattices.children_of_one_digit(lattice, torch.tensor([digit]), torch.tensor([code]))
        assert as_dict(children) == expected
        for second, other in expected:
            known = {digit: code, second: other}
            check_below(lattice, distinct, known, second, lists_of(children, second, other))


def test_many_parents_at_once():
    lattice = lattice_of(random_sids(100, 4, 5), 5)
    digit, code = torch.tensor([0, 3, 3, 1]), torch.tensor([2, 0, 0, 4])
    together = lattices.children_of_one_digit(lattice, digit, code)
    for row in range(4):
        alone = lattices.children_of_one_digit(lattice, digit[row : row + 1], code[row : row + 1])
        mine = together.parent == row
        assert together.code[mine].tolist() == alone.code.tolist()
        assert together.first[mine].tolist() == alone.first.tolist()


def test_one_digit():
    lattice = lattice_of(torch.tensor([[2], [0], [2]]), 4)
    assert lattice.sids.tolist() == [[0], [2]]
    assert lattice.exists.tolist() == [[True, False, True, False]]


def test_code_pairs():
    sids = random_sids(20, 3, 5)
    pairs = lattices.find_code_pairs(sids, 5)
    for digit, code, other, its_code in itertools.product(range(3), range(5), range(3), range(5)):
        exists = any(sid[digit] == code and sid[other] == its_code for sid in sids.tolist())
        assert bool(pairs[digit * 5 + code, other, its_code]) == exists
    for other, its_code in itertools.product(range(3), range(5)):
        assert bool(pairs[-1, other, its_code]) == any(sid[other] == its_code for sid in sids.tolist())

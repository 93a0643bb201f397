"""The vocabulary by hand, against counting everything again, and from the cache."""

from fractions import Fraction

import numpy as np
import pytest

from recbole_diffgrm import UserError
from recbole_diffgrm.models.actionpiece import vocabulary as module
from recbole_diffgrm.models.actionpiece.vocabulary import Merging, build_vocabulary, cached_vocabulary, number_codes
from tests.models.actionpiece import reference


def test_two_sequences_by_hand():
    """A = {1, 3}, B = {1, 4}, C = {2, 3}; the sequences A B C and A A B.

    5 = (1, 3), which counts 3 + 5/4: {5} {4} {5} {2} and {5} {5} {1, 4}. 6 = (4, 5), 5/2: {6} {5} {2} and {5} {6} {1}.
    7 = (5, 6), 2: {7} {2} and {7} {1}. Then (1, 7) and (2, 7) count 1 each.
    """
    sids = np.array([[0, 0], [0, 1], [1, 0]])
    rows, user = np.array([0, 1, 2, 0, 0, 1]), np.array([0, 0, 0, 1, 1, 1])
    built = build_vocabulary(sids, 2, rows, user, 100)
    assert built.tokens.tolist() == [[1, 2], [3, 4]]
    assert built.pairs.tolist() == [[1, 3], [4, 5], [5, 6], [1, 7], [2, 7]]
    assert built.priority.tolist() == [4.25, 2.5, 2, 1, 1]
    assert (built.size, built.bos, built.eos) == (10, 10, 11)
    assert build_vocabulary(sids, 2, rows, user, 7).pairs.tolist() == [[1, 3], [4, 5]]


@pytest.mark.parametrize("seed", range(12))
def test_equals_counting_everything_again(seed):
    """The authors' actions and slots, counted again after each merge, give the same vocabulary."""
    sids, rows, user = reference.random_data(seed, num_digits=2 + seed % 3, codebook_size=2 + seed % 4)
    built = build_vocabulary(sids, 8, rows, user, 70)
    number, pairs, priority = reference.build_vocabulary(sids, rows, user, 70)
    assert {(d, c): built.tokens[d, c] for d, c in number} == number
    assert (built.tokens > 0).sum() == len(number)
    assert built.pairs.tolist() == [list(pair) for pair in pairs]
    assert built.priority.tolist() == [float(count) for count in priority]


@pytest.mark.parametrize("seed", range(3))
def test_counts_stay_exact(seed):
    sids, rows, user = reference.random_data(seed, num_digits=4, num_users=6)
    tokens = number_codes(sids, 4)
    merging = Merging(tokens[np.arange(4), sids[rows]], user, 200)
    begins = 2 * np.flatnonzero(np.append(True, user[1:] != user[:-1]))
    first = 1 + (tokens > 0).sum()

    def sequence(node):
        """The sets from the first node that is left on."""
        while not merging.sets[node]:
            node += 1
        sets = []
        while node >= 0:
            sets.append(merging.sets[node])
            node = merging.next[node]
        return sets

    for token in range(first, 200):
        counts = {divmod(key, 200): Fraction(count, merging.unit) for key, count in merging.counts.items()}
        assert counts == reference.count_pairs([sequence(begin) for begin in begins])
        best = merging.best_pair()
        if best is None:
            break
        assert best == min(counts, key=lambda pair: (-counts[pair], pair))
        merging.merge(*best, token)
    assert token > first + 20


def test_no_more_pairs_than_there_are():
    built = build_vocabulary(np.array([[0], [1]]), 2, np.array([0, 1]), np.array([0, 1]), 50)
    assert built.pairs.shape == (0, 2) and built.size == 3


def test_too_small_for_the_digits():
    sids, rows, user = reference.random_data(0)
    with pytest.raises(UserError, match="vocabulary_size"):
        build_vocabulary(sids, 4, rows, user, 5)


def test_cached(tmp_path, monkeypatch):
    sids, rows, user = reference.random_data(1)
    built = cached_vocabulary(tmp_path, sids, 4, rows, user, 40, False)
    another = cached_vocabulary(tmp_path, sids, 4, rows, user, 41, False)
    assert len(another.pairs) == len(built.pairs) + 1
    monkeypatch.setattr(module, "build_vocabulary", None)  # calling it would fail
    found = cached_vocabulary(tmp_path, sids, 4, rows, user, 40, False)
    assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(built, found))

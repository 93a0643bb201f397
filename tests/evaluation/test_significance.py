"""The paired t-test, against its textbook formula."""

import itertools

import numpy as np
import pytest
from scipy import stats

from recbole_diffgrm.evaluation.significance import correct_p_values, ndcg_at, paired_p_value

MISSED = np.iinfo(np.int32).max  # rank of a target that is not ranked


def test_ndcg_of_one_target():
    ranks = np.array([1, 2, 10, 11, MISSED], dtype=np.int32)
    assert ndcg_at(ranks).tolist() == pytest.approx([1, 1 / np.log2(3), 1 / np.log2(11), 0, 0])
    assert ndcg_at(ranks, 1).tolist() == [1, 0, 0, 0, 0]
    stored = ranks.clip(max=255).astype(np.uint8)  # as studies keep them
    assert (ndcg_at(stored) == ndcg_at(ranks)).all()


def test_p_value():
    rng = np.random.default_rng(0)
    first, second = rng.random(100), rng.random(100) + 0.1
    difference = first - second
    t = difference.mean() / (difference.std(ddof=1) / np.sqrt(100))
    assert paired_p_value(first, second) == pytest.approx(2 * stats.t.sf(abs(t), 99))
    assert paired_p_value(first, second) == pytest.approx(paired_p_value(second, first))


def test_p_value_without_variance():
    values = np.array([0.5, 0.25, 0.0])
    assert paired_p_value(values, values) == 1.0
    assert np.isnan(paired_p_value(values[:1], values[1:2]))
    assert np.isnan(paired_p_value(values, values + 0.5))


def test_corrected_p_values():
    """Holm's method is the closed test of Bonferroni's: of all sets of tests that a test is in, the least certain."""
    draw = np.random.default_rng(3)
    for count in (1, 2, 5):
        p_values = {f"m{number}": float(p) for number, p in enumerate(draw.random(count) ** 4)}
        corrected = correct_p_values(p_values)
        assert list(corrected) == list(p_values)
        for name in p_values:
            sets = [s for size in range(1, count + 1) for s in itertools.combinations(p_values, size) if name in s]
            expected = max(min(1.0, len(s) * min(p_values[other] for other in s)) for s in sets)
            assert corrected[name] == pytest.approx(expected, abs=1e-12)
    with_none = correct_p_values({"a": 0.03, "b": float("nan"), "c": 0.01})
    assert with_none["c"] == 0.02 and with_none["a"] == 0.03 and np.isnan(with_none["b"])
    assert correct_p_values({}) == {}

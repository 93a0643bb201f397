"""The paired t-test, against its textbook formula."""

import numpy as np
import pytest
from scipy import stats

from recbole_diffgrm.evaluation.significance import ndcg_at, paired_p_value

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

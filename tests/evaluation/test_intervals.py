"""Bootstrap intervals against a plain bootstrap that draws users one by one, and metrics against those of a test."""

import numpy as np
import pytest

from recbole_diffgrm.evaluation import intervals
from recbole_diffgrm.evaluation.intervals import bootstrap_intervals, metric_of_targets

MISSED = np.iinfo(np.int32).max


def plain_bootstrap(values: np.ndarray, users: np.ndarray, seed: int, draws: int = 4000) -> np.ndarray:
    draw = np.random.default_rng(seed)
    of_user = [np.flatnonzero(users == user) for user in np.unique(users)]
    means = []
    for _ in range(draws):
        chosen = np.concatenate([of_user[number] for number in draw.integers(len(of_user), size=len(of_user))])
        means.append(values[chosen].mean())
    return np.quantile(means, [0.025, 0.975])


@pytest.mark.parametrize("targets_per_user", [1, 3])
@pytest.mark.parametrize("most_kinds", [4000, 1], ids=["drawn", "normal"])
def test_intervals_are_those_of_a_plain_bootstrap(targets_per_user, most_kinds, monkeypatch):
    monkeypatch.setattr(intervals, "MOST_KINDS", most_kinds)
    draw = np.random.default_rng(1)
    users = np.repeat(np.arange(150), draw.integers(1, targets_per_user + 1, size=150)).astype(str)
    ranks = draw.integers(1, 30, size=len(users)).astype(np.int32)
    values = {name: metric_of_targets(name, ranks) for name in ("ndcg@10", "recall@10")}
    found = bootstrap_intervals(values, users)
    for name, of_targets in values.items():
        low, high = plain_bootstrap(of_targets, users, seed=2)
        width = high - low
        assert found[name] == pytest.approx((low, high), abs=0.06 * width)  # the error of drawing itself is about 0.03
        assert found[name][0] < of_targets.mean() < found[name][1]


def test_targets_of_one_user_are_drawn_together():
    values = np.repeat(np.random.default_rng(0).random(50), 8)
    together = bootstrap_intervals({"m": values}, np.repeat(np.arange(50), 8))["m"]
    apart = bootstrap_intervals({"m": values}, np.arange(400))["m"]
    assert np.diff(together) == pytest.approx(np.diff(apart) * np.sqrt(8), rel=0.1)


def test_the_same_interval_again_and_none_without_users():
    values = {"m": np.arange(20.0)}
    assert bootstrap_intervals(values, np.arange(20)) == bootstrap_intervals(values, np.arange(20))
    assert bootstrap_intervals({"m": np.zeros(0)}, np.zeros(0)) == {}
    assert bootstrap_intervals({"m": np.ones(5)}, np.arange(5)) == {"m": (1.0, 1.0)}


def test_metrics_of_one_target():
    ranks = np.array([1, 3, 10, 11, MISSED], dtype=np.int32)
    assert metric_of_targets("recall@10", ranks).tolist() == [1, 1, 1, 0, 0]
    assert metric_of_targets("precision@10", ranks).tolist() == pytest.approx([0.1, 0.1, 0.1, 0, 0])
    assert metric_of_targets("mrr@10", ranks).tolist() == pytest.approx([1, 1 / 3, 0.1, 0, 0])
    assert metric_of_targets("sid_ndcg@3", ranks).tolist() == pytest.approx([1, 0.5, 0, 0, 0])
    assert metric_of_targets("itemcoverage@10", ranks) is None and metric_of_targets("gauc", ranks) is None

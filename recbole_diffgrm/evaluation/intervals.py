"""How sure a test is of its means: 95 % intervals by the bootstrap over users.

A metric is a mean over test targets; users, not targets, are drawn, because what a model does for one target of a user
says something about the others.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from recbole_diffgrm.evaluation.significance import Floats, ndcg_at

Intervals = dict[str, tuple[float, float]]  # {name: (low, high)}

DRAWS = 2000
LEVEL = 0.95
NORMAL_LIMIT = 1.959964  # standard errors to either side that hold 95 %
MOST_KINDS = 4000  # of users; with more, drawing takes long, and comes to a normal distribution


def metric_of_targets(name: str, ranks: NDArray[Any]) -> Floats | None:
    """A metric such as ndcg@10 or sid_recall@5 for each target, from its rank (from 1); None for a metric that is not a
    mean over targets."""
    kind, _, cut_off = name.removeprefix("sid_").partition("@")
    if not cut_off.isdigit():
        return None
    k = int(cut_off)
    is_hit: Floats = (ranks <= k).astype(np.float64)
    if kind in ("recall", "hit"):  # the same for one target
        return is_hit
    if kind == "precision":
        return is_hit / k
    if kind in ("mrr", "map"):
        return is_hit / ranks.astype(np.float64)
    return ndcg_at(ranks, k) if kind == "ndcg" else None


def bootstrap_intervals(values: Mapping[str, Floats], users: NDArray[Any], seed: int = 0) -> Intervals:
    """Of the mean of each array of values [targets]. `users` [targets]: whose targets they are."""
    if len(users) == 0 or not values:
        return {}
    _, number, num_targets = np.unique(users, return_inverse=True, return_counts=True)
    sums = [np.bincount(number, weights=of_targets) for of_targets in values.values()]
    # Users with the same numbers are interchangeable: how often each kind of user is drawn is multinomial.
    of_users = pd.DataFrame(dict(enumerate([num_targets, *sums])))
    counted = of_users.groupby(list(of_users)).size()  # np.unique does the same, thirty times slower
    kinds, size = counted.index.to_frame().to_numpy(np.float64), counted.to_numpy()  # [kinds, 1 + metrics], [kinds]
    low, high = _normal_limits(kinds, size) if len(kinds) > MOST_KINDS else _drawn_limits(kinds, size, seed)
    return {name: (float(a), float(b)) for name, a, b in zip(values, low, high)}


def _drawn_limits(kinds: Floats, size: NDArray[Any], seed: int) -> Floats:
    """[2, metrics]"""
    drawn = np.random.default_rng(seed).multinomial(size.sum(), size / size.sum(), size=DRAWS)  # [draws, kinds]
    totals = drawn @ kinds  # [draws, 1 + metrics]
    limits: Floats = np.quantile(totals[:, 1:] / totals[:, :1], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return limits


def _normal_limits(kinds: Floats, size: NDArray[Any]) -> Floats:
    """What the draws of so many users come to: the standard error of a ratio of two sums."""
    num_targets, *sums = size @ kinds
    means = np.array(sums) / num_targets
    residuals = kinds[:, 1:] - kinds[:, :1] * means  # [kinds, metrics]
    error = NORMAL_LIMIT * np.sqrt(size @ residuals**2) / num_targets
    limits: Floats = np.stack([means - error, means + error])
    return limits

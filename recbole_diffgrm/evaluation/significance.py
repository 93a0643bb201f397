"""Whether two models differ: a paired t-test on the users' NDCG@10."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

TESTED_K = 10
TESTED_METRIC = f"ndcg@{TESTED_K}"


def ndcg_at(ranks: NDArray[Any], k: int = TESTED_K) -> Floats:
    """NDCG@k of each user: with one target it depends only on the target's rank (from 1)."""
    ranks = ranks.astype(np.float64)
    ndcg: Floats = np.where(ranks <= k, 1 / np.log2(ranks + 1), 0.0)
    return ndcg


def paired_p_value(first: Floats, second: Floats) -> float:
    """Two-sided p-value for equal means; 1 where the two never differ."""
    difference = first - second
    if np.all(difference == 0):
        return 1.0
    if len(difference) < 2 or np.ptp(difference) == 0:
        return float("nan")  # without variance there is no test
    from scipy import stats  # takes long to import

    return float(stats.ttest_rel(first, second).pvalue)


def correct_p_values(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's correction for several tests: the smallest p-value times their number, the next one times one fewer, ...,
    none smaller than one before it. NaN, where there was no test, stays."""
    tested = sorted((name for name in p_values if not math.isnan(p_values[name])), key=lambda name: p_values[name])
    corrected, largest = dict(p_values), 0.0
    for number, name in enumerate(tested):
        largest = max(largest, min(1.0, p_values[name] * (len(tested) - number)))
        corrected[name] = largest
    return corrected

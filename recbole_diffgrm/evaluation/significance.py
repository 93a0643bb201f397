"""Whether two models differ: a paired t-test on the users' NDCG@10."""

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

"""Whether two models differ: a paired t-test on the users' NDCG@10."""

import numpy as np
from scipy import stats

TESTED_K = 10


def ndcg_at(ranks: np.ndarray, k: int = TESTED_K) -> np.ndarray:
    """NDCG@k of each user; with one target it depends on the target's rank (from 1) alone."""
    ranks = ranks.astype(np.float64)
    return np.where(ranks <= k, 1 / np.log2(ranks + 1), 0.0)


def paired_p_value(first: np.ndarray, second: np.ndarray) -> float:
    """Two-sided p-value for equal means; 1 where the two never differ."""
    difference = first - second
    if np.all(difference == 0):
        return 1.0
    if len(difference) < 2 or np.ptp(difference) == 0:
        return float("nan")  # no spread, no test
    return float(stats.ttest_rel(first, second).pvalue)

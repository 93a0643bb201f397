"""RecBole's metrics of millions of targets: each has one target a row, so a metric depends on its rank alone.

RecBole computes a row for every target, in Python's loops (NDCG, MRR) and a matrix as wide as the longest list. Here
its metrics are asked once for each rank that occurs, and weighted by how often it does.
"""

from typing import Any

import numpy as np
import torch
from recbole.evaluator import Evaluator
from recbole.evaluator.collector import DataStruct
from torch import Tensor

ONLY_RANKS = ["rec.topk"]  # what RecBole's metrics of ranks need


def calculate_metrics(evaluator: Evaluator, ranks: Tensor, longest: int, collected: DataStruct) -> dict[str, float]:
    """All metrics of an evaluator, in its order. `ranks` [targets], from 1; lists are `longest` long. What metrics of
    other things need is in `collected`."""
    rank, count = torch.unique(ranks.clamp(max=longest + 1), return_counts=True)
    share = (count.double() / count.sum()).numpy()
    metrics: dict[str, float] = {}
    for name in evaluator.metrics:
        metric = evaluator.metric_class[name]
        if metric.metric_need == ONLY_RANKS:
            rows = [metric.calculate_metric(_hit_at(one, longest)) for one in rank.tolist()]
            metrics |= {key: float(share @ np.array([row[key] for row in rows])) for key in rows[0]}
        else:
            metrics |= {key: float(value) for key, value in metric.calculate_metric(collected).items()}
    return metrics


def _hit_at(rank: int, longest: int) -> Any:
    """RecBole's rec.topk of one target: [1, longest + 1], 1 at its rank, and the number of targets at the end."""
    hits = torch.zeros(1, longest + 1, dtype=torch.int32)
    hits[0, -1] = 1
    if rank <= longest:
        hits[0, rank - 1] = 1
    struct = DataStruct()
    struct.set("rec.topk", hits)
    return struct

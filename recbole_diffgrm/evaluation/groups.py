"""Metrics of one test by groups of targets: how long the user's history is, how often the target occurs in training."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recbole_diffgrm.evaluation.significance import TESTED_K, ndcg_at

# Smallest value of each group. Fixed, so that groups mean the same in every dataset.
EDGES = {"history_length": [1, 6, 11, 21, 51], "popularity": [0, 1, 6, 21, 101]}
TITLES = {
    "history_length": "history length (items before the target)",
    "popularity": "popularity (interactions of the target in training)",
}
NEW_ITEM = "0 (not in training)"

Numbers = NDArray[Any]
Groups = dict[str, list[dict[str, Any]]]  # {grouping: [{"group": "1-5", "targets": 3, "recall@10": 0.1, ...}, ...]}


def group_metrics(ranks: Numbers, values: dict[str, Numbers], topk: Sequence[int]) -> Groups:
    """From the rank of each target and, for each grouping of EDGES, a value of each target; groups without targets are
    left out. Always with NDCG@10, which tables show."""
    cut_offs = sorted({*topk, TESTED_K})
    groups: Groups = {}
    for grouping, of_targets in values.items():
        groups[grouping] = [
            {"group": name, "targets": int(is_member.sum()), **_metrics(ranks[is_member], cut_offs)}
            for name, is_member in split_targets(grouping, of_targets).items()
        ]
    return groups


def split_targets(grouping: str, of_targets: Numbers) -> dict[str, Numbers]:
    """{group: [targets] bool}, from a value of each target; groups without targets are left out."""
    edges = EDGES[grouping]
    number = np.searchsorted(edges, of_targets, side="right") - 1
    members = {name: number == index for index, name in enumerate(_names(edges))}
    return {name: is_member for name, is_member in members.items() if is_member.any()}


def _names(edges: Sequence[int]) -> list[str]:
    names = [f"{low}-{high - 1}" if high - 1 > low else str(low) for low, high in pairwise(edges)]
    return [NEW_ITEM if name == "0" else name for name in names] + [f"{edges[-1]}+"]


def _metrics(ranks: Numbers, topk: Sequence[int]) -> dict[str, float]:
    recall = {f"recall@{k}": float((ranks <= k).mean()) for k in topk}
    return recall | {f"ndcg@{k}": float(ndcg_at(ranks, k).mean()) for k in topk}

"""Metrics by group, against pandas."""

import numpy as np
import pandas as pd
import pytest

from recbole_diffgrm.evaluation.groups import group_metrics
from recbole_diffgrm.models.candidates import NOT_RANKED


def test_groups_against_pandas():
    draw = np.random.default_rng(0)
    ranks = np.where(draw.random(500) < 0.3, NOT_RANKED, draw.integers(1, 30, 500)).astype(np.int32)
    length, popularity = draw.integers(1, 80, 500), draw.integers(0, 30, 500)
    groups = group_metrics(ranks, {"history_length": length, "popularity": popularity}, [5, 20])
    table = pd.DataFrame({"length": length, "popularity": popularity, "rank": ranks})
    for k in (5, 10, 20):
        table[f"recall@{k}"] = (table["rank"] <= k) * 1.0
        table[f"ndcg@{k}"] = [1 / np.log2(rank + 1) if rank <= k else 0 for rank in ranks]
    bounds = {
        "history_length": (
            "length",
            {"1-5": (1, 5), "6-10": (6, 10), "11-20": (11, 20), "21-50": (21, 50), "51+": (51, 999)},
        ),
        "popularity": (
            "popularity",
            {"0 (not in training)": (0, 0), "1-5": (1, 5), "6-20": (6, 20), "21-100": (21, 100)},
        ),
    }
    assert list(groups) == list(bounds)
    for grouping, (column, of_groups) in bounds.items():
        assert [line["group"] for line in groups[grouping]] == list(of_groups)  # none for an empty group
        for line, (low, high) in zip(groups[grouping], of_groups.values()):
            chosen = table[table[column].between(low, high)]
            metrics = [f"{name}@{k}" for name in ("recall", "ndcg") for k in (5, 10, 20)]
            expected = {"targets": len(chosen), **{name: pytest.approx(chosen[name].mean()) for name in metrics}}
            assert {key: value for key, value in line.items() if key != "group"} == expected
        assert sum(line["targets"] for line in groups[grouping]) == 500

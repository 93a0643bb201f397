"""Metrics from how often each rank occurs, against RecBole's own way."""

import pytest
import torch
from recbole.evaluator import Evaluator
from recbole.evaluator.collector import DataStruct

from recbole_diffgrm.evaluation.rank_metrics import calculate_metrics
from recbole_diffgrm.models.candidates import NOT_RANKED

METRICS = ["NDCG", "ItemCoverage", "Recall", "MRR", "Hit", "Precision", "MAP", "GiniIndex"]


@pytest.mark.parametrize("num_targets", [1, 500])
@pytest.mark.parametrize("topk", [[1], [3, 10]])
def test_as_recbole(num_targets, topk):
    longest = max(topk)
    generator = torch.Generator().manual_seed(0)
    ranks = torch.randint(1, 15, (num_targets,), generator=generator, dtype=torch.int32)
    ranks[::7] = NOT_RANKED
    collected = DataStruct()
    collected.set("rec.items", torch.randint(1, 30, (num_targets, longest), generator=generator))
    collected.set("data.num_items", 30)
    evaluator = Evaluator({"metrics": METRICS, "topk": topk, "metric_decimal_place": 30})
    found = calculate_metrics(evaluator, ranks, longest, collected)
    hits = (ranks[:, None] == torch.arange(1, longest + 1)).int()
    collected.set("rec.topk", torch.cat((hits, torch.ones(num_targets, 1, dtype=torch.int32)), 1))
    expected = evaluator.evaluate(collected)
    assert list(found) == list(expected)
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-15)

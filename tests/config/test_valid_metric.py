"""Metrics, and weighted sums of them, that select the best epoch."""

import pytest

from recbole_diffgrm import UserError
from recbole_diffgrm.config.valid_metric import parse_valid_metric


def test_sums_of_metrics():
    names = ["NDCG@10", "Recall@10"]
    metrics = {"ndcg@10": 0.03, "recall@10": 0.07}
    assert parse_valid_metric("ndcg@10", names).score(metrics) == 0.03
    assert parse_valid_metric("0.8*NDCG@10+0.2*Recall@10", names).score(metrics) == pytest.approx(0.038)
    assert parse_valid_metric("NDCG@10 - .5 * Recall@10", names).score(metrics) == pytest.approx(-0.005)
    with pytest.raises(UserError, match="-GiniIndex@10"):
        parse_valid_metric("GiniIndex@10", ["GiniIndex@10"], ["giniindex"])
    assert parse_valid_metric("-GiniIndex@10", ["GiniIndex@10"], ["giniindex"]).score({"giniindex@10": 1}) == -1
    for text in ("NDCG@10+", "2*", "NDCG@10**2", "NDCG@10 Recall@10", "NDCG@20", "__import__('os')"):
        with pytest.raises(UserError, match="valid_metric"):
            parse_valid_metric(text, names)

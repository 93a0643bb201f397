"""Ranks, lists and metrics against slow references and RecBole's own collector."""

import numpy as np
import pytest
import torch
from recbole.evaluator import Collector, Evaluator
from scipy import stats

from recbole_diffgrm import UserError
from recbole_diffgrm.config.config import build_config
from recbole_diffgrm.config.valid_metric import parse_valid_metric
from recbole_diffgrm.data.dataset import FlatSequentialDataset
from recbole_diffgrm.data.loader import EvalLoader
from recbole_diffgrm.decoding.scores import mask_scores, top_items
from recbole_diffgrm.evaluation.evaluate import evaluate, evaluate_rankings
from recbole_diffgrm.evaluation.ranking import NOT_RANKED, target_ranks
from recbole_diffgrm.evaluation.significance import ndcg_at, paired_p_value


def ranking(row) -> list[int]:
    """Slow reference: higher score first, then the smaller id; -inf is not ranked."""
    return sorted((i for i in range(len(row)) if row[i] > -np.inf), key=lambda i: (-row[i], i))


@pytest.mark.parametrize("levels", [2, 4, 1000])
def test_ranks_and_lists_with_ties(levels):
    generator = torch.Generator().manual_seed(levels)
    scores = torch.randint(levels, (40, 23), generator=generator).float()
    seen = (torch.randint(40, (300,), generator=generator), torch.randint(23, (300,), generator=generator))
    mask_scores(scores, seen)
    target = torch.randint(1, 23, (40,), generator=generator)
    ranks = target_ranks(scores, target)
    for k in (1, 5, 22, 23, 50):
        lists = top_items(scores, k)
        for row in range(40):
            expected = ranking(scores[row].tolist())
            assert lists[row].tolist() == (expected[:k] + [0] * 23)[: min(k, 23)]
    for row in range(40):
        expected = ranking(scores[row].tolist())
        place = expected.index(int(target[row])) + 1 if int(target[row]) in expected else NOT_RANKED
        assert int(ranks[row]) == place


class Fixed(torch.nn.Module):
    """A model whose scores are given."""

    def __init__(self, scores):
        super().__init__()
        self.scores = scores

    def full_sort_predict(self, interaction):
        return self.scores[interaction["user_id"]].clone()


def setting(tiny, **overrides):
    overrides = {"data_path": str(tiny), "show_progress": False, "eval_batch_size": 13, **overrides}
    config = build_config("SASRec", "tiny", [tiny / "tiny.yaml"], overrides)
    dataset = FlatSequentialDataset(config)
    train, _, test = dataset.build()
    scores = torch.randn(dataset.user_num, dataset.item_num, generator=torch.Generator().manual_seed(5))
    return config, train, test, Fixed(scores)


def test_metrics_are_recboles(tiny):
    metrics = ["Recall", "MRR", "NDCG", "Hit", "Precision", "MAP"]
    config, _, test, model = setting(tiny, metrics=metrics, topk=[1, 5, 10], valid_metric="MRR@5")
    ours = evaluate(config, model, EvalLoader(config, test, trim=True))

    collector = Collector(config)
    users, targets = test.inter_feat["user_id"], test.inter_feat["item_id"]
    scores = model.scores[users].clone()
    scores[:, 0] = -np.inf
    collector.eval_batch_collect(scores, None, torch.arange(len(users)), targets)
    theirs = Evaluator(config).evaluate(collector.get_data_struct())
    assert ours.metrics == pytest.approx(theirs, abs=1e-12)
    assert set(ours.metrics) == {f"{metric.lower()}@{k}" for metric in metrics for k in (1, 5, 10)}
    assert ours.metrics["ndcg@10"] == pytest.approx(ndcg_at(ours.ranks.numpy()).mean(), abs=1e-12)


def test_metrics_that_crash_in_recbole(tiny):
    """ItemCoverage and relatives need the lists themselves."""
    names = ["ItemCoverage", "AveragePopularity", "GiniIndex", "ShannonEntropy", "TailPercentage"]
    config, train, test, model = setting(tiny, metrics=[*names, "NDCG"])
    from collections import Counter

    counts = Counter(train.inter_feat["item_id"].tolist())
    done = evaluate(config, model, EvalLoader(config, test, True, counts), keep=10)
    assert done.metrics["itemcoverage@10"] == len(set(done.top.flatten().tolist())) / test.item_num
    popularity = np.mean([[counts[item] for item in row] for row in done.top.tolist()])
    assert done.metrics["averagepopularity@10"] == pytest.approx(popularity)


def test_history_is_left_out_on_request(tiny):
    config, _, test, model = setting(tiny, repeatable=False)
    kept = evaluate(config, model, EvalLoader(config, test, trim=True), keep=20)
    flat = test.inter_feat.flat
    for number, row in enumerate(test.inter_feat.rows.tolist()):
        user = int(flat.user[row])
        history = {int(flat.item[r]) for r in range(row) if int(flat.user[r]) == user}
        scores = model.scores[user].tolist()
        expected = [item for item in ranking(scores) if item != 0 and item not in history]
        assert kept.top[number].tolist() == expected[:20]
        target = int(flat.item[row])
        assert int(kept.ranks[number]) == (expected.index(target) + 1 if target in expected else NOT_RANKED)
    stock = evaluate(*(lambda c, _, t, m: (c, m, EvalLoader(c, t, trim=True)))(*setting(tiny)))
    assert (stock.ranks >= kept.ranks.where(kept.ranks != NOT_RANKED, 0)).all()
    assert (stock.ranks > kept.ranks).any()


def test_both_rankings_of_one_pass(tiny):
    config, _, test, model = setting(tiny)
    everything, new = evaluate_rankings(config, model, EvalLoader(config, test, trim=True), [False, True], keep=20)
    for one, repeatable in ((everything, True), (new, False)):
        config, _, test, model = setting(tiny, repeatable=repeatable)
        alone = evaluate(config, model, EvalLoader(config, test, trim=True), keep=20)
        assert one.metrics == alone.metrics
        assert torch.equal(one.ranks, alone.ranks)
        assert one.top is None if one is new else torch.equal(one.top, alone.top)  # lists are those of the first
    with pytest.raises(ValueError, match="come first"):
        evaluate_rankings(config, model, EvalLoader(config, test, trim=True), [True, False])


def test_batches_do_not_change_the_result(tiny):
    results = []
    for size in (1, 7, 4096):
        config, _, test, model = setting(tiny, eval_batch_size=size)
        results.append(evaluate(config, model, EvalLoader(config, test, trim=size == 7), keep=5))
    for other in results[1:]:
        assert torch.equal(results[0].ranks, other.ranks)
        assert torch.equal(results[0].top, other.top)
        assert results[0].metrics == other.metrics


def test_valid_metric_sums():
    names = ["NDCG@10", "Recall@10"]
    metrics = {"ndcg@10": 0.03, "recall@10": 0.07}
    assert parse_valid_metric("ndcg@10", names).score(metrics) == 0.03
    assert parse_valid_metric("0.8*NDCG@10+0.2*Recall@10", names).score(metrics) == pytest.approx(0.038)
    assert parse_valid_metric("NDCG@10 - .5 * Recall@10", names).score(metrics) == pytest.approx(-0.005)
    with pytest.raises(UserError, match="write -GiniIndex@10"):
        parse_valid_metric("GiniIndex@10", ["GiniIndex@10"], ["giniindex"])
    assert parse_valid_metric("-GiniIndex@10", ["GiniIndex@10"], ["giniindex"]).score({"giniindex@10": 1}) == -1
    for text in ("NDCG@10+", "2*", "NDCG@10**2", "NDCG@10 Recall@10", "NDCG@20", "__import__('os')"):
        with pytest.raises(UserError, match="valid_metric"):
            parse_valid_metric(text, names)


def test_paired_t_test():
    generator = np.random.default_rng(0)
    first, second = generator.random(100), generator.random(100)
    difference = first - second
    t = difference.mean() / (difference.std(ddof=1) / 10)
    assert paired_p_value(first, second) == pytest.approx(2 * stats.t.sf(abs(t), 99))
    assert paired_p_value(first, first) == 1.0
    assert np.isnan(paired_p_value(first[:1], second[:1]))
    assert ndcg_at(np.array([1, 2, 10, 11, NOT_RANKED])).tolist() == pytest.approx(
        [1, 1 / np.log2(3), 1 / np.log2(11), 0, 0]
    )

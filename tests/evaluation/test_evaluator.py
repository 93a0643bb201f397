"""Ranks, lists and metrics of one pass, against slow references and RecBole's own collector."""

import numpy as np
import pytest
import torch
from recbole.evaluator import Collector, Evaluator

from recbole_diffgrm.config.protocol import parse_mode
from recbole_diffgrm.data.loader import EvalLoader
from recbole_diffgrm.data.negatives import sample_negatives
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.evaluation import evaluator
from recbole_diffgrm.evaluation.evaluator import asked_ranking, evaluate
from recbole_diffgrm.evaluation.significance import ndcg_at
from recbole_diffgrm.models.base import ModelInterface
from recbole_diffgrm.models.candidates import NOT_RANKED, ItemScores
from recbole_diffgrm.progress import progress_bar
from tests.conftest import Tiny, build_tiny


class FixedScores(ModelInterface, torch.nn.Module):
    """A model whose scores are given."""

    def __init__(self, scores):
        super().__init__()
        self.scores = scores

    def candidates(self, batch, depth, validation=False):
        return ItemScores(self.scores[batch["user_id"]].clone())


def build(options: dict, **changes) -> Tiny:
    """With random scores instead of SASRec's."""
    made = build_tiny({**options, "eval_batch_size": 13, **changes}, "SASRec")
    dataset = made.split.dataset
    scores = torch.randn(dataset.user_num, dataset.item_num, generator=torch.Generator().manual_seed(5))
    return made._replace(model=FixedScores(scores))


def test_metrics_are_recboles(options):
    metrics = ["Recall", "MRR", "NDCG", "Hit", "Precision", "MAP"]
    config, split, model, loader = build(options, metrics=metrics, topk=[1, 5, 10], valid_metric="MRR@5")
    ours = evaluate(config, model, loader)["all"]

    collector = Collector(config)
    samples = split.test.inter_feat
    scores = model.scores[samples["user_id"]].clone()
    scores[:, 0] = -np.inf
    collector.eval_batch_collect(scores, None, torch.arange(len(samples)), samples["item_id"])
    theirs = Evaluator(config).evaluate(collector.get_data_struct())
    assert ours.metrics == pytest.approx(theirs, abs=1e-12)
    assert set(ours.metrics) == {f"{metric.lower()}@{k}" for metric in metrics for k in (1, 5, 10)}
    assert ours.metrics["ndcg@10"] == pytest.approx(ndcg_at(ours.ranks.numpy()).mean(), abs=1e-12)
    assert ours.sid_ranks is None and ours.sid_shares == {}


def test_metrics_that_crash_in_recbole(options):
    """ItemCoverage and relatives need the lists themselves."""
    names = ["ItemCoverage", "AveragePopularity", "GiniIndex", "ShannonEntropy", "TailPercentage"]
    config, split, model, loader = build(options, metrics=[*names, "NDCG"])
    counts = split.target_counts
    assert counts == {item: n for item, n in enumerate(np.bincount(split.train.inter_feat["item_id"])) if n}
    evaluation = evaluate(config, model, loader, save_top=10)["all"]
    num_items = split.test.item_num
    assert evaluation.metrics["itemcoverage@10"] == len(set(evaluation.top.flatten().tolist())) / num_items
    popularity = np.mean([[counts[item] for item in row] for row in evaluation.top.tolist()])
    assert evaluation.metrics["averagepopularity@10"] == pytest.approx(popularity)
    assert evaluate(config, model, loader)["all"].metrics == evaluation.metrics  # no lists asked for


def test_gauc_is_recboles(options):
    config, split, model, loader = build(options, metrics=["GAUC", "NDCG"], valid_metric="GAUC")
    both = evaluate(config, model, loader, ["all", "unseen"])
    collector = Collector(config)
    samples = split.test.inter_feat
    scores = model.scores[samples["user_id"]].clone()
    scores[:, 0] = -np.inf
    collector.eval_batch_collect(scores, None, torch.arange(len(samples)), samples["item_id"])
    theirs = Evaluator(config).evaluate(collector.get_data_struct())
    assert both["all"].metrics["gauc"] == pytest.approx(theirs["gauc"], abs=1e-6)  # RecBole's is in float32
    shares = []  # of the ranked items that come after the target
    for number, row in enumerate(samples.rows.tolist()):
        position, target = int(samples.flat.position[row]), int(samples.flat.item[row])
        history = set(samples.flat.item[row - position : row].tolist())
        others = [item for item in range(1, scores.shape[1]) if item != target and item not in history]
        after = np.mean([bool(scores[number, item] < scores[number, target]) for item in others])
        shares.append(0 if target in history else after)
    assert both["unseen"].metrics["gauc"] == pytest.approx(np.mean(shares))
    assert 0 in shares


@pytest.mark.parametrize("model", ["HistoryCopy", "DiffGRM"])
def test_gauc_of_models_that_generate(options, model):
    """In the order of full_sort_predict: what was not generated follows by popularity."""
    config, split, model, loader = build_tiny(options, model, metrics=["GAUC"], topk=[5], valid_metric="GAUC")
    ours = evaluate(config, model, loader)["all"].metrics["gauc"]
    samples = split.test.inter_feat
    with torch.inference_mode():
        scores = model.full_sort_predict(samples[range(len(samples))])
    own = scores.gather(1, samples["item_id"][:, None])
    assert ours == pytest.approx(float(((scores[:, 1:] < own).sum(1) / (scores.shape[1] - 2)).mean()))


def test_against_sampled_items(options):
    config, split, model, _ = build(options, metrics=["NDCG", "GAUC"], topk=[1, 3], valid_metric="NDCG@3")
    negatives = sample_negatives(split.test.inter_feat, split.popularity, parse_mode("uni9"), 1)
    for size, trim in ((7, True), (4096, False)):
        loader = EvalLoader(config, split.test, trim, size, negatives=negatives)
        evaluated = evaluate(config, model, loader, ["all", "unseen"])
        samples = split.test.inter_feat
        for number, (user, target) in enumerate(zip(samples["user_id"].tolist(), samples["item_id"].tolist())):
            scores = model.scores[user]
            rank = 1 + sum(float(scores[item]) > float(scores[target]) for item in negatives[number].tolist())
            assert int(evaluated["all"].ranks[number]) == rank
            row = int(samples.rows[number])
            position = int(samples.flat.position[row])
            is_seen = target in samples.flat.item[row - position : row].tolist()
            assert int(evaluated["unseen"].ranks[number]) == (NOT_RANKED if is_seen else rank)
        ranks = evaluated["all"].ranks.numpy()
        assert evaluated["all"].metrics["ndcg@3"] == pytest.approx(ndcg_at(ranks, 3).mean())
        assert evaluated["all"].metrics["gauc"] == pytest.approx(((10 - ranks) / 9).mean())


def test_seen_items_are_filtered_on_request(options):
    config, split, model, loader = build(options, repeatable=False)
    assert asked_ranking(config) == "unseen"
    evaluated = evaluate(config, model, loader, save_top=20)
    assert list(evaluated) == ["unseen"]
    unseen, flat = evaluated["unseen"], split.test.inter_feat.flat
    for number, row in enumerate(split.test.inter_feat.rows.tolist()):
        user = int(flat.user[row])
        history = {int(flat.item[r]) for r in range(row) if int(flat.user[r]) == user}
        scores = model.scores[user].tolist()
        ranked = sorted(set(range(1, len(scores))) - history, key=lambda item: (-scores[item], item))
        assert unseen.top[number].tolist() == ranked[:20]
        target = int(flat.item[row])
        assert int(unseen.ranks[number]) == (ranked.index(target) + 1 if target in ranked else NOT_RANKED)
    of_all = evaluate(config, model, loader, ["all"])["all"]
    assert (of_all.ranks >= unseen.ranks.where(unseen.ranks != NOT_RANKED, 0)).all()
    assert (of_all.ranks > unseen.ranks).any()


@pytest.mark.parametrize("rankings", [["all", "unseen"], ["unseen", "all"]])
def test_both_rankings_of_one_pass(options, rankings):
    config, _, model, loader = build(options)
    both = evaluate(config, model, loader, rankings, save_top=20)
    assert list(both) == rankings
    for ranking in rankings:
        config, _, model, loader = build(options, repeatable=ranking == "all")
        alone = evaluate(config, model, loader, save_top=20)[ranking]
        assert both[ranking].metrics == alone.metrics
        assert torch.equal(both[ranking].ranks, alone.ranks)
        assert both[ranking].named_ranks(ranking).keys() == {f"item_{ranking}"}
        if ranking == rankings[0]:
            assert torch.equal(both[ranking].top, alone.top)
        else:
            assert both[ranking].top is None  # lists are those of the first


def test_batches_do_not_change_the_result(options):
    results = []
    for size, trim in ((1, False), (7, True), (4096, False)):
        config, split, model, _ = build(options)
        results.append(evaluate(config, model, EvalLoader(config, split.test, trim, size), save_top=5)["all"])
    for other in results[1:]:
        assert torch.equal(results[0].ranks, other.ranks)
        assert torch.equal(results[0].top, other.top)
        assert results[0].metrics == other.metrics


@pytest.mark.parametrize(
    ("changes", "save_top", "depth"), [({}, 0, 10), ({"topk": [3], "valid_metric": "NDCG@3"}, 0, 10), ({}, 25, 25)]
)
def test_how_deep_a_model_has_to_rank(options, changes, save_top, depth):
    """As deep as metrics, the significance test and saved lists go."""
    config, _, model, loader = build(options, **changes)
    asked = []
    scored = model.candidates
    model.candidates = lambda batch, depth, validation: asked.append((depth, validation)) or scored(batch, depth)
    evaluate(config, model, loader, ["all", "unseen"], save_top, validation=True)
    assert set(asked) == {(depth, True)} and len(asked) == 5  # once per batch for both rankings


def test_the_bar_counts_targets(options, monkeypatch):
    bars = []

    def bar(**settings):
        bars.append(progress_bar(**{**settings, "show": True}))
        return bars[-1]

    monkeypatch.setattr(evaluator, "progress_bar", bar)
    config, _, model, loader = build(options, eval_batch_size=25)
    evaluate(config, model, loader, label="test")
    assert (bars[0].n, bars[0].total, bars[0].unit, bars[0].desc) == (60, 60, "target", "test")


def test_a_signal_stops_between_batches(options):
    config, _, model, loader = build(options)
    asked = []

    def check_stop():
        asked.append(1)
        if len(asked) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(config, model, loader, check_stop=check_stop)
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *(("DiffGRM", {"decoding": decoding}) for decoding in ("constrained", "unconstrained", "fixed_order")),
        *[("DiffGRM", {"decoding": "unconstrained_greedy_last"}), ("DiffGRM", {"item_head": True})],
        ("DiffGRM", {"item_head": True, "item_scoring": "generated"}),
        *((name, {}) for name in ("TIGER", "ActionPiece", "ARM", "RPG", "HSTU", "VQRec", "RecJPQ", "SASRec")),
        *[("RPG", {"scoring": "graph", "graph_beams": 12}), ("RecJPQ", {"scoring": "prune"})],
    ],
)
def test_scores_that_are_not_finite_are_an_error(options, name, changes):
    """Whatever ranks them would put a target behind all of them, or nothing before it."""
    config, _, model, loader = build_tiny(options, name, **changes)
    model.finish_training()
    evaluate(config, model, loader)
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, torch.nan)
    with pytest.raises(UserError, match=r"NaN.*: lower learning_rate or set clip_grad_norm"):
        evaluate(config, model, loader)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_one_user_without_finite_scores_is_enough(options, value):
    config, _, model, loader = build(options)
    model.scores[3, 5 if value != -torch.inf else slice(None)] = value
    with pytest.raises(UserError, match="scores are NaN or infinite in evaluation"):
        evaluate(config, model, loader)


def test_items_that_cannot_be_recommended_are_none_of_that(options):
    config, split, model, loader = build(options)
    model.scores[:, 7] = -torch.inf
    ranks = evaluate(config, model, loader)["all"].ranks
    assert ((ranks == NOT_RANKED) == (split.test.inter_feat["item_id"] == 7)).all()

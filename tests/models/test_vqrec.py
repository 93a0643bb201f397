"""VQ-Rec: its size, its loss against a slow reference, and what it recommends."""

import math

import pytest
import torch

from recbole_diffgrm import Recommender, run
from recbole_diffgrm.data.loader import TrainLoader
from tests.conftest import build_tiny


@pytest.fixture
def options(options, tmp_path):
    codes = {"sid_quantizer": "random", "sid_num_digits": 4, "sid_codebook_size": 8}
    network = {"hidden_size": 16, "inner_size": 8, "n_layers": 2, "n_heads": 2}
    return {**options, **codes, **network, "cache_dir": str(tmp_path / "cache")}


def item_vectors(model) -> torch.Tensor:
    """[N + 1, d], the slow way."""
    sids = model.semantic_ids.lookup(torch.arange(model.n_items)).tolist()
    rows = [[model.code_embedding[digit, code] for digit, code in enumerate(sid)] for sid in sids]
    return torch.stack([torch.stack(row).mean(dim=0) for row in rows])


def cosine(a, b) -> float:
    return (a @ b / (a.norm() * b.norm())).item()


def test_published_size(options):
    """1.05 M; a table of 32 x 256 codes has no rows for padding."""
    options |= {"hidden_size": 300, "inner_size": 256, "MAX_ITEM_LIST_LENGTH": 50}
    model = build_tiny(options, "VQRec", sid_num_digits=32, sid_codebook_size=256).model
    d, inner = 300, 256
    layer = 4 * (d * d + d) + (d * inner + inner) + (inner * d + d) + 2 * 2 * d
    body = sum(parameter.numel() for parameter in model.parameters()) - model.code_embedding.numel()
    assert body == 2 * layer + 50 * d + 2 * d == 1_048_712
    assert model.code_embedding.numel() == 32 * 256 * 300


@torch.inference_mode()
@pytest.mark.parametrize("sample_unit", ["sequence", "prefix"])
def test_loss_is_a_softmax_of_cosines(options, sample_unit):
    config, split, model, _ = build_tiny(options, "VQRec", sample_unit=sample_unit)
    batch = next(TrainLoader(config, split.train, trim=True).batches(epoch=0))
    states, targets, items = model._encode(batch), model.targets(batch), item_vectors(model)
    losses = []
    for row, position, target in zip(*map(torch.Tensor.tolist, targets)):
        scores = [cosine(states[row, position], items[item]) / 0.07 for item in range(1, model.n_items)]
        losses.append(math.log(sum(map(math.exp, scores))) - scores[target - 1])
    output = model.losses(batch)
    assert output.num_targets == len(losses)
    assert output.parts["item"].item() == pytest.approx(sum(losses) / len(losses))


@torch.inference_mode()
def test_padding_is_never_recommended(options):
    _, _, model, loader = build_tiny(options, "VQRec")
    batch = next(iter(loader))[1].interaction
    candidates = model.candidates(batch, 10)
    state, items = model._encode(batch)[0, batch["item_length"][0] - 1], item_vectors(model)
    expected = [cosine(state, item) / 0.07 for item in items[1:]]
    assert candidates.dense_scores()[0].tolist() == [-math.inf, *(pytest.approx(score) for score in expected)]
    ranked = candidates.top_k(model.n_items - 1).items
    assert sorted(ranked[0].tolist()) == list(range(1, model.n_items))


def test_every_weight_is_trained(options):
    config, split, model, _ = build_tiny(options, "VQRec")
    model.losses(next(TrainLoader(config, split.train, trim=True).batches(epoch=0))).parts["item"].backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


def test_it_runs_and_recommends(options):
    result = run("VQRec", "tiny", options.pop("config_files"), **options)
    assert "sid_recall@10" in result.test["all"]
    recommended = Recommender.load(result.run_dir).recommend([["i1", "i2"], ["i5"]], k=3)
    assert [len(items) for items in recommended] == [3, 3]

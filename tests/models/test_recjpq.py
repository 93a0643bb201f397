"""RecJPQ: its size, its losses against slow references, and the same ranking by both searches."""

import math

import pytest
import torch
from recbole.data.interaction import Interaction

from recbole_diffgrm import Recommender, UserError, run
from recbole_diffgrm.data.loader import TrainLoader
from recbole_diffgrm.models.recjpq import PrunedItems
from tests.conftest import build_tiny


@pytest.fixture
def options(options, tmp_path):
    codes = {"sid_quantizer": "random", "sid_num_digits": 4, "sid_codebook_size": 8}
    return {**options, **codes, "hidden_size": 16, "n_layers": 2, "cache_dir": str(tmp_path / "cache")}


def first_batch(config, split):
    return next(TrainLoader(config, split.train, trim=True).batches(epoch=0))


def test_published_size(options):
    """2.73 M with histories of 200 items, and 131,072 of the codes."""
    options |= {"hidden_size": 512, "MAX_ITEM_LIST_LENGTH": 200}
    model = build_tiny(options, "RecJPQ", sid_num_digits=8, sid_codebook_size=256).model
    assert model.item_embedding.weight.numel() == 131_072
    body = sum(parameter.numel() for parameter in model.parameters()) - 131_072
    d = 512
    layer = 3 * (d * d + d) + 2 * (d * d + d) + 2 * 2 * d
    assert body == 2 * layer + 200 * d + 2 * d == 2_734_080


@torch.inference_mode()
def test_positions_count_from_the_end(options):
    """The last item of every history has the last position."""
    model = build_tiny(options, "RecJPQ").model
    batch = Interaction({"item_id_list": torch.tensor([[3, 0], [4, 5]]), "item_length": torch.tensor([1, 2])})
    before = model._encode(batch)
    model.position_embedding[-2] += torch.arange(16)
    after = model._encode(batch)
    torch.testing.assert_close(after[0, 0], before[0, 0])
    assert not torch.allclose(after[1, 0], before[1, 0])
    model.position_embedding[-1] += torch.arange(16)
    assert not torch.allclose(model._encode(batch)[0, 0], before[0, 0])


@torch.inference_mode()
def test_softmax_loss(options):
    config, split, model, _ = build_tiny(options, "RecJPQ", loss_type="CE")
    batch = first_batch(config, split)
    states, targets = model._encode(batch), model.targets(batch)
    items = model.item_embedding(model.semantic_ids.lookup(torch.arange(model.n_items)))
    losses = []
    for row, position, target in zip(*map(torch.Tensor.tolist, targets)):
        scores = [(states[row, position] @ items[item]).item() for item in range(1, model.n_items)]
        losses.append(math.log(sum(map(math.exp, scores))) - scores[target - 1])
    output = model.losses(batch)
    assert output.num_targets == len(losses)
    assert output.parts["item"].item() == pytest.approx(sum(losses) / len(losses))


@torch.inference_mode()
@pytest.mark.parametrize("sample_unit", ["sequence", "prefix"])
def test_binary_loss(options, sample_unit):
    config, split, model, _ = build_tiny(options, "RecJPQ", loss_type="BCE", sample_unit=sample_unit)
    batch = first_batch(config, split)
    states, targets = model._encode(batch), model.targets(batch)
    items = model.item_embedding(model.semantic_ids.lookup(torch.arange(model.n_items)))
    torch.manual_seed(5)
    negatives = torch.randint(1, model.n_items, (len(targets.item),)).tolist()
    losses = []
    for row, position, target, negative in zip(*map(torch.Tensor.tolist, targets), negatives):
        chance = [1 / (1 + math.exp(-(states[row, position] @ items[item]).item())) for item in (target, negative)]
        losses.append(-(math.log(chance[0]) + math.log(1 - chance[1])) / 2)
    torch.manual_seed(5)
    assert model.losses(batch).parts["item"].item() == pytest.approx(sum(losses) / len(losses))


@torch.inference_mode()
@pytest.mark.parametrize("filters", [False, True])
def test_both_searches_rank_the_same(options, filters):
    options |= {"sid_codebook_size": 2}  # many items share codes, so that there are ties
    _, _, model, loader = build_tiny(options, "RecJPQ")
    for _, (batch, target, seen, _) in loader:
        exclude = seen if filters else None
        everything = model.candidates(batch, 10)
        model.scoring = "prune"
        pruned = model.candidates(batch, 10)
        assert isinstance(pruned, PrunedItems)
        assert not isinstance(model.candidates(batch, 10, validation=True), PrunedItems)
        model.scoring = "pqtopk"
        for k in (1, 10, model.n_items - 1):
            expected, found = everything.top_k(k, exclude), pruned.top_k(k, exclude)
            assert torch.equal(found.items, expected.items)
            torch.testing.assert_close(found.scores, expected.scores)
        assert torch.equal(pruned.target_rank(target, exclude), everything.target_rank(target, exclude))
        assert torch.equal(pruned.sid_target_rank(target, exclude), everything.sid_target_rank(target, exclude))
        assert pruned.count_sids(target, 10, exclude) == everything.count_sids(target, 10, exclude)
        assert torch.equal(pruned.dense_scores(), everything.dense_scores())


def test_width_must_be_a_multiple_of_the_digits(options):
    with pytest.raises(UserError, match=r"hidden_size \(16\) must be a multiple of the 3 digits"):
        build_tiny(options, "RecJPQ", sid_num_digits=3)


@pytest.mark.parametrize("changes", [{"loss_type": "CE"}, {"sid_quantizer": "svd"}], ids=str)
def test_it_runs_and_recommends(options, changes):
    settings = {**options, **changes}
    result = run("RecJPQ", "tiny", settings.pop("config_files"), **settings)
    assert "sid_recall@10" in result.test["all"]
    histories = [["i1", "i2"], ["i5"]]
    recommended = Recommender.load(result.run_dir).recommend(histories, k=3)
    pruned = Recommender.load(result.run_dir, scoring="prune").recommend(histories, k=3)
    assert [[item.item for item in items] for items in pruned] == [
        [item.item for item in items] for items in recommended
    ]

"""What RecBole's models compute does not change with how they are fed or patched."""

import copy
import importlib
import inspect
import math
import random

import pytest
import torch
from torch import nn

from recbole_diffgrm import UserError, checkpoint
from recbole_diffgrm.data.loader import TrainLoader
from recbole_diffgrm.models import build_config, get_model
from recbole_diffgrm.models.recbole import VARIABLE_LENGTH
from tests.conftest import Tiny, build_tiny

LENGTH = 12


def build(options: dict, name: str, **changes) -> Tiny:
    """In single precision and with RecBole's own initial weights, as it is trained."""
    settings = {**options, "MAX_ITEM_LIST_LENGTH": LENGTH, **changes}
    made = build_tiny(settings, name, seed=1, std=None)
    made.model.float()
    return made


def short_histories(samples, count: int) -> torch.Tensor:
    """Sample numbers; there is padding to trim off."""
    return torch.argsort(samples["item_length"])[:count]


@pytest.mark.parametrize("name", sorted(VARIABLE_LENGTH))
def test_trimmed_and_padded_histories_score_the_same(options, name):
    made = build(options, name)
    model, samples = made.model, made.split.test.inter_feat
    assert model.variable_length
    model.train_stage = "finetune"  # S3Rec
    index = short_histories(samples, 20)
    trimmed, padded = samples.cut(index), samples.cut(index, LENGTH)
    assert trimmed["item_id_list"].shape[1] < padded["item_id_list"].shape[1]
    with torch.no_grad():
        torch.testing.assert_close(model.full_sort_predict(trimmed), model.full_sort_predict(padded), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["SASRec", "GRU4Rec", "FDSA"])
def test_trimmed_and_padded_histories_give_the_same_gradients(options, name):
    made = build(options, name)
    model, samples = made.model, made.split.test.inter_feat
    index = short_histories(samples, 20)
    gradients = []
    for batch in (samples.cut(index), samples.cut(index, LENGTH)):
        model.zero_grad()
        model.calculate_loss(batch).backward()
        gradients.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    for parameter, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][parameter], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", ["SASRec", "BERT4Rec", "GRU4Rec", "HGN", "FDSA"])
def test_a_score_does_not_depend_on_the_batch(options, name):
    made = build(options, name)
    model, samples = made.model, made.split.test.inter_feat
    width = None if model.variable_length else LENGTH
    assert model.variable_length == (name != "HGN")
    with torch.no_grad():
        together = model.full_sort_predict(samples.cut(torch.arange(30), width))
        for number in (0, 7, 29):
            alone = model.full_sort_predict(samples.cut(torch.tensor([number]), width))
            torch.testing.assert_close(alone[0], together[number], atol=1e-5, rtol=0)


def test_gelu_is_the_same_function():
    get_model("SASRec")
    from recbole.model.layers import FeedForward

    x = torch.linspace(-6, 6, 1001, dtype=torch.float64)
    written_out = x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    torch.testing.assert_close(FeedForward.gelu(None, x), written_out)


def test_s3rec_attribute_scores_are_the_same(options):
    model = build(options, "S3Rec").model
    states = torch.randn(3, LENGTH, model.hidden_size)
    table = model.feature_embedding.weight
    for norm, patched in (
        (model.aap_norm, model._associated_attribute_prediction),
        (model.map_norm, model._masked_attribute_prediction),
    ):
        theirs = torch.matmul(table, norm(states).view(-1, model.hidden_size, 1)).squeeze(-1)
        torch.testing.assert_close(patched(states, table), theirs, atol=1e-6, rtol=0)


def test_s3rec_has_two_stages():
    stages = get_model("S3Rec").stages(build_config("S3Rec", "ml-100k", overrides={"pretrain_epochs": 3, "epochs": 5}))
    assert [(stage.name, stage.epochs, stage.samples) for stage in stages] == [
        ("pretrain", 3, "last_of_each_user"),
        ("finetune", 5, "all"),
    ]
    assert stages[1].settings == {"train_stage": "finetune"}
    assert [stage.weights_key for stage in stages] == [None, "pre_model_path"]


def test_bert4rec_loss_is_the_same(options):
    config, split, model, _ = build(options, "BERT4Rec", mask_ratio=0.3, train_batch_size=2048)
    random.seed(4)
    for epoch in range(4):  # masked anywhere, or at the end
        trimmed = next(TrainLoader(config, split.train, trim=True).batches(epoch))
        # RecBole's formula: all positions, then only those with a mask
        position, pos_items = trimmed[model.MASK_INDEX], trimmed[model.POS_ITEMS]
        states = model.forward(trimmed[model.MASK_ITEM_SEQ])
        chosen = torch.stack([states[row, positions] for row, positions in enumerate(position)])  # [B, masks, hidden]
        logits = chosen @ model.item_embedding.weight[: model.n_items].T + model.output_bias
        targets = (position > 0).float().view(-1)
        losses = nn.CrossEntropyLoss(reduction="none")(logits.view(-1, model.n_items), pos_items.view(-1))
        torch.testing.assert_close(model.calculate_loss(trimmed), (losses * targets).sum() / targets.sum())
    source = inspect.getsource(importlib.import_module("recbole.model.sequential_recommender.bert4rec"))
    assert "targets = (masked_index > 0).float().view(-1)" in source  # what the formula above copies


def test_bert4rec_trains_the_same_on_trimmed_batches(options):
    config, split, model, _ = build(options, "BERT4Rec", train_batch_size=512, shuffle=False)
    train, losses = split.train, []
    for trim in (True, False):
        random.seed(4)
        batch = train.inter_feat.cut(short_histories(train.inter_feat, 100), None if trim else LENGTH)
        losses.append(model.calculate_loss(TrainLoader(config, train, trim).transform(train, batch)))
    torch.testing.assert_close(*losses)


def test_no_anomaly_detection():
    """RecBole's sine.py switches it on for everyone who imports RecBole's models."""
    get_model("SINE")
    assert not torch.is_anomaly_enabled()


def test_models_keep_their_weights_through_a_checkpoint(options, tmp_path):
    model = build(options, "FDSA").model
    before = copy.deepcopy(model.state_dict())
    checkpoint.save({"state_dict": model.state_dict()}, tmp_path / "m.pt")
    loaded = checkpoint.load(tmp_path / "m.pt")["state_dict"]
    assert before.keys() == loaded.keys()
    assert all(torch.equal(before[name], loaded[name]) for name in before)


def test_options_are_the_keys_that_a_model_reads():
    """A key of RecBole's file of the model, where we know its type."""
    keys = {name: get_model(name).Options.keys() for name in ("SASRec", "GRU4Rec", "BERT4Rec")}
    assert {"n_layers", "n_heads", "hidden_size", "loss_type"} <= keys["SASRec"]
    assert "n_layers" not in keys["GRU4Rec"] and "mask_ratio" in keys["BERT4Rec"]


@pytest.mark.parametrize(
    ("name", "overrides", "words"),
    [
        ("SASRec", {"hidden_size": 50, "n_heads": 4}, ["hidden_size", "50", "n_heads", "4"]),
        ("SASRec", {"n_layers": 0}, ["n_layers", "0"]),
        ("BERT4Rec", {"mask_ratio": 1.5}, ["mask_ratio", "1.5"]),
        ("FDSA", {"selected_features": []}, ["selected_features"]),
        ("S3Rec", {"pretrain_epochs": -1}, ["pretrain_epochs", "-1"]),
    ],
    ids=str,
)
def test_values_that_a_model_cannot_use(name, overrides, words):
    with pytest.raises(UserError) as error:
        build_config(name, "ml-100k", overrides=overrides)
    assert all(word in str(error.value) for word in words)

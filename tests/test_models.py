"""What RecBole's models compute does not change with how they are fed or patched."""

import copy

import pytest
import torch
from recbole.utils import init_seed

from recbole_diffgrm import compat
from recbole_diffgrm.config.config import build_config
from recbole_diffgrm.data.dataset import FlatSequentialDataset
from recbole_diffgrm.data.loader import TrainLoader


def build(tiny, name, **overrides):
    overrides = {"data_path": str(tiny), "MAX_ITEM_LIST_LENGTH": 12, **overrides}
    config = build_config(name, "tiny", [tiny / "tiny.yaml"], overrides)
    train, _, test = FlatSequentialDataset(config).build()
    TrainLoader(config, train, trim=False)  # BERT4Rec reads names that the transform puts into the configuration
    init_seed(1, True)
    return config, config.model_class(config, train), test


@pytest.mark.parametrize("name", sorted(compat.VARIABLE_LENGTH))
def test_trimmed_and_padded_histories_score_the_same(tiny, name):
    _, model, test = build(tiny, name)
    model.eval()
    model.train_stage = "finetune"  # S3Rec
    index = torch.argsort(test.inter_feat["item_length"])[:20]  # short ones, so that there is something to trim
    trimmed, padded = test.inter_feat.cut(index), test.inter_feat.cut(index, 12)
    assert trimmed["item_id_list"].shape[1] < padded["item_id_list"].shape[1]
    with torch.no_grad():
        torch.testing.assert_close(model.full_sort_predict(trimmed), model.full_sort_predict(padded), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["SASRec", "GRU4Rec", "FDSA"])
def test_trimmed_and_padded_histories_give_the_same_gradients(tiny, name):
    _, model, test = build(tiny, name)
    model.eval()  # no dropout
    index = torch.argsort(test.inter_feat["item_length"])[:20]
    gradients = []
    for batch in (test.inter_feat.cut(index), test.inter_feat.cut(index, 12)):
        model.zero_grad()
        model.calculate_loss(batch).backward()
        gradients.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    for parameter, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][parameter], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", ["SASRec", "BERT4Rec", "GRU4Rec", "HGN", "FDSA"])
def test_a_score_does_not_depend_on_the_batch(tiny, name):
    _, model, test = build(tiny, name)
    model.eval()
    trim = compat.takes_variable_length(type(model))
    with torch.no_grad():
        together = model.full_sort_predict(test.inter_feat.cut(torch.arange(30), None if trim else 12))
        for number in (0, 7, 29):
            alone = model.full_sort_predict(test.inter_feat.cut(torch.tensor([number]), None if trim else 12))
            torch.testing.assert_close(alone[0], together[number], atol=1e-5, rtol=0)


def test_gelu_is_the_same_function():
    import math

    compat.model_class("SASRec")
    from recbole.model.layers import FeedForward

    x = torch.linspace(-6, 6, 1001, dtype=torch.float64)
    written_out = x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    torch.testing.assert_close(FeedForward.gelu(None, x), written_out)


def test_s3rec_attribute_scores_are_the_same(tiny):
    _, model, _ = build(tiny, "S3Rec")
    states = torch.randn(3, 12, model.hidden_size)
    table = model.feature_embedding.weight
    for norm, patched in (
        (model.aap_norm, model._associated_attribute_prediction),
        (model.map_norm, model._masked_attribute_prediction),
    ):
        theirs = torch.matmul(table, norm(states).view(-1, model.hidden_size, 1)).squeeze(-1)
        torch.testing.assert_close(patched(states, table), theirs, atol=1e-6, rtol=0)


def test_bert4rec_loss_is_the_same(tiny):
    import importlib
    import inspect
    import random

    from torch import nn

    config, model, _ = build(tiny, "BERT4Rec", mask_ratio=0.3)
    model.eval()
    train, *_ = FlatSequentialDataset(config).build()
    random.seed(4)
    for epoch in range(4):  # masked anywhere, or at the end
        trimmed = next(TrainLoader(config, train, trim=True).batches(epoch))
        # RecBole's formula: all places, then only those with a mask
        place, pos_items = trimmed[model.MASK_INDEX], trimmed[model.POS_ITEMS]
        states = model.forward(trimmed[model.MASK_ITEM_SEQ])
        chosen = torch.stack([states[row, places] for row, places in enumerate(place)])  # [B, masks, hidden]
        logits = chosen @ model.item_embedding.weight[: model.n_items].T + model.output_bias
        targets = (place > 0).float().view(-1)
        losses = nn.CrossEntropyLoss(reduction="none")(logits.view(-1, model.n_items), pos_items.view(-1))
        torch.testing.assert_close(model.calculate_loss(trimmed), (losses * targets).sum() / targets.sum())
    source = inspect.getsource(importlib.import_module("recbole.model.sequential_recommender.bert4rec"))
    assert "targets = (masked_index > 0).float().view(-1)" in source  # what the formula above copies


def test_bert4rec_trains_the_same_on_trimmed_batches(tiny):
    import random

    config, model, _ = build(tiny, "BERT4Rec", train_batch_size=512, shuffle=False)
    model.eval()
    train, *_ = FlatSequentialDataset(config).build()
    losses = []
    for trim in (True, False):
        random.seed(4)
        index = torch.argsort(train.inter_feat["item_length"])[:100]
        batch = train.inter_feat.cut(index, None if trim else 12)
        losses.append(model.calculate_loss(TrainLoader(config, train, trim).transform(train, batch)))
    torch.testing.assert_close(*losses)


def test_no_anomaly_detection():
    """RecBole's sine.py switches it on for everyone who imports RecBole's models."""
    compat.model_class("SINE")
    assert not torch.is_anomaly_enabled()


def test_models_keep_their_weights_through_a_checkpoint(tiny, tmp_path):
    from recbole_diffgrm.training import checkpoint

    _, model, _ = build(tiny, "FDSA")
    before = copy.deepcopy(model.state_dict())
    checkpoint.save({"state_dict": model.state_dict()}, tmp_path / "m.pt")
    loaded = checkpoint.load(tmp_path / "m.pt")["state_dict"]
    assert before.keys() == loaded.keys()
    assert all(torch.equal(before[name], loaded[name]) for name in before)

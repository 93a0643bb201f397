"""ActionPiece as a model: losses and rankings against loops, sizes, and whole runs."""

import numpy as np
import pytest
import torch
from recbole.data.interaction import Interaction

from recbole_diffgrm import UserError, run
from recbole_diffgrm.models.actionpiece.decoding import PAD_OUTPUT
from recbole_diffgrm.models.actionpiece.segmentation import hash_keys, permute_features
from recbole_diffgrm.serving.recommender import Recommender
from tests.conftest import build_tiny
from tests.models.actionpiece import reference

SIZES = {
    "sid_quantizer": "random",
    "sid_num_digits": 3,
    "sid_codebook_size": 8,
    "sid_hash_size": 8,
    "vocabulary_size": 70,
    "hidden_size": 16,
    "inner_size": 32,
    "n_heads": 2,
    "head_size": 4,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "warmup_steps": 0,
    "beam_size": 12,
    "valid_beam_size": 12,
}


@pytest.fixture
def settings(options, tiny):
    return {**options, **SIZES, "cache_dir": str(tiny / "cache")}


def build(settings, **changes):
    return build_tiny(settings, "ActionPiece", **changes)


def label_log_probs(model, features) -> torch.Tensor:
    """[D] log-probability of every SID's label, EOS included, after a history of features in this order."""
    vocabulary = model.restore(model.state_dict())["vocabulary"]
    history = reference.merge_row([token for token in features.tolist() if token], reference.rules_of(vocabulary))
    tokens = torch.tensor([[vocabulary.bos, *history, vocabulary.eos]])
    length = torch.tensor([tokens.shape[1]])
    memory = model.decoder.precompute_kv(model.encoder(model.embedding(tokens), length), length)
    outputs, scores = model.labels.outputs, []
    for codes in model.labels.codes.tolist():
        codes = [code for code in codes if code != PAD_OUTPUT]
        states = model.decoder(model.embedding(outputs[[PAD_OUTPUT, *codes[:-1]]])[None], memory)[0]
        logits = states / states.shape[1] ** 0.5 @ model.embedding.weight[outputs[1:]].T
        scores.append(sum(logits[i].log_softmax(0)[code - 1] for i, code in enumerate(codes)))
    return torch.stack(scores)


def test_parameter_count(settings):
    """9.58 M with 40,002 tokens: the sizes of the paper."""
    changes = {"hidden_size": 128, "inner_size": 1024, "n_heads": 6, "head_size": 64}
    model = build(settings, std=None, encoder_layers=4, decoder_layers=4, **changes).model
    assert model.embedding.weight.shape == (72, 128)
    others = sum(parameter.numel() for parameter in model.parameters()) - 72 * 128
    assert others + 40_002 * 128 == 9_579_904


def test_loss_equals_a_loop(settings):
    _, split, model, _ = build(settings)
    batch = split.train.inter_feat.cut(torch.tensor([0, 7, 30, 55, 81]))
    torch.manual_seed(3)
    output = model.losses(batch)
    torch.manual_seed(3)
    keys = torch.rand(*batch["item_id_list"].shape, 4).numpy()
    rows = permute_features(model.features[batch["item_id_list"].numpy()], keys)
    target = model.semantic_ids.sid_index[batch["item_id"]].long()
    total = sum(label_log_probs(model, row)[sid] for row, sid in zip(rows, target))
    count = (model.labels.codes[target] != PAD_OUTPUT).sum()
    assert output.parts["label"].item() == pytest.approx(-(total / count).item(), abs=1e-10)
    assert output.num_targets == 5


def test_training_segments_anew(settings):
    _, split, model, _ = build(settings)
    batch = split.train.inter_feat.cut(torch.arange(20))
    assert model.losses(batch).parts["label"] != model.losses(batch).parts["label"]


@torch.inference_mode()
def test_wide_beam_ranks_by_exact_probability(settings):
    _, _, model, loader = build(settings, num_segmentations=1, beam_size=50)
    _, batch = next(iter(loader))
    part = batch.interaction[:6]
    items = part["item_id_list"].numpy()
    rows = permute_features(model.features[items], hash_keys(items, 4, 1, 2020))
    expected = torch.stack([label_log_probs(model, row) for row in rows]).argsort(dim=1, descending=True)
    assert torch.equal(model.candidates(part, 10).generated.rows, expected)


@torch.inference_mode()
def test_rankings_do_not_depend_on_the_batch(settings):
    """Nor on padding, the memory for decoding or the random state, which they leave as it is."""
    _, _, model, loader = build(settings, num_segmentations=3)
    _, batch = next(iter(loader))
    users = batch.interaction[:9]
    state = torch.get_rng_state()
    together = model.candidates(users, 10).top_k(10).items
    torch.manual_seed(99)
    alone = [model.candidates(users[i : i + 1], 10).top_k(10).items for i in range(9)]
    assert torch.equal(together, torch.cat(alone))
    padded = {**users.interaction, "item_id_list": torch.nn.functional.pad(users["item_id_list"], (0, 3))}
    assert torch.equal(together, model.candidates(Interaction(padded), 10).top_k(10).items)
    model.decoding_memory = 0.001
    torch.set_rng_state(state)
    assert torch.equal(together, model.candidates(users, 10).top_k(10).items)
    assert torch.equal(state, torch.get_rng_state())


@torch.inference_mode()
def test_segmentations_of_validation_and_test(settings):
    _, _, model, loader = build(settings, num_segmentations=4)
    _, batch = next(iter(loader))
    generated = model.candidates(batch.interaction, 10).generated
    assert (generated.num_generated == 4 * 12).all() and (generated.num_distinct > 12).any()
    validation = model.candidates(batch.interaction, 10, validation=True).generated
    assert (validation.num_generated == 12).all() and (validation.num_distinct == 12).all()


@torch.inference_mode()
def test_items_that_share_a_sid_share_a_label(settings):
    changes = {"sid_num_digits": 2, "sid_codebook_size": 4, "sid_collisions": "keep"}
    _, split, model, loader = build(settings, **changes)
    assert len(model.labels.codes) == model.semantic_ids.num_sids < split.dataset.item_num - 1
    _, batch = next(iter(loader))
    ranked = model.candidates(batch.interaction, 20).top_k(20)
    sid = model.semantic_ids.sid_index[ranked.items]
    is_shared = sid[:, 1:] == sid[:, :-1]
    assert is_shared.any() and (ranked.scores[:, 1:] == ranked.scores[:, :-1])[is_shared].all()
    assert all(len(set(items)) == 20 for items in ranked.items.tolist())


def test_vocabulary_reads_training_sequences_only(settings):
    _, split, model, _ = build(settings)
    features = {tuple(row) for row in model.features[1:].tolist()}
    assert len(features) == split.dataset.item_num - 1  # items are told apart
    sids, index = model.semantic_ids.sids.numpy(), model.semantic_ids.sid_index.numpy()
    user, item = [], []
    for number in range(1, split.dataset.user_num):
        history = split.dataset.inter_feat.flat.item[split.dataset.inter_feat.flat.user == number].tolist()[:-2]
        user += [number] * len(history)
        item += history
    _, pairs, _ = reference.build_vocabulary(sids, index[item], np.array(user), 70)
    assert model.vocabulary_pairs.tolist() == [list(pair) for pair in pairs]


@pytest.mark.slow
def test_learns(settings):
    """The last of a user's steps of one or two is predicted far better than by chance, which is 1 in 4."""
    changes = {"epochs": 20, "eval_step": 5, "train_batch_size": 16, "learning_rate": 0.01, "hidden_size": 32}
    result = run("ActionPiece", "tiny", **{**settings, **changes})
    assert result.test["all"]["recall@10"] > 0.5
    assert result.test["all"]["sid_recall@10"] == result.test["all"]["recall@10"]


def test_recommends_from_a_run_directory(settings):
    result = run("ActionPiece", "tiny", **{**settings, "epochs": 1})
    recommender = Recommender.load(result.run_dir, num_segmentations=2)
    (recommended,) = recommender.recommend([["i3", "i5"]], k=5)
    assert len({item.item for item in recommended}) == 5
    assert [item.score for item in recommended] == sorted((item.score for item in recommended), reverse=True)
    with pytest.raises(UserError, match="explain"):
        recommender.explain(["i3"])

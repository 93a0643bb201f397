"""ARM and TIGER generate digit by digit: losses and rankings against loops, and whole runs."""

import numpy as np
import pytest
import torch

from recbole_diffgrm import Recommender, UserError, run
from recbole_diffgrm.models.autoregressive import Sizes, numbers_per_user
from tests.conftest import build_tiny

SMALL = {
    "hidden_size": 16,
    "inner_size": 32,
    "n_heads": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "sid_quantizer": "random",
    "sid_num_digits": 3,
    "sid_codebook_size": 8,
    "warmup_steps": 0,
    "eval_from": 1,
    "eval_step": 1,
}
MODELS = {"ARM": {}, "TIGER": {"head_size": 6, "user_tokens": 7}}
each_model = pytest.mark.parametrize("name", MODELS)


@pytest.fixture
def settings(options, tmp_path):
    return {**options, **SMALL, "cache_dir": str(tmp_path / "cache")}


def build(settings, name, **changes):
    # Embeddings of N(0, 1) and an unscaled attention: larger weights would make every probability 0 or 1.
    return build_tiny(settings, name, std=0.2, **MODELS[name], **changes)


@torch.inference_mode()
def log_likelihoods(model, batch):
    """[B, D]: of every SID, with teacher forcing."""
    sids = model.semantic_ids.sids.long()
    scores = torch.zeros(len(batch), len(sids), dtype=torch.float64)
    for row, sid in enumerate(sids):
        log_probs = model._logits(batch, sid.expand(len(batch), -1)).log_softmax(-1)
        for digit, code in enumerate(sid.tolist()):
            scores[:, row] += log_probs[:, digit, code]
    return scores


# Losses and statistics


@each_model
def test_loss_is_the_mean_over_samples_alone(settings, name):
    _, split, model, _ = build(settings, name)
    samples, index = split.train.inter_feat, torch.tensor([0, 7, 30, 55, 81])
    together = model.calculate_loss(samples.cut(index)).item()
    alone = [model.calculate_loss(samples.cut(index[i : i + 1])).item() for i in range(5)]
    padded = model.calculate_loss(samples.cut(index, 10)).item()
    assert together == pytest.approx(np.mean(alone), abs=1e-10)
    assert together == pytest.approx(padded, abs=1e-10)


@each_model
def test_losses_and_statistics_equal_a_loop(settings, name):
    _, split, model, _ = build(settings, name)
    batch = split.train.inter_feat.cut(torch.arange(20))
    output = model.losses(batch)
    sids, smoothing = model.semantic_ids.lookup(batch["item_id"]), model.label_smoothing
    logits = model._logits(batch, sids)
    n, m = model.code_table.shape[:2]
    losses, correct = np.zeros((20, n)), np.zeros((20, n))
    for sample in range(20):
        for digit in range(n):
            log_probs = logits[sample, digit].log_softmax(0)
            code = sids[sample, digit]
            losses[sample, digit] = -((1 - smoothing) * log_probs[code] + smoothing / m * log_probs.sum()).item()
            correct[sample, digit] = log_probs.argmax() == code
    assert output.parts["sid"].item() == pytest.approx(losses.mean()) and output.num_targets == 20
    statistics = model.summarize_statistics({key: sums.tolist() for key, sums in output.statistics.items()}, epoch=1)
    assert statistics["digit_loss"] == pytest.approx(losses.mean(0).tolist())
    assert statistics["digit_accuracy"] == pytest.approx(correct.mean(0).tolist())


@each_model
def test_a_digit_sees_only_those_before_it(settings, name):
    _, split, model, _ = build(settings, name)
    batch = split.train.inter_feat.cut(torch.arange(4))
    sids = model.semantic_ids.lookup(batch["item_id"])
    logits = model._logits(batch, sids)
    for digit in range(sids.shape[1]):
        changed = sids.clone()
        changed[:, digit] = (changed[:, digit] + 1) % 8
        others = model._logits(batch, changed)
        assert torch.equal(others[:, : digit + 1], logits[:, : digit + 1])
        if digit < sids.shape[1] - 1:
            assert not torch.allclose(others[:, digit + 1 :], logits[:, digit + 1 :])


# Rankings


@each_model
@torch.inference_mode()
def test_a_wide_beam_ranks_by_the_exact_likelihood(settings, name):
    model, loader = build(settings, name, beam_size=64)[2:]
    _, (batch, *_) = next(iter(loader))
    generated = model.generate(batch, model.beam_widths)
    scores, rows = log_likelihoods(model, batch).sort(dim=1, descending=True)
    assert torch.equal(generated.rows, rows)
    torch.testing.assert_close(generated.scores.double(), scores, atol=1e-5, rtol=1e-5)


@each_model
@torch.inference_mode()
def test_the_cache_changes_nothing(settings, name):
    """A narrow beam drops and reorders branches: the score of those that stay is that of teacher forcing."""
    model, loader = build(settings, name, beam_size=[12, 10])[2:]
    _, (batch, *_) = next(iter(loader))
    generated = model.generate(batch, model.beam_widths)
    assert generated.rows.shape[1] == 10 and (generated.rows >= 0).all()
    expected = log_likelihoods(model, batch).gather(1, generated.rows)
    torch.testing.assert_close(generated.scores.double(), expected, atol=1e-5, rtol=1e-5)


@each_model
@torch.inference_mode()
def test_neither_batch_nor_chunk_nor_padding_matters(settings, name):
    _, split, model, _ = build(settings, name)
    samples = split.test.inter_feat
    whole = model.candidates(samples.cut(torch.arange(30), 10), depth=10).top_k(10)
    model.decoding_memory = 0.05
    for part in (torch.arange(30), torch.tensor([3]), torch.tensor([29, 5, 11])):
        top = model.candidates(samples.cut(part), depth=10).top_k(10)
        assert torch.equal(top.items, whole.items[part])
        torch.testing.assert_close(top.scores, whole.scores[part], atol=1e-5, rtol=1e-5)


def test_memory_grows_with_the_beam():
    sizes = Sizes(hidden_size=128, inner_size=1024, attention_size=384, num_heads=6, decoder_layers=4)
    narrow, wide = (numbers_per_user(sizes, 80, width, 4, 256) for width in (20, 50))
    assert narrow < wide < 3 * narrow


# Runs


@each_model
def test_a_run_learns_and_recommends(settings, name):
    result = run(name, "tiny", **{**settings, "epochs": 8, "learning_rate": 0.01}, **MODELS[name])
    losses = [epoch["loss"] for epoch in result.curve]
    assert losses[-1] < 0.9 * losses[0]
    recommender = Recommender.load(result.run_dir)
    history = ["i1", "i2", "i4"]
    best = recommender.recommend([history], k=5)[0]
    assert len(best) == 5
    path = recommender.explain(history)
    assert [filled.digit for filled in next(iter(path.values()))] == list(range(len(recommender.sid("i1"))))


@each_model
def test_beams_are_checked(settings, name):
    for changes, message in (({"beam_size": 5}, "topk"), ({"valid_beam_size": [20] * 5}, "digits")):
        with pytest.raises(UserError, match=message):
            build(settings, name, **changes)

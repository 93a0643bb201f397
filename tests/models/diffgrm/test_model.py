"""DiffGRM as a model: losses, statistics and rankings against loops, and whole runs."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from recbole_diffgrm import UserError, run
from recbole_diffgrm.data.dataset import load_dataset
from recbole_diffgrm.data.splits import make_split
from recbole_diffgrm.evaluation.evaluator import evaluate
from recbole_diffgrm.generation.semantic_ids import MASKED
from recbole_diffgrm.models import build_config
from recbole_diffgrm.models.diffgrm.decoding import CONSTRAINTS
from recbole_diffgrm.tokenizer.pipeline import tokenize
from tests.conftest import AMAZON_DATA, build_tiny, needs_amazon, write_dataset

NAMES = ("digit_masked", "digit_loss", "digit_accuracy", "digit_confidence", "digit_hardest")


def encode(model, batch):
    return model.network.precompute_kv(model._encode(batch), batch["item_length"])


# Losses and statistics


def test_sids_of_items(options):
    config, split, model, _ = build_tiny(options)
    tokenizer = tokenize(config, split).tokenizer
    for item in range(1, split.dataset.item_num):
        name = split.dataset.id2token("item_id", item)
        assert model.semantic_ids.lookup(torch.tensor(item)).tolist() == tokenizer.table([name])[0].tolist()


@pytest.mark.parametrize("weighting", ["view_mean", "token_mean"])
def test_loss_is_the_mean_over_samples_alone(options, weighting):
    """What a sample adds to the loss does not depend on the batch that it is in, nor on its padding."""
    _, split, model, _ = build_tiny(options, loss_weighting=weighting)
    samples, index = split.train.inter_feat, torch.tensor([0, 7, 30, 55, 81])
    together = model.calculate_loss(samples.cut(index)).item()
    alone = [model.calculate_loss(samples.cut(index[i : i + 1])).item() for i in range(5)]
    padded = model.calculate_loss(samples.cut(index, 10)).item()
    assert together == pytest.approx(np.mean(alone), abs=1e-10)
    assert together == pytest.approx(padded, abs=1e-10)


def test_statistics_equal_a_loop(options):
    _, split, model, _ = build_tiny(options)
    batch = split.train.inter_feat.cut(torch.arange(20))
    output = model.losses(batch)
    assert output.num_targets == 20 and list(output.parts) == ["sid"]
    sums = {name: values.tolist() for name, values in output.statistics.items()}
    statistics = model.summarize_statistics(sums, epoch=5)
    assert statistics["esp"] == 15  # 3 views
    target, history = model.semantic_ids.lookup(batch["item_id"]), encode(model, batch)

    def probabilities(view):
        return model.network.logits(model.network.decode(view[:, None], history))[:, 0].softmax(-1)

    probe = probabilities(torch.full((20, 3), MASKED))
    order = probe.amax(-1).argsort(dim=1)  # least confident first
    count, correct, confidence = np.zeros(3), np.zeros(3), np.zeros(3)
    for masked in (1, 2, 3):
        view = target.clone()
        for sample in range(20):
            view[sample, order[sample, :masked]] = MASKED
        predicted = probabilities(view)
        for sample in range(20):
            for k in order[sample, :masked].tolist():
                count[k] += 1
                correct[k] += predicted[sample, k].argmax() == target[sample, k]
                confidence[k] += predicted[sample, k].max().item()
    assert statistics["digit_accuracy"] == pytest.approx((correct / count).tolist())
    assert statistics["digit_confidence"] == pytest.approx((confidence / count).tolist())
    assert statistics["digit_masked"] == pytest.approx((count / count.sum()).tolist())
    hardest = np.bincount(order[:, 0], minlength=3) / 20
    assert statistics["digit_hardest"] == pytest.approx(hardest.tolist())
    model.loss_weighting = "token_mean"  # the mean over 6 masked digits of each sample
    assert sum(sums["loss"]) / (6 * 20) == pytest.approx(model.calculate_loss(batch).item())
    assert statistics["digit_loss"] == pytest.approx((np.array(sums["loss"]) / count).tolist())


@pytest.mark.parametrize("confidence", ["msp", "entropy"])
def test_the_hardest_digit_is_the_one_masked_first(options, confidence):
    """By the measure of confidence that the noising uses."""
    _, split, model, _ = build_tiny(options, ocn_confidence=confidence)
    batch = split.train.inter_feat.cut(torch.arange(100))
    sids = model.semantic_ids.lookup(batch["item_id"])
    views = model.noising.make_views(model.network, encode(model, batch), sids)
    assert model.losses(batch).statistics["hardest"].tolist() == views.masked[:, 0].sum(0).tolist()


def test_more_views_than_digits_are_for_random_noising(options):
    assert build_tiny(options, noising="random", n_views=9).model.noising.num_views(3) == 9
    for changes in ({"n_views": 4}, {"mask_schedule": [1, 4]}, {"n_views": 4, "noising": "coherent"}):
        with pytest.raises(UserError, match=r"n_views.*3 digits"):
            build_tiny(options, **changes)
    assert build_tiny(options, n_views=4, sid_collisions="extra_digit").model.noising.schedule(4) == (1, 2, 3, 4)


def test_digits_of_a_sid_file_count(options, tmp_path):
    """They are known only once the file is read."""
    path = str(tmp_path / "earlier.npz")
    config, split, *_ = build_tiny(options)
    tokenize(config, split).tokenizer.save(path)
    assert build_tiny(options, sid_file=path).model.semantic_ids.num_digits == 3
    with pytest.raises(UserError, match=r"n_views.*3 digits"):
        build_tiny(options, sid_file=path, n_views=4)


# Rankings


@torch.inference_mode()
@pytest.mark.parametrize("decoding", CONSTRAINTS)
def test_neither_batch_nor_chunk_nor_padding_matters(options, decoding):
    _, _, model, loader = build_tiny(options, decoding=decoding, beam_size=10)
    samples = loader.samples
    together = model.candidates(samples.cut(torch.arange(60), 10), depth=12)
    model.decoding_memory = 1e-9  # one user at a time
    chunked = model.candidates(samples.cut(torch.arange(60)), depth=12)
    width = chunked.generated.rows.shape[1]
    assert torch.equal(chunked.top_k(12).items, together.top_k(12).items)
    assert torch.equal(chunked.generated.rows, together.generated.rows[:, :width])
    assert torch.allclose(chunked.top_k(12).scores, together.top_k(12).scores, atol=1e-9)
    for user in (0, 31, 59):
        alone = model.candidates(samples.cut(torch.tensor([user])), depth=12)
        assert torch.equal(alone.top_k(12).items[0], together.top_k(12).items[user])


@torch.inference_mode()
def test_keys_and_values_are_not_copied_for_beams(options, monkeypatch):
    _, _, model, loader = build_tiny(options)
    decode, calls = model.network.decode, []

    def watched(digits, history, query_positions=None):
        calls.append((digits.shape, {part.shape[0] for part in (*history.keys, *history.values)}))
        return decode(digits, history, query_positions)

    monkeypatch.setattr(model.network, "decode", watched)
    model.candidates(loader.samples.cut(torch.arange(60)), depth=10)
    assert [(len(shape), users) for shape, users in calls] == [(3, {60})] * 3  # one call per step for all users
    assert [shape[1] > 1 for shape, _ in calls] == [False, True, True]


def test_beams_of_validation_and_test(options, monkeypatch):
    config, _, model, loader = build_tiny(options, beam_size=[20, 15], valid_beam_size=12)
    widths, generate = [], model.generate
    monkeypatch.setattr(model, "generate", lambda batch, used: widths.append(used) or generate(batch, used))
    evaluate(config, model, loader, validation=True)
    evaluate(config, model, loader)
    assert widths == [(12,), (20, 15)]


@pytest.mark.slow
def test_a_catalog_smaller_than_the_list(options, tmp_path):
    data = write_dataset(tmp_path / "few", items=6)
    settings = {**options, "config_files": [data / "tiny.yaml"], "data_path": str(data)}
    result = run("DiffGRM", "tiny", **settings, save_topk=10)
    assert result.test["all"]["recall@10"] == 1  # every item is in the list
    assert result.test["all"]["sid_recall@10"] == 1
    lines = (result.run_dir / "topk.tsv").read_text().splitlines()[1:]
    assert len(lines) == 60 * 6


# Runs

VARIANTS = [
    {"ocn_select": "most"},
    {"ocn_refresh": True},
    {"ocn_sample": True},
    {"ocn_confidence": "entropy"},
    {"mask_schedule": [1, 3]},
    {"n_views": 2},
    {"noising": "coherent"},
    {"noising": "coherent", "coherent_paths": 3},
    {"noising": "random"},
    {"noising": "random", "random_ratio": 0.5, "n_views": 7},
    {"cross_attention_sink": False},
    {"loss_weighting": "token_mean"},
    {"label_smoothing": 0.0},
    {"encoder_layers": 2},
    {"decoder_layers": 1},
    {"dropout_prob": 0.5},
    {"encoder_dropout_prob": 0.5},
    {"hidden_size": 32},
    {"inner_size": 8},
    {"n_heads": 4},
    {"sid_collisions": "extra_digit"},
]


@pytest.fixture(scope="module")
def default_loss(tiny, tmp_path_factory):
    """Settings of a run of one epoch, and its loss."""
    settings = {
        "config_files": [tiny / "tiny.yaml"],
        "data_path": str(tiny),
        "output_dir": str(tmp_path_factory.mktemp("runs")),
        "epochs": 1,
        "MAX_ITEM_LIST_LENGTH": 10,
        "show_progress": False,
    }
    return settings, run("DiffGRM", "tiny", **settings).curve[0]["loss"]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_every_setting_changes_training(changes, default_loss):
    """No key is dead: each of them gives another loss, and a run that finishes."""
    settings, default = default_loss
    result = run("DiffGRM", "tiny", **settings, **changes)
    assert result.test
    assert result.curve[0]["loss"] != default
    views = {"coherent": 3 * changes.get("coherent_paths", 1), "random": changes.get("n_views", 3)}
    expected = views.get(changes.get("noising"), changes.get("n_views", 3))
    expected = 2 if "mask_schedule" in changes else 4 if "sid_collisions" in changes else expected
    assert result.curve[0]["statistics"]["esp"] == expected


@pytest.mark.slow
def test_overfits(options, tmp_path):
    """Four users, whose histories tell their next items: near-zero loss, and every digit right."""
    data = write_dataset(tmp_path / "few", users=4)
    settings = {
        **options,
        "config_files": [data / "tiny.yaml"],
        "data_path": str(data),
        "epochs": 200,
        "eval_step": 200,
        "scheduler": "constant",
        "hidden_size": 32,
        "learning_rate": 0.005,
        "label_smoothing": 0.0,
        "dropout_prob": 0.0,
    }
    last = run("DiffGRM", "tiny", **settings).curve[-1]
    assert last["loss"] < 0.03
    assert min(last["statistics"]["digit_accuracy"]) == 1
    assert min(last["statistics"]["digit_confidence"]) > 0.95


def test_statistics_of_a_run(options):
    result = run("DiffGRM", "tiny", **{**options, "train_batch_size": 1000}, loss_weighting="token_mean")
    for entry in result.curve:  # each epoch by itself
        weights = entry["statistics"]["digit_masked"]
        mean = np.average(entry["statistics"]["digit_loss"], weights=weights)
        assert entry["loss"] == pytest.approx(mean, rel=1e-5)
        assert sum(weights) == pytest.approx(1)
        assert entry["num_targets"] == result.statistics["train_samples"]
    saved = json.loads((result.run_dir / "result.json").read_text())
    assert [entry["statistics"]["esp"] for entry in saved["curve"]] == [3, 6]
    last = saved["curve"][-1]["statistics"]
    assert set(last) == {"esp", *NAMES}
    assert sum(last["digit_hardest"]) == pytest.approx(1)
    events = EventAccumulator(str(result.run_dir / "tensorboard")).Reload()
    assert [event.value for event in events.Scalars("train/esp")] == [3, 6]
    for name in NAMES:
        for number in (1, 2, 3):
            shown = events.Scalars(f"train/{name}/{number}")[-1].value
            assert shown == pytest.approx(last[name][number - 1], rel=1e-5)


@pytest.mark.slow
def test_same_seed_same_metrics_bit_for_bit(options):
    first, second = (run("DiffGRM", "tiny", **options) for _ in range(2))
    assert first.test == second.test
    assert first.curve[-1]["loss"] == second.curve[-1]["loss"]


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"enable_amp": True}, {"compile": True}], ids=str)
def test_mixed_precision_and_compilation(changes, options, monkeypatch):
    """They take the same path; on a CPU they give nearly the same losses."""
    # Traced and cut into graphs as for a GPU, but not made into C++, which takes minutes.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    settings = {**options, "epochs": 1, "decoder_layers": 1, "dropout_prob": 0.0}
    plain = run("DiffGRM", "tiny", **settings)
    result = run("DiffGRM", "tiny", **settings, **changes)
    assert result.curve[-1]["loss"] == pytest.approx(plain.curve[-1]["loss"], rel=0.02)
    if "enable_amp" in changes:
        assert result.curve[-1]["loss"] != plain.curve[-1]["loss"]  # it did make a difference


@needs_amazon
@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "changes", "num_samples"),
    [
        ("Amazon_Beauty", {}, 105_668),
        ("Amazon_Beauty", {"sliding_window": False}, 22_363),
        ("Amazon_Beauty", {"max_history": None}, 109_050),
        ("Amazon_Beauty", {"min_history": 1, "max_history": None}, 131_413),
        ("Amazon_Sports_and_Outdoors", {}, 152_346),
    ],
)
def test_samples_of_the_paper(dataset, changes, num_samples):
    config = build_config("DiffGRM", dataset, overrides={"data_path": str(AMAZON_DATA), **changes})
    assert len(make_split(config, load_dataset(config)).train) == num_samples

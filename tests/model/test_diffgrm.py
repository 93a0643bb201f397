"""DiffGRM as a RecBole model: through `run`, and its parts against loops."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from recbole_diffgrm import UserError, run
from recbole_diffgrm.cli import main
from recbole_diffgrm.config.config import build_config
from recbole_diffgrm.data.dataset import load_dataset
from recbole_diffgrm.data.loader import TrainLoader
from recbole_diffgrm.model.diffgrm import DiffGRM
from recbole_diffgrm.network.network import MASKED
from recbole_diffgrm.network.noising import make_views
from recbole_diffgrm.running.inputs import attach
from recbole_diffgrm.tokenizer.prepare import prepare
from tests.conftest import AMAZON_DATA, needs_amazon, write_dataset

NAMES = ("digit_masked", "digit_loss", "digit_accuracy", "digit_confidence", "digit_hardest")


def made(options: dict, **changes) -> tuple[DiffGRM, TrainLoader]:
    """A model with random weights, in double precision, and its training samples."""
    settings = {**options, **changes}
    config = build_config("DiffGRM", "tiny", settings.pop("config_files"), settings)
    dataset = load_dataset(config)
    parts = dataset.build()
    attach(config, dataset, parts)
    torch.manual_seed(0)
    model = DiffGRM(config, parts[0]).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model, TrainLoader(config, parts[0], trim=True)


def tokenizer_of(options: dict):
    settings = dict(options)
    config = build_config("DiffGRM", "tiny", settings.pop("config_files"), settings)
    dataset = load_dataset(config)
    return prepare(config, dataset, dataset.build()).tokenizer


def test_ids_of_items(options):
    model, loader = made(options)
    tokenizer = tokenizer_of(options)
    for item in range(1, loader.dataset.item_num):
        name = loader.dataset.id2token("item_id", item)
        assert model.catalogue.sids(torch.tensor(item)).tolist() == tokenizer.table([name])[0].tolist()


@pytest.mark.parametrize("weighting", ["view_mean", "token_mean"])
def test_loss_is_the_mean_over_samples_alone(options, weighting):
    """What a sample adds to the loss does not depend on the batch that it is in, nor on its padding."""
    model, loader = made(options, loss_weighting=weighting)
    index = torch.tensor([0, 7, 30, 55, 81])
    together = model.calculate_loss(loader.samples.cut(index)).item()
    alone = [model.calculate_loss(loader.samples.cut(index[i : i + 1])).item() for i in range(5)]
    padded = model.calculate_loss(loader.samples.cut(index, 10)).item()
    assert together == pytest.approx(np.mean(alone), abs=1e-10)
    assert together == pytest.approx(padded, abs=1e-10)


def test_statistics_equal_a_loop(options):
    model, loader = made(options)
    batch = loader.samples.cut(torch.arange(20))
    model.calculate_loss(batch)
    sums = {name: values.tolist() for name, values in model.step_sums.items()}
    statistics = model.epoch_statistics(sums, epochs=5)
    assert statistics["esp"] == 15  # 3 views
    target, history = model.catalogue.sids(batch["item_id"]), model._encode(batch)

    def probabilities(view):
        return model.network.logits(model.network.decode(view[:, None], history))[:, 0].softmax(-1)

    probe = probabilities(torch.full((20, 3), MASKED))
    order = probe.amax(-1).argsort(dim=1)  # least confident first
    count, correct, confidence = np.zeros(3), np.zeros(3), np.zeros(3)
    for masked in (1, 2, 3):
        view = target.clone()
        for sample in range(20):
            view[sample, order[sample, :masked]] = MASKED
        found = probabilities(view)
        for sample in range(20):
            for k in order[sample, :masked].tolist():
                count[k] += 1
                correct[k] += found[sample, k].argmax() == target[sample, k]
                confidence[k] += found[sample, k].max().item()
    assert statistics["digit_accuracy"] == pytest.approx((correct / count).tolist())
    assert statistics["digit_confidence"] == pytest.approx((confidence / count).tolist())
    assert statistics["digit_masked"] == pytest.approx((count / count.sum()).tolist())
    hardest = np.bincount(order[:, 0], minlength=3) / 20
    assert statistics["digit_hardest"] == pytest.approx(hardest.tolist())
    model.loss_weighting = "token_mean"  # the mean over 6 masked digits a sample
    assert sum(sums["loss"]) / (6 * 20) == pytest.approx(model.calculate_loss(batch).item())
    assert statistics["digit_loss"] == pytest.approx((np.array(sums["loss"]) / count).tolist())


def test_the_hardest_digit_is_the_one_masked_first(options):
    """By the measure of confidence that the noising uses."""
    for measure in ("msp", "entropy"):
        model, loader = made(options, ocn_confidence=measure)
        batch = loader.samples.cut(torch.arange(100))
        model.calculate_loss(batch)
        views = make_views(model.network, model._encode(batch), model.catalogue.sids(batch["item_id"]), model.noising)
        assert model.step_sums["hardest"].tolist() == views.masked[:, 0].sum(0).tolist()


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
    {"hidden_size": 32},
    {"inner_size": 8},
    {"n_heads": 4},
    {"sid_collisions": "extra_digit"},
]


@pytest.fixture(scope="module")
def plain_loss(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    data = write_dataset(folder)
    options = {
        "config_files": [data / "tiny.yaml"],
        "data_path": str(data),
        "output_dir": str(folder / "runs"),
        "epochs": 1,
        "MAX_ITEM_LIST_LENGTH": 10,
        "show_progress": False,
    }
    return options, run("DiffGRM", "tiny", **options).curve[0]["loss"]


@pytest.mark.parametrize("change", VARIANTS, ids=str)
def test_every_setting_changes_training(change, plain_loss):
    """No key is dead: each of them gives another loss, and a run that comes to its end."""
    options, plain = plain_loss
    result = run("DiffGRM", "tiny", **options, **change)
    assert result.test
    assert result.curve[0]["loss"] != plain
    views = {"coherent": 3 * change.get("coherent_paths", 1), "random": change.get("n_views", 3)}
    expected = views.get(change.get("noising"), change.get("n_views", 3))
    expected = 2 if "mask_schedule" in change else 4 if "sid_collisions" in change else expected
    assert result.curve[0]["statistics"]["esp"] == expected


def test_more_views_than_digits_are_for_random_noising(options):
    assert made(options, noising="random", n_views=9)[0].noising.views == 9
    for change in ({"n_views": 4}, {"mask_schedule": [1, 4]}, {"n_views": 4, "noising": "coherent"}):
        with pytest.raises(UserError, match="an ID has 3 digits"):
            made(options, **change)
    assert made(options, n_views=4, sid_collisions="extra_digit")[0].noising.schedule == (1, 2, 3, 4)
    with pytest.raises(UserError, match="give one of them"):
        made(options, n_views=2, mask_schedule=[1, 2])
    with pytest.raises(UserError, match="noising random draws its masks"):
        made(options, noising="random", mask_schedule=[1, 2])


@pytest.mark.parametrize(
    "change",
    [
        {"coherent_paths": 2},
        {"random_ratio": 0.5},
        {"noising": "random", "ocn_refresh": True},
        {"noising": "coherent", "ocn_select": "most"},
        {"noising": "coherent", "ocn_sample": True},
        {"noising": "random", "ocn_confidence": "entropy"},
    ],
    ids=str,
)
def test_keys_of_another_noising_are_refused(change):
    with pytest.raises(UserError, match=r"only noising (ocn|coherent|random) reads it"):
        build_config("DiffGRM", "ml-100k", overrides=change)


def test_an_earlier_tokenizer_decides_the_digits(options):
    path = options["output_dir"] + ".npz"
    tokenizer_of(options).save(path)
    with pytest.raises(UserError, match="an ID has 3 digits"):
        made(options, sid_file=path, n_views=4)


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
    assert last["loss"] < 0.02
    assert min(last["statistics"]["digit_accuracy"]) == 1
    assert min(last["statistics"]["digit_confidence"]) > 0.95


def test_statistics_of_a_run(options):
    result = run("DiffGRM", "tiny", **{**options, "train_batch_size": 1000}, loss_weighting="token_mean")
    for entry in result.curve:  # each epoch by itself
        weights = entry["statistics"]["digit_masked"]
        mean = np.average(entry["statistics"]["digit_loss"], weights=weights)
        assert entry["loss"] == pytest.approx(mean, rel=1e-5)
        assert sum(weights) == pytest.approx(1)
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


def test_same_seed_same_metrics_bit_for_bit(options):
    first, second = (run("DiffGRM", "tiny", **options) for _ in range(2))
    assert first.test == second.test
    assert first.curve[-1]["loss"] == second.curve[-1]["loss"]


@pytest.mark.parametrize("change", [{"enable_amp": True}, {"compile": True}], ids=str)
def test_ways_to_compute(change, options, monkeypatch):
    """Mixed precision and compilation take the same path; on a CPU they give nearly the same losses."""
    # Traced and cut into graphs as for a GPU, but not made into C++, which takes minutes.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    plain = run("DiffGRM", "tiny", **options, dropout_prob=0.0)
    result = run("DiffGRM", "tiny", **options, dropout_prob=0.0, **change)
    assert result.curve[-1]["loss"] == pytest.approx(plain.curve[-1]["loss"], rel=0.02)
    if "enable_amp" in change:
        assert result.curve[-1]["loss"] != plain.curve[-1]["loss"]  # it did make a difference


def test_is_the_default_model(options, capsys):
    settings = {**options, "config_files": options["config_files"][0]}
    assert main(["--dataset=tiny", *(f"--{key}={value}" for key, value in settings.items())]) == 0
    assert "DiffGRM, item level" in capsys.readouterr().out


@needs_amazon
@pytest.mark.parametrize(
    ("dataset", "changes", "samples"),
    [
        ("Amazon_Beauty", {}, 105_668),
        ("Amazon_Beauty", {"sliding_window": False}, 22_363),
        ("Amazon_Beauty", {"max_history": None}, 109_050),
        ("Amazon_Beauty", {"min_history": 1, "max_history": None}, 131_413),
        ("Amazon_Sports_and_Outdoors", {}, 152_346),
    ],
)
def test_samples_of_the_paper(dataset, changes, samples):
    config = build_config("DiffGRM", dataset, overrides={"data_path": str(AMAZON_DATA), **changes})
    assert len(load_dataset(config).build()[0]) == samples


def test_hyper_parameters_of_the_paper():
    """Its table, per data set."""
    table = {
        "Amazon_Sports_and_Outdoors": (0.003, 256, 1024, 4, 0.1),
        "Amazon_Beauty": (0.01, 256, 1024, 4, 0.1),
        "Amazon_Toys_and_Games": (0.003, 1024, 1024, 8, 0.15),
    }
    keys = ("learning_rate", "hidden_size", "inner_size", "n_heads", "label_smoothing")
    common = {
        "warmup_steps": 10_000,
        "dropout_prob": 0.1,
        "sid_digits": 4,
        "sid_codes": 256,
        "encoder_layers": 1,
        "decoder_layers": 4,
        "MAX_ITEM_LIST_LENGTH": 50,
        "epochs": 100,
        "stopping_step": 15,
        "train_batch_size": 1024,
        "learner": "adamw",
        "weight_decay": 0.0,
        "clip_grad_norm": 1.0,
        "valid_metric": "0.8*NDCG@10+0.2*Recall@10",
        "min_history": 2,
        "max_history": 50,
    }
    for dataset, values in table.items():
        config = build_config("DiffGRM", dataset)
        assert tuple(config[key] for key in keys) == values
        assert {key: config.values[key] for key in common} == common
        # The baselines beside it keep their own settings.
        assert build_config("SASRec", dataset)["train_batch_size"] == 256

"""RecBole's own functions with this project's models, and RecBole itself on today's libraries."""

import logging
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

import recbole_diffgrm.register as register
from recbole_diffgrm import UserError, checkpoint, run
from recbole_diffgrm.config.recbole_config import Config as OurConfig
from recbole_diffgrm.models import MODELS
from recbole_diffgrm.register.trainer import StockTrainer, break_ties
from tests.conftest import run_python

from recbole.config import Config  # isort: skip
from recbole.data import create_dataset, data_preparation  # isort: skip
from recbole.quick_start import load_data_and_model, objective_function, run_recbole  # isort: skip
from recbole.trainer import HyperTuning, Trainer  # isort: skip
from recbole.utils import get_model, get_trainer  # isort: skip
from recbole.utils.case_study import full_sort_scores, full_sort_topk  # isort: skip

EQUAL = {"rel": 0, "abs": 1e-9}


@pytest.fixture(autouse=True)
def stock_process(tmp_path, monkeypatch):
    """RecBole writes into the working directory, reads the command line, and takes over logging and standard output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["program"])
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    for handler in set(root.handlers) - set(handlers):
        root.removeHandler(handler)
        handler.close()


@pytest.fixture
def arguments(options) -> dict:
    """The settings of `options` as RecBole takes them."""
    settings = {key: value for key, value in options.items() if key not in ("config_files", "output_dir")}
    return {"config_file_list": [str(path) for path in options["config_files"]], "config_dict": settings}


def build(name, arguments, **changes):
    """Step by step, as in RecBole's documentation: (trainer, train_data, valid_data, test_data)."""
    config = Config(name, "tiny", arguments["config_file_list"], {**arguments["config_dict"], **changes})
    dataset = create_dataset(config)
    train_data, valid_data, test_data = data_preparation(config, dataset)
    torch.manual_seed(0)
    model = get_model(config["model"])(config, train_data.dataset).to(config["device"])
    return get_trainer(config["MODEL_TYPE"], config["model"])(config, model), train_data, valid_data, test_data


# Runs


@pytest.mark.parametrize("name", register.NAMES)
def test_a_run_of_recbole_is_one_of_ours(name, options, arguments):
    ours = run(name, "tiny", **options)
    stock = run_recbole(name, "tiny", **arguments)
    assert stock["test_result"] == pytest.approx({key: ours.test["all"][key] for key in stock["test_result"]}, **EQUAL)
    assert {"recall@10", "ndcg@10", "mrr@5"} <= set(stock["test_result"])
    assert stock["best_valid_result"] == pytest.approx(ours.valid, **EQUAL)
    if ours.curve:
        assert stock["best_valid_score"] == pytest.approx(max(entry["score"] for entry in ours.curve), **EQUAL)

    [file] = Path("saved").glob(f"{name}-*.pth")
    config, model, _, _, _, test_data = load_data_and_model(str(file))
    assert type(model).__name__ == name and config["hidden_size"] == ours.config.get("hidden_size")
    again = Trainer(config, model).evaluate(test_data, load_best_model=False)
    assert again == pytest.approx(stock["test_result"], **EQUAL)

    samples = test_data.dataset.inter_feat
    users, target = samples["user_id"], samples["item_id"]
    scores = full_sort_scores(users.tolist(), model, test_data)
    of_target = scores.gather(1, target[:, None])
    is_before = (scores > of_target) | ((scores == of_target) & (torch.arange(scores.shape[1]) < target[:, None]))
    expected = np.load(ours.run_dir / "ranks.npz")["item_all"]
    within = expected <= 10
    assert within.any() and np.array_equal((is_before.sum(1) + 1).numpy()[within], expected[within])
    best, items = full_sort_topk(users[:3].tolist(), model, test_data, k=4)
    assert items.shape == (3, 4) and torch.allclose(best, scores[:3].topk(4).values, atol=1e-4)


@pytest.mark.parametrize(
    "name, changes",
    [
        ("DiffGRM", {"preset": "item", "hidden_size": 16, "sid_text_encoder": "random", "item_text": False}),
        ("DiffGRM", {"decoding": "unconstrained", "sid_collisions": "keep"}),
        ("HSTU", {"sample_unit": "sequence"}),
        ("TIGER", {"min_history": 3}),
        ("RecJPQ", {}),
    ],
)
def test_weights_of_ours_have_the_same_metrics_in_recbole(name, changes, options, arguments):
    metrics = ["Recall", "MRR", "NDCG", "Hit", "Precision", "ItemCoverage", "AveragePopularity", "TailPercentage"]
    changes = {**changes, "metrics": metrics, "topk": [1, 7], "valid_metric": "MRR@7"}
    ours = run(name, "tiny", **{**options, **changes})
    trainer, train_data, _, test_data = build(name, arguments, **changes)
    trainer.model.load_state_dict(checkpoint.load(ours.run_dir / "best.pt")["state_dict"])
    trainer.eval_collector.data_collect(train_data)
    result = trainer.evaluate(test_data, load_best_model=False)
    assert len(result) == 2 * len(metrics)
    assert result == pytest.approx({key: ours.test["all"][key] for key in result}, **EQUAL)


def test_every_setting_of_training_counts(options, arguments):
    changes = {
        "epochs": 5,
        "scheduler": "linear",
        "warmup_steps": 3,
        "ema_decay": 0.9,
        "eval_from": 2,
        "stopping_step": 2,
        "clip_grad_norm": 0.1,
        "weight_decay": 0.01,
        "learner": "adamw",
        "num_valid_users": 20,
        "valid_metric": "0.8*NDCG@10+0.2*sid_recall@5",
    }
    ours = run("DiffGRM", "tiny", **{**options, **changes})
    arguments["config_dict"] |= changes
    stock = run_recbole("DiffGRM", "tiny", **arguments)
    assert stock["test_result"] == pytest.approx({key: ours.test["all"][key] for key in stock["test_result"]}, **EQUAL)
    assert stock["best_valid_result"] == pytest.approx(ours.valid, **EQUAL)
    score = 0.8 * ours.valid["ndcg@10"] + 0.2 * ours.valid["sid_recall@5"]
    assert stock["best_valid_score"] == pytest.approx(score, **EQUAL)


# Training


def test_fit_keeps_the_best_weights_with_or_without_a_file(arguments):
    seen = []
    trainer, train_data, valid_data, _ = build("HSTU", arguments, epochs=6, learning_rate=0.3)
    score, result = trainer.fit(train_data, valid_data, saved=False, callback_fn=lambda *given: seen.append(given))
    assert [epoch for epoch, _ in seen] == list(range(6)) and score == max(score for _, score in seen)
    assert seen[-1][1] < score, "the last epoch is the best: nothing is tested here"
    assert trainer.evaluate(valid_data, load_best_model=False) == pytest.approx(
        {key: value for key, value in result.items() if not key.startswith("sid_")}, **EQUAL
    )
    assert not list(Path("saved").glob("*.pth"))
    assert list(trainer.train_loss_dict) == list(range(6))


def test_training_resumes_from_a_checkpoint_of_recbole(arguments):
    trainer, train_data, valid_data, test_data = build("HSTU", arguments, epochs=2)
    trainer.fit(train_data, valid_data)
    saved = torch.load(trainer.saved_model_file, weights_only=False)
    again, *_ = build("HSTU", arguments, epochs=4)
    again.resume_checkpoint(trainer.saved_model_file)
    epochs = []
    score, _ = again.fit(train_data, valid_data, callback_fn=lambda epoch, score: epochs.append(epoch))
    assert epochs == list(range(saved["epoch"] + 1, 4)) and score >= saved["best_valid_score"] > 0
    steps_per_epoch = saved["optimizer"]["state"][0]["step"] / (saved["epoch"] + 1)
    assert again.optimizer.state_dict()["state"][0]["step"] == 4 * steps_per_epoch
    assert again.evaluate(test_data)["ndcg@10"] > 0


def test_without_validation_the_last_weights_stay(arguments):
    trainer, train_data, valid_data, _ = build("HSTU", arguments, eval_args={"split": {"LS": "test_only"}})
    assert len(valid_data) == 0
    assert trainer.fit(train_data, valid_data) == (-np.inf, None)
    assert torch.load(trainer.saved_model_file, weights_only=False)["epoch"] == 1


def test_break_ties_is_a_stable_sort():
    scores = torch.randint(-3, 4, (200, 30), generator=torch.Generator().manual_seed(0)).float()
    scores[:, 0] = -torch.inf
    scores[:20, 5:] = -torch.inf  # fewer than k
    expected = scores.argsort(dim=1, descending=True, stable=True)[:, :10]
    broken = break_ties(scores.clone(), 10)
    values, items = broken.topk(10)
    ranked = values > -torch.inf
    assert torch.equal(items[ranked], expected[ranked]) and torch.equal(
        ranked.sum(1), (scores > -torch.inf).sum(1).clamp(max=10)
    )
    assert (broken - scores).nan_to_num().abs().max() < 1e-5


# Configuration


def test_config_has_our_layers(arguments, tmp_path, monkeypatch):
    extra = tmp_path / "extra.yaml"
    extra.write_text("epochs: 7\nmodels: {RPG: {epochs: 8, hidden_size: 32}, HSTU: {epochs: 9}}\n")
    files = [*arguments["config_file_list"], str(extra)]
    config = Config("RPG", "tiny", files, {"preset": "cpu", "seed": 3})
    assert isinstance(config, OurConfig) and config["epochs"] == 8 and config["hidden_size"] == 32
    preset = Config("RPG", "tiny", config_dict={"preset": "cpu"})
    assert (
        preset["temperature"] == Config("RPG", "tiny")["temperature"] and preset.values != Config("RPG", "tiny").values
    )
    monkeypatch.setattr(sys, "argv", ["program", "--seed=4", "--learning_rate=1e-2", "--config_files=a", "--mine=1"])
    config = Config("RPG", "tiny", files, {"seed": 3, "checkpoint_dir": "here", "metric_decimal_place": 2})
    assert config["seed"] == 4 and config["learning_rate"] == 0.01 and "mine" not in config
    assert config["checkpoint_dir"] == "here" and config["metric_decimal_place"] == 2


def test_the_model_may_be_named_anywhere(arguments, tmp_path, monkeypatch):
    file = tmp_path / "named.yaml"
    file.write_text("model: HSTU\ndataset: tiny\n")
    assert Config(config_file_list=[file]).model == "HSTU"
    assert Config(config_file_list=[file], config_dict={"model": "RPG"}).model == "RPG"
    assert Config(model=get_model("TIGER"), dataset="tiny").model_class is get_model("TIGER")
    monkeypatch.setattr(sys, "argv", ["program", "--model=ARM"])
    assert Config(config_file_list=[file]).model == "ARM"


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"lerning_rate": 1}, "learning_rate"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"repeatable": False}, "recbole_diffgrm.run"),
        ({"save_dataset": True}, "save_dataset.*another tokenizer"),
        ({"dataloaders_save_path": "saved.pth"}, "dataloaders_save_path.*another tokenizer"),
        ({"attn_dropout_prob": 0.1}, "does not read 'attn_dropout_prob'"),  # a dictionary serves one run
        ({"eval_args": {"mode": {"valid": "full", "test": "uni100"}}}, "recbole_diffgrm.run"),
        ({"preset": "none"}, "preset"),
    ],
)
def test_mistakes_are_one_line(changes, message):
    with pytest.raises(UserError, match=message):
        Config("HSTU", "tiny", config_dict=changes)


# Tuning


def test_objective_function_and_hyper_tuning(arguments, tmp_path, monkeypatch):
    """Against a stand-in for hyperopt that tries everything."""
    file = tmp_path / "fixed.yaml"
    file.write_text("model: HSTU\ndataset: tiny\nepochs: 1\nMAX_ITEM_LIST_LENGTH: 10\nshow_progress: False\n")
    files = [*arguments["config_file_list"], str(file)]
    fixed = {"data_path": arguments["config_dict"]["data_path"]}
    result = objective_function({**fixed, "topk": "[10, 20]"}, files)
    assert result["model"] == "HSTU" and "ndcg@20" in result["test_result"] and result["best_valid_score"] > 0

    hyperopt = types.ModuleType("hyperopt")
    hyperopt.hp = types.SimpleNamespace(choice=lambda name, values: (name, values))
    hyperopt.STATUS_OK = "ok"
    hyperopt.early_stop = types.ModuleType("hyperopt.early_stop")
    hyperopt.early_stop.no_progress_loss = lambda steps: None
    hyperopt.fmin = lambda trial, space, **more: [trial({**fixed, "hidden_size": n}) for n in space["hidden_size"][1]]
    monkeypatch.setitem(sys.modules, "hyperopt", hyperopt)
    monkeypatch.setitem(sys.modules, "hyperopt.early_stop", hyperopt.early_stop)
    space = {"choice": {"hidden_size": [8, 16]}}
    tuning = HyperTuning(objective_function, params_dict=space, fixed_config_file_list=files, algo=lambda: None)
    tuning.run()
    assert len(tuning.params2result) == 2 and tuning.best_score == max(tuning.score_list)


# RecBole's own models


def test_recbole_s_models_stay_recbole_s(arguments):
    assert set(MODELS) - set(register.NAMES) == {"Pop"}
    assert get_model("Pop").__module__ == "recbole.model.general_recommender.pop"
    changes = {"train_neg_sample_args": None, "load_col": {"inter": ["user_id", "item_id", "timestamp"]}}
    config = Config("SASRec", "tiny", config_dict={**arguments["config_dict"], **changes, "unknown": 1})
    assert type(config) is Config and "output_dir" not in config and config["metric_decimal_place"] == 4
    dataset = create_dataset(config)
    assert type(dataset).__name__ == "SequentialDataset"
    train_data, *_ = data_preparation(config, dataset)
    model = get_model("SASRec")(config, train_data.dataset)
    assert type(Trainer(config, model)) is Trainer and get_trainer(config["MODEL_TYPE"], "SASRec") is Trainer
    assert not issubclass(StockTrainer, type(model)) and not torch.is_anomaly_enabled()


STOCK = """
import sys
sys.modules["ray"] = None  # as if it were not installed
import pickle, torch
import recbole_diffgrm.register
from recbole.quick_start import load_data_and_model, objective_function, run_recbole
from recbole.trainer import Trainer
metrics = {"metrics": ["Recall", "ItemCoverage"], "valid_metric": "Recall@10"}
settings = {"epochs": 2, "learning_rate": 0.01, "show_progress": False, "eval_batch_size": 10**6, **metrics}
result = run_recbole("BPR", "ml-100k", config_dict=settings)
[file] = __import__("glob").glob("saved/BPR-*.pth")
config, model, dataset, train_data, valid_data, test_data = load_data_and_model(file)
trainer = Trainer(config, model)
trainer.eval_collector.data_collect(train_data)
assert type(trainer) is Trainer and trainer.evaluate(test_data, load_best_model=False) == result["test_result"], result
assert 0.02 < result["test_result"]["recall@10"] < 0.3 and 0 < result["test_result"]["itemcoverage@10"] < 1, result
try:
    torch.load(file)
except pickle.UnpicklingError:
    print("refused elsewhere")
assert objective_function({**settings, "model": "BPR", "dataset": "ml-100k", "epochs": 1})["test_result"]
assert "ray" not in sys.modules
"""


@pytest.mark.slow
def test_recbole_runs_on_today_s_libraries_without_ray(tmp_path):
    root = Path(__file__).resolve().parent.parent
    script = f"import os, sys; os.chdir({str(tmp_path)!r}); sys.path.insert(0, {str(root)!r})\n{STOCK}"
    done = run_python("-c", script)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "refused elsewhere" in done.stdout

"""Runs as people use them."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import recbole_diffgrm
from recbole_diffgrm import Recommender, UserError, checkpoint, run
from recbole_diffgrm.cli.main import main
from recbole_diffgrm.evaluation.significance import ndcg_at
from recbole_diffgrm.experiments.pipeline import retest
from recbole_diffgrm.experiments.result import RunResult
from tests.conftest import AMAZON_DATA, ROOT, needs_amazon, write_dataset


def arguments(options: dict, **extra) -> list[str]:
    settings = {**options, **extra}
    files = " ".join(map(str, settings.pop("config_files")))
    return ["--dataset=tiny", f"--config_files={files}", *(f"--{key}={value}" for key, value in settings.items())]


def test_run_directory(options):
    result = run("SASRec", "tiny", **options, save_topk=3)
    directory = result.run_dir
    assert directory.parent.name == "tiny"
    name, day, time, config_hash = directory.name.split("-")
    assert (name, len(day), len(time), config_hash) == ("SASRec", 8, 6, result.config_hash)
    assert sorted(path.name for path in directory.iterdir()) == [
        "best.pt",
        "config.yaml",
        "examples.json",
        "items.tsv",
        "log.txt",
        "ranks.npz",
        "report.html",
        "result.json",
        "tensorboard",
        "topk.tsv",
    ]
    assert RunResult.load(directory) == result

    content = json.loads((directory / "result.json").read_text())
    assert content["config"]["epochs"] == 2
    assert content["environment"]["versions"]["recbole"] == "1.2.1"
    assert content["environment"]["recbole_diffgrm"] == recbole_diffgrm.__version__
    assert content["environment"]["commit"] is None or len(content["environment"]["commit"]) >= 40
    assert content["statistics"]["users"] == 60
    assert content["statistics"]["train_samples"] + 2 * 60 == content["statistics"]["interactions"] - 60
    assert len(content["curve"]) == 2 and {"loss", "seconds", "valid", "score"} <= set(content["curve"][0])
    assert content["valid"] == content["curve"][content["best_epoch"] - 1]["valid"]
    assert all(content["seconds"][part] > 0 for part in ("train", "valid", "test"))
    assert content["peak_memory_mib"] > 50 and content["parameters"] > 1000
    assert "train epoch 2" in (directory / "log.txt").read_text()
    assert yaml.safe_load((directory / "config.yaml").read_text())["epochs"] == 2
    assert checkpoint.load(directory / "best.pt")["state_dict"]


def test_ranks_and_lists_explain_the_metrics(options):
    result = run("GRU4Rec", "tiny", **options, save_topk=10)
    with np.load(result.run_dir / "ranks.npz") as saved:
        user, target, rank = saved["user"], saved["target"], saved["item_all"]
    assert len(user) == 60 and user[0].startswith("u") and target[0].startswith("i")
    assert ndcg_at(rank).mean() == pytest.approx(result.test["all"]["ndcg@10"], abs=1e-12)
    assert (rank <= 5).mean() == pytest.approx(result.test["all"]["recall@5"], abs=1e-12)
    lists: dict[str, list[str]] = {}
    with (result.run_dir / "topk.tsv").open() as file:
        for row in csv.DictReader(file, delimiter="\t"):
            lists.setdefault(row["user_id"], []).append(row["item_id"])
    for name, item, expected in zip(user, target, rank):
        assert len(lists[name]) == 10
        assert (lists[name].index(item) + 1 if item in lists[name] else None) == (expected if expected <= 10 else None)


def test_tensorboard_events(options):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = run("SASRec", "tiny", **options)
    events = EventAccumulator(str(result.run_dir / "tensorboard"))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    assert {"train/loss", "train/learning_rate", "valid/ndcg@10", "valid/score", "test/ndcg@10"} <= tags
    losses = [event.value for event in events.Scalars("train/loss")]
    assert losses == pytest.approx([entry["loss"] for entry in result.curve])


def test_nothing_is_written_into_the_working_directory(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("SASRec", "tiny", **options)
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


@pytest.mark.slow
def test_seen_items_filtered(options):
    kept = run("SASRec", "tiny", **options, save_topk=30)
    filtered = run("SASRec", "tiny", **options, save_topk=30, repeatable=False)
    histories: dict[str, set[str]] = {}
    lines = (options["config_files"][0].parent / "tiny" / "tiny.inter").read_text().splitlines()[1:]
    for line in lines:
        user, item, *_ = line.split("\t")
        histories.setdefault(user, set()).add(item)

    def repeats(result):
        with (result.run_dir / "topk.tsv").open() as file, np.load(result.run_dir / "ranks.npz") as ranks:
            target = dict(zip(ranks["user"], ranks["target"]))
            rows = list(csv.DictReader(file, delimiter="\t"))
        return sum(r["item_id"] in histories[r["user_id"]] and r["item_id"] != target[r["user_id"]] for r in rows)

    assert repeats(filtered) == 0
    assert repeats(kept) > 100
    assert filtered.test["unseen"]["ndcg@10"] != kept.test["all"]["ndcg@10"]
    assert filtered.test == {"unseen": kept.test["unseen"]}  # the one run tests both
    with np.load(kept.run_dir / "ranks.npz") as both, np.load(filtered.run_dir / "ranks.npz") as unseen:
        assert (both["item_unseen"] == unseen["item_unseen"]).all() and "item_all" not in unseen
        assert (both["item_all"] != unseen["item_unseen"]).any()


@pytest.mark.parametrize("split", ["valid_only", "test_only"])
def test_other_splits(options, split):
    result = run("SASRec", "tiny", **options, eval_args={"split": {"LS": split}})
    assert bool(result.valid) == (split == "valid_only")
    assert bool(result.test) == (split == "test_only")


def test_no_epochs(options):
    result = run("SASRec", "tiny", **{**options, "epochs": 0})
    assert result.best_epoch is None and result.valid and result.test


def test_feature_that_is_not_loaded(options):
    columns = {"inter": ["user_id", "item_id", "timestamp"]}
    with pytest.raises(UserError, match="FDSA uses the item feature 'categories'"):
        run("FDSA", "tiny", **options, load_col=columns)


def test_too_small_dataset(tmp_path, capsys):
    write_dataset(tmp_path, users=1)
    path = tmp_path / "tiny" / "tiny.inter"
    path.write_text("\n".join(path.read_text().splitlines()[:3]) + "\n")
    code = main(["--dataset=tiny", f"--data_path={tmp_path}", f"--output_dir={tmp_path / 'runs'}"])
    assert code == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert len(errors) == 1 and "too small" in errors[0]


def test_popularity_metrics_in_validation(options):
    result = run("SASRec", "tiny", **options, metrics=["NDCG", "AveragePopularity"])
    assert result.valid["averagepopularity@10"] > 1
    assert result.test["all"]["averagepopularity@10"] > 1


def test_config_yaml_gives_the_same_run(options):
    shares = tuple(np.array([0.8, 0.1, 0.1]))  # a tuple and numpy's numbers: YAML has neither
    first = run("SASRec", "tiny", **options, eval_args={"split": {"RS": shares}})
    again = run("SASRec", "tiny", first.run_dir / "config.yaml")
    assert again.config_hash == first.config_hash
    assert again.test == first.test
    saved = yaml.safe_load((first.run_dir / "config.yaml").read_text())
    assert list(saved["eval_args"]) == list(first.config["eval_args"])  # an order may have a meaning: sid_text_fields


@pytest.mark.parametrize("settings", [{"user_inter_num_interval": "[1000,inf)"}, {"eval_args": {"mode": "uni1000"}}])
def test_data_that_cannot_be_used_leave_no_run_directory(options, settings):
    with pytest.raises(UserError):
        run("SASRec", "tiny", **options, **settings)
    assert not Path(options["output_dir"]).exists()


@pytest.mark.slow
def test_same_metrics_from_two_processes_with_two_threads(options, tmp_path):
    outcomes = []
    for number in (1, 2):
        command = [sys.executable, str(ROOT / "run_recbole_diffgrm.py")]
        command += arguments({**options, "output_dir": tmp_path / str(number)})
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "2"})
        result = RunResult.load(next((tmp_path / str(number) / "tiny").iterdir()))
        assert result.environment["threads"] == 2
        outcomes.append((result.test, result.valid, [entry["loss"] for entry in result.curve]))
    assert outcomes[0] == outcomes[1]


def test_single_run_prints_a_table(options, capsys):
    assert main(arguments(options)) == 0
    printed = capsys.readouterr().out
    assert "item level" in printed and "validation" in printed and "ndcg@10" in printed and "results: " in printed


@pytest.mark.slow
def test_from_another_working_directory(options, tmp_path):
    """Properties are found from the package, and paths given are relative to where the user is."""
    command = [sys.executable, str(ROOT / "run_recbole_diffgrm.py"), *arguments({**options, "output_dir": "here"})]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "here" / "tiny").is_dir()


BASELINES = ["GRU4Rec", "SASRec", "BERT4Rec", "HGN", "FDSA", "S3Rec"]


def check_baseline(model, dataset, tmp_path, **overrides):
    if model == "S3Rec":
        overrides["pretrain_epochs"] = 1
    # A part of the users, so that one epoch of every model fits into a test.
    result = run(model, dataset, output_dir=str(tmp_path), epochs=1, show_progress=False, **overrides)
    assert result.epochs == 1 and result.best_epoch == 1
    assert list(result.test) == ["all", "unseen"]
    for metrics in result.test.values():
        assert set(metrics) == {f"{metric}@{k}" for metric in ("recall", "ndcg", "hit", "mrr") for k in (5, 10)}
        assert all(0 <= value <= 1 for value in metrics.values())
    assert checkpoint.load(result.run_dir / "best.pt")["state_dict"]


@pytest.mark.slow
@pytest.mark.parametrize("model", BASELINES)
def test_baselines_on_ml_100k(model, tmp_path):
    check_baseline(model, "ml-100k", tmp_path, user_inter_num_interval="[20,24]")


@pytest.mark.slow
@needs_amazon
@pytest.mark.parametrize("model", BASELINES)
def test_baselines_on_amazon_beauty(model, tmp_path):
    check_baseline(model, "Amazon_Beauty", tmp_path, data_path=str(AMAZON_DATA), user_inter_num_interval="[40,60]")


@needs_amazon
def test_amazon_beauty_as_in_the_paper():
    from recbole_diffgrm.data.dataset import FlatSequentialDataset
    from recbole_diffgrm.models import build_config

    dataset = FlatSequentialDataset(build_config("SASRec", "Amazon_Beauty", overrides={"data_path": str(AMAZON_DATA)}))
    train, valid, test = dataset.build()
    statistics = dataset.statistics()
    assert (statistics["users"], statistics["items"], statistics["interactions"]) == (22363, 12101, 198502)
    assert (len(train), len(valid), len(test)) == (131413, 22363, 22363)
    before = train.inter_feat.flat.position[train.inter_feat.rows.long()]  # interactions before each target
    assert int(((before >= 2) & (before <= 50)).sum()) == 105668  # the paper's samples


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        "SASRecF",
        "GRU4RecF",
        "Caser",
        "NARM",
        "STAMP",
        "NextItNet",
        "SHAN",
        "CORE",
        "LightSANs",
        "FPMC",
        "TransRec",
        "SINE",
    ],
)
def test_other_sequential_models_of_recbole(model, options):
    if model.endswith("F"):
        options["selected_features"] = ["categories"]
    assert run(model, "tiny", **{**options, "epochs": 1}).test


def test_popularity_does_not_depend_on_the_samples_of_a_model(options):
    """Metrics of popularity count the same interactions for every model of a comparison."""
    settings = {**options, "metrics": ["NDCG", "AveragePopularity"], "epochs": 0, "valid_metric": "NDCG@10"}
    of_all = run("SASRec", "tiny", **settings)
    of_some = run("SASRec", "tiny", **settings, min_history=4)
    assert of_some.statistics["train_samples"] < of_all.statistics["train_samples"]
    assert of_some.test == of_all.test


@pytest.mark.slow
def test_weights_tested_with_other_settings(options, capsys):
    settings = {key: value for key, value in options.items() if key != "config_files"}
    trained = run("DiffGRM", "tiny", options["config_files"], **settings)
    again = retest(trained.run_dir, beam_size=10, repeatable=False)
    assert list(again.test) == ["unseen"] and again.weights_of == trained.config_hash
    assert again.config_hash != trained.config_hash and again.run_dir != trained.run_dir
    assert again.curve == trained.curve and again.seconds["train"] == 0
    assert retest(trained.run_dir).test == trained.test
    assert Recommender.load(again.run_dir).recommend([["i1"]], 3)
    assert main([f"--retest={trained.run_dir}", "--beam_size=200"]) == 0
    assert "DiffGRM, item level" in capsys.readouterr().out
    for arguments, words in (
        ([f"--retest={trained.run_dir}", "--hidden_size=8"], "hidden_size cannot be changed"),
        ([f"--retest={trained.run_dir}", "--beam_size=5"], "beam_size: 5 SIDs are too few for topk 10"),
        ([f"--retest={trained.run_dir}", "--sid_file=x.sid"], "sid_file cannot be changed"),
        (["--retest=nowhere"], "nowhere is not a run directory"),
        (["--retest"], "needs the directory of a finished run"),
    ):
        assert main(arguments) == 2
        assert words in capsys.readouterr().err


def test_weights_tested_with_other_metrics_and_modes(options, capsys):
    """Against the ranks of the run itself, and a run that had these settings from the start."""
    trained = run("SASRec", "tiny", **options)
    ranks = dict(np.load(trained.run_dir / "ranks.npz"))["item_all"]
    again = retest(trained.run_dir, topk=[3, 30], metrics=["Recall", "NDCG", "ItemCoverage"])
    assert again.test["all"]["recall@3"] == pytest.approx((ranks <= 3).mean())
    assert again.test["all"]["ndcg@30"] == pytest.approx(ndcg_at(ranks, 30).mean())
    assert {"recall@30", "itemcoverage@3"} <= set(again.valid) and "recall@10" not in again.valid
    assert again.curve == trained.curve and again.weights_of == trained.config_hash != again.config_hash
    assert main([f"--retest={trained.run_dir}", "--topk=20", "--valid_metric=Recall@20"]) == 0
    assert "recall@20" in capsys.readouterr().out

    mode = {"valid": "full", "test": "uni5"}
    sampled = retest(trained.run_dir, eval_args={"mode": mode})
    assert sampled.test == run("SASRec", "tiny", **options, eval_args={"mode": mode}).test
    assert (
        sampled.valid == trained.valid and sampled.config["eval_args"]["split"] == trained.config["eval_args"]["split"]
    )
    assert retest(sampled.run_dir, eval_args={"mode": "full"}).test == trained.test


def test_what_a_retest_refuses(options, capsys):
    trained = run("DiffGRM", "tiny", **{**options, "epochs": 0})
    capsys.readouterr()
    for change, words in {
        "--eval_args={split: {LS: test_only}}": "only its mode can be changed without training again",
        "--eval_args={mode: uni}": "mode must be full, or uni or pop and the number",
        "--topk=[5, 1000]": "SIDs are too few for topk 1000",
        "--topk=0": "topk must be a list of whole numbers",
        "--metrics=[Recal]": "Did you mean Recall?",
        "--valid_metric=NDCG@7": "NDCG@7 is not among metrics x topk",
        "--learning_rate=1": "learning_rate cannot be changed without training again",
    }.items():
        assert main([f"--retest={trained.run_dir}", change]) == 2
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1  # before torch is loaded

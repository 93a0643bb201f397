"""What trackers are told: against stubs of their packages, and against the packages where they are installed."""

import itertools
import json
import logging
import random
import re
import struct
import sys
import time
import types
from collections import namedtuple
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import torch

from recbole_diffgrm import UserError, compare, run
from recbole_diffgrm.cli.main import main
from recbole_diffgrm.cli.study import main as study
from recbole_diffgrm.experiments.pipeline import retest
from recbole_diffgrm.training import tracking
from recbole_diffgrm.training.trainer import Trainer


def expected_numbers(result) -> dict[str, list[tuple[int, float]]]:
    """{name: [(epoch, value)]} as result.json has them, written down anew."""
    numbers: dict[str, list[tuple[int, float]]] = {}
    for entry in result.curve:
        named = {f"{entry['stage']}/{key}": entry[key] for key in ("loss", "learning_rate", "seconds")}
        named |= {f"valid/{name}": value for name, value in entry.get("valid", {}).items()}
        if "score" in entry:
            named["valid/score"] = entry["score"]
        for name, value in named.items():
            numbers.setdefault(name, []).append((entry["epoch"], value))
    for name, value in result.test["all"].items():
        numbers[f"test/{name}"] = [(result.best_epoch, value)]
    return numbers


class WandbRun:
    def __init__(self, settings):
        self.settings, self.rows, self.exit_codes, self.steps = settings, [], [], {}

    def define_metric(self, name, step_metric):
        self.steps[name] = step_metric

    def log(self, row):
        self.rows.append(row)

    def finish(self, exit_code):
        self.exit_codes.append(exit_code)

    def numbers(self):
        numbers: dict[str, list[tuple[int, float]]] = {}
        for row in self.rows:
            for name in row.keys() - {"epoch"}:
                numbers.setdefault(name, []).append((row["epoch"], row[name]))
        return numbers


@pytest.fixture
def wandb(monkeypatch):
    """Runs by their ids, as the server would keep them."""
    runs: dict[str, WandbRun] = {}

    def init(**settings):
        random.random(), torch.rand(1)  # whatever a package draws at its start
        assert settings["resume"] == "allow" and settings["reinit"] == "create_new"
        return runs.setdefault(settings["id"], WandbRun(settings))

    return stub(monkeypatch, "wandb", init=init, runs=runs)


class MLflowStore:
    """Of one URI; refuses what MLflow refuses."""

    def __init__(self):
        self.experiments, self.runs = {}, {}

    def get_experiment_by_name(self, name):
        found = self.experiments.get(name)
        return types.SimpleNamespace(experiment_id=found) if found else None

    def create_experiment(self, name):
        self.experiments[name] = f"e{len(self.experiments)}"
        return self.experiments[name]

    def create_run(self, experiment_id, run_name, tags):
        assert experiment_id in self.experiments.values()
        run_id = f"r{len(self.runs)}"
        self.runs[run_id] = {"name": run_name, "tags": tags, "params": {}, "metrics": {}, "status": []}
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run_id))

    def update_run(self, run_id, status):
        self.runs[run_id]["status"].append(status)

    set_terminated = update_run

    def log_batch(self, run_id, metrics=(), params=()):
        assert len(params) <= 100 and len(metrics) <= 1000
        for param in params:
            assert param.key not in self.runs[run_id]["params"] and isinstance(param.value, str)
            self.runs[run_id]["params"][param.key] = param.value
        for metric in metrics:
            assert re.fullmatch(r"[\w\-. :/]+", metric.key)
            self.runs[run_id]["metrics"].setdefault(metric.key, []).append((metric.step, metric.value))


@pytest.fixture
def mlflow(monkeypatch):
    stores: dict[str | None, MLflowStore] = {}
    entities = types.SimpleNamespace(
        Param=namedtuple("Param", "key value"), Metric=namedtuple("Metric", "key value timestamp step")
    )
    stub(monkeypatch, "sqlalchemy")
    return stub(
        monkeypatch,
        "mlflow",
        MlflowClient=lambda tracking_uri: stores.setdefault(tracking_uri, MLflowStore()),
        is_tracking_uri_set=lambda: False,
        entities=entities,
        stores=stores,
    )


def stub(monkeypatch, name, **content):
    module = types.ModuleType(name)
    module.__spec__ = ModuleSpec(name, loader=None, origin="stub")
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def the_run(mlflow) -> dict:
    (store,) = mlflow.stores.values()
    (only,) = store.runs.values()
    return only


def warnings_of(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def break_in_epoch(monkeypatch, number: int, error: type[BaseException]) -> None:
    """Stop training in the middle of an epoch."""
    original = Trainer._step

    def step(self, *arguments):
        if self.progress.epoch + 1 == number and self.progress.batch == 2:
            raise error
        return original(self, *arguments)

    monkeypatch.setattr(Trainer, "_step", step)


def test_all_at_once_are_told_what_result_json_says(options, wandb, mlflow):
    plain = run("SASRec", "tiny", **options)
    tracked = run("SASRec", "tiny", **options, log_wandb=True, wandb_project="mine", log_mlflow=True)
    assert (tracked.test, tracked.config_hash) == (plain.test, plain.config_hash)  # trackers change nothing
    assert [entry["loss"] for entry in tracked.curve] == [entry["loss"] for entry in plain.curve]
    expected = expected_numbers(tracked)
    assert len(expected["valid/ndcg@10"]) == 2

    ((run_id, on_wandb),) = wandb.runs.items()
    assert on_wandb.numbers() == expected and on_wandb.exit_codes == [0]
    assert on_wandb.steps == {"*": "epoch"}
    settings = on_wandb.settings
    assert settings["project"] == "mine" and settings["name"] == tracked.run_dir.name
    assert settings["tags"] == ["model: SASRec", "dataset: tiny", "seed: 2020"]
    assert settings["notes"] == f"run directory: {tracked.run_dir}" and settings["dir"] == str(tracked.run_dir)
    assert settings["config"] == {"model": "SASRec", "dataset": "tiny", **tracked.config}

    assert list(mlflow.stores) == [f"sqlite:///{options['output_dir']}/mlflow.db"]
    on_mlflow = the_run(mlflow)
    assert on_mlflow["metrics"] == {name.replace("@", "_at_"): values for name, values in expected.items()}
    assert on_mlflow["status"] == ["RUNNING", "FINISHED"] and on_mlflow["name"] == tracked.run_dir.name
    assert on_mlflow["tags"] == {
        "model": "SASRec",
        "dataset": "tiny",
        "seed": "2020",
        "mlflow.note.content": f"run directory: {tracked.run_dir}",
    }
    config = {"model": "SASRec", "dataset": "tiny", **tracked.config}
    assert len(config) > 100 and on_mlflow["params"] == {key: str(value) for key, value in config.items()}
    ids = {"log_wandb": run_id, "log_mlflow": "r0"}
    assert tracking._read_ids(tracked.run_dir) == ids and not tracking._read_ids(plain.run_dir)


def test_names_of_statistics_and_stages():
    entry = {"stage": "pretrain", "epoch": 3, "loss": 1.0, "learning_rate": 0.1, "seconds": 2.0, "num_targets": 7}
    entry["statistics"] = {"digit_loss": [0.5, 0.25], "masked": 0.75}
    assert tracking.epoch_scalars(entry) == {
        "pretrain/loss": 1.0,
        "pretrain/learning_rate": 0.1,
        "pretrain/seconds": 2.0,
        "pretrain/digit_loss/1": 0.5,
        "pretrain/digit_loss/2": 0.25,
        "pretrain/masked": 0.75,
    }


def test_mlflow_where_the_environment_says(options, mlflow, monkeypatch):
    monkeypatch.setattr(mlflow, "is_tracking_uri_set", lambda: True)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    run("Pop", "tiny", **options, log_mlflow=True)
    assert list(mlflow.stores) == [None] and list(mlflow.stores[None].experiments) == ["mine"]


def test_each_run_of_a_comparison_is_one_tracked_run(options, wandb, mlflow):
    table = compare(["SASRec", "Pop"], "tiny", **options, seeds=[1, 2], log_wandb=True, log_mlflow=True)
    runs = [result for row in table.rows for result in row.runs]
    assert [kept.settings["name"] for kept in wandb.runs.values()] == [result.run_dir.name for result in runs]
    (store,) = mlflow.stores.values()
    tags = [(kept["tags"]["model"], kept["tags"]["seed"]) for kept in store.runs.values()]
    assert tags == [("SASRec", "1"), ("SASRec", "2"), ("Pop", "1"), ("Pop", "2")]
    assert len(store.experiments) == 1
    again = compare(["SASRec", "Pop"], "tiny", **options, seeds=[1, 2], log_wandb=True, log_mlflow=True)
    assert [result.run_dir for row in again.rows for result in row.runs] == [result.run_dir for result in runs]
    assert len(wandb.runs) == len(store.runs) == 4  # finished runs are used again and not logged again


def test_each_run_of_a_study_is_one_tracked_run(options, wandb, tmp_path):
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "dataset: tiny\n"
        "settings: {epochs: 1, MAX_ITEM_LIST_LENGTH: 10}\n"
        "sections: [{title: All, reference: Pop, runs: {Pop: {model: Pop}, SASRec: {model: SASRec}}}]\n"
        "short_table: {Pop: [Pop], SASRec: [SASRec]}\n"
    )
    arguments = [f"--{key}={options[key]}" for key in ("data_path", "output_dir", "show_progress")]
    assert study([str(plan), *arguments, f"--results={tmp_path / 'results'}", "--log_wandb=True"]) == 0
    assert [kept.settings["config"]["model"] for kept in wandb.runs.values()] == ["Pop", "SASRec"]


def test_a_retest_is_a_tracked_run_with_test_metrics(options, wandb):
    trained = run("SASRec", "tiny", **options)
    again = retest(trained.run_dir, log_wandb=True)
    (kept,) = wandb.runs.values()
    names = {f"test/{name}" for name in again.test["all"]}
    assert set(kept.numbers()) == names and kept.settings["name"] == again.run_dir.name


@pytest.mark.parametrize("key", ["log_wandb", "log_mlflow"])
def test_a_missing_package_is_named_before_any_work(key, options, monkeypatch, tmp_path, capsys):
    find = tracking.importlib.util.find_spec
    packages = ("wandb", "mlflow", "sqlalchemy")
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda name: None if name in packages else find(name))
    with pytest.raises(UserError, match=r'pip install "recbole_diffgrm\[tracking\]"') as caught:
        compare(["SASRec", "Pop"], "tiny", **options, **{key: True})
    assert str(caught.value).startswith(f"{key} needs ") and "\n" not in str(caught.value)
    arguments = ["--dataset=tiny", f"--data_path={options['data_path']}", f"--output_dir={options['output_dir']}"]
    assert main([*arguments, f"--{key}=True"]) == 2
    assert "pip install" in capsys.readouterr().err
    assert not Path(options["output_dir"]).exists()


def test_a_folder_is_no_package(tmp_path, monkeypatch):
    """W&B leaves a folder `wandb` where it was started."""
    (tmp_path / "folder_of_runs").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert not tracking._is_installed("folder_of_runs") and tracking._is_installed("json")


def test_a_tracker_that_cannot_start_is_an_error_before_training(options, wandb, mlflow, monkeypatch):
    def refuse(**settings):
        raise RuntimeError("no API key\nmore lines")

    def train(*arguments):
        raise AssertionError

    monkeypatch.setattr(Trainer, "_step", train)
    monkeypatch.setattr(mlflow, "MlflowClient", refuse)
    with pytest.raises(UserError) as caught:
        run("SASRec", "tiny", **options, log_wandb=True, log_mlflow=True)
    assert str(caught.value).startswith("log_mlflow: MLflow cannot start (") and "\n" not in str(caught.value)
    (kept,) = wandb.runs.values()
    assert kept.exit_codes == [1]  # the one that had started is not left open
    monkeypatch.setattr(wandb, "init", refuse)
    words = r"^log_wandb: Weights & Biases cannot start \(no API key\); mend that, or set log_wandb to False$"
    with pytest.raises(UserError, match=words):
        run("SASRec", "tiny", **options, log_wandb=True)


def test_a_failure_is_one_warning_and_is_made_good_at_the_end(options, wandb, monkeypatch, caplog):
    plain = run("SASRec", "tiny", **{**options, "epochs": 4})
    original, asked = WandbRun.log, []

    def down_for_one_epoch(self, row):
        asked.append(row["epoch"])
        if len(asked) == 2:
            raise ConnectionError("the network is down")
        original(self, row)

    monkeypatch.setattr(WandbRun, "log", down_for_one_epoch)
    tracked = run("SASRec", "tiny", **{**options, "epochs": 4}, log_wandb=True)
    assert tracked.test == plain.test
    assert warnings_of(caplog) == [
        "Weights & Biases failed (the network is down): the run goes on, and at its end this is tried again"
    ]
    assert asked[:2] == [1, 2] and asked[2:6] == [2, 3, 4, tracked.best_epoch]  # no epoch waits for it in between
    (kept,) = wandb.runs.values()
    assert kept.numbers() == expected_numbers(tracked) and kept.exit_codes == [0]


def test_a_tracker_that_never_comes_back(options, mlflow, monkeypatch, caplog):
    def fail(self, run_id, metrics=(), params=()):
        if metrics:
            raise ConnectionError("gone")

    monkeypatch.setattr(MLflowStore, "log_batch", fail)
    tracked = run("SASRec", "tiny", **options, log_mlflow=True)
    assert tracked.epochs == 2 and (tracked.run_dir / "result.json").exists()
    first, last = warnings_of(caplog)
    assert first.startswith("MLflow failed (gone): the run goes on")
    assert last == "MLflow failed (gone): it may lack a part of this run, which result.json has"


def test_the_result_is_saved_before_a_tracker_is_waited_for(options, wandb, monkeypatch):
    def hang(self, exit_code):
        raise KeyboardInterrupt  # as a user would end it

    monkeypatch.setattr(WandbRun, "finish", hang)
    with pytest.raises(KeyboardInterrupt):
        run("SASRec", "tiny", **options, log_wandb=True)
    assert list(Path(options["output_dir"]).glob("tiny/SASRec-*/result.json"))


def test_resumption_continues_the_tracked_run(options, wandb, mlflow, monkeypatch):
    settings = {**options, "epochs": 3, "train_batch_size": 32, "log_wandb": True, "log_mlflow": True}
    with monkeypatch.context() as patch:
        break_in_epoch(patch, 2, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            run("SASRec", "tiny", **settings)
    (kept,) = wandb.runs.values()
    assert kept.exit_codes == [1] and the_run(mlflow)["status"] == ["RUNNING", "FAILED"]
    resumed = run("SASRec", "tiny", **settings, resume=True)
    (kept,) = wandb.runs.values()
    assert kept.numbers() == expected_numbers(resumed) and kept.exit_codes == [1, 0]
    assert the_run(mlflow)["status"] == ["RUNNING", "FAILED", "RUNNING", "FINISHED"]
    assert the_run(mlflow)["metrics"]["valid/score"] == expected_numbers(resumed)["valid/score"]


def test_an_epoch_logged_but_not_saved_is_logged_again_with_the_same_values(options, wandb, monkeypatch):
    settings = {**options, "epochs": 3, "log_wandb": True}
    original = Trainer.save_state

    def die_after_the_first_epoch(self):
        if self.progress.epoch == 1 and self.progress.batch == 0:
            raise KeyboardInterrupt
        original(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "save_state", die_after_the_first_epoch)
        with pytest.raises(KeyboardInterrupt):
            run("SASRec", "tiny", **settings)
    resumed = run("SASRec", "tiny", **settings, resume=True)
    (kept,) = wandb.runs.values()
    once = expected_numbers(resumed)["train/loss"]
    assert kept.numbers()["train/loss"] == once[:1] + once


def run_interrupted(monkeypatch, settings: dict):
    """A run that is stopped in its second epoch, and resumed."""
    with monkeypatch.context() as patch:
        break_in_epoch(patch, 2, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            run("SASRec", "tiny", **settings)
    time.sleep(1)  # W&B names the folder of an offline run by the second in which it starts
    return run("SASRec", "tiny", **settings, resume=True)


@pytest.mark.slow
def test_with_wandb_itself(options, monkeypatch):
    pytest.importorskip("wandb")
    for key, value in {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(key, value)
    tracked = run_interrupted(monkeypatch, {**options, "log_wandb": True})
    assert tracked.test == run("SASRec", "tiny", **options).test
    run_id = tracking._read_ids(tracked.run_dir)["log_wandb"]
    files = sorted(tracked.run_dir.glob(f"wandb/offline-run-*-{run_id}/run-{run_id}.wandb"))
    assert len(files) == 2  # before and after
    numbers: dict[str, list[tuple[int, float]]] = {}
    for row in itertools.chain(*map(read_wandb_history, files)):
        for name in row.keys() - {"epoch"}:
            numbers.setdefault(name, []).append((row["epoch"], row[name]))
    assert {name: values for name, values in numbers.items() if "/" in name} == expected_numbers(tracked)


def read_wandb_history(path: Path) -> list[dict]:
    """The file of a W&B run: a header of 7 bytes, then LevelDB's log format (blocks of 32 KiB) of protobuf records."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, pending, rows = path.read_bytes(), 7, b"", []
    while at < len(content):
        if 32768 - at % 32768 < 7:  # no room for a chunk: the rest of the block is empty
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        pending += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            record = Record.FromString(pending)
            pending = b""
            if record.WhichOneof("record_type") == "history":
                rows.append(
                    {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                )
    return rows


@pytest.mark.slow
def test_with_mlflow_itself(options, monkeypatch, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)
    tracked = run_interrupted(monkeypatch, {**options, "log_mlflow": True})
    assert tracked.test == run("SASRec", "tiny", **options).test
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]  # nothing in the working directory
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("recbole_diffgrm")
    (kept,) = client.search_runs([experiment.experiment_id])
    assert kept.info.status == "FINISHED" and kept.info.run_name == tracked.run_dir.name
    assert kept.data.tags["model"] == "SASRec" and kept.data.params["epochs"] == "2"
    for name, values in expected_numbers(tracked).items():
        history = client.get_metric_history(kept.info.run_id, name.replace("@", "_at_"))
        assert [(metric.step, metric.value) for metric in history] == values, name

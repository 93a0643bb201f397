"""A run that was killed or stopped ends as if nothing had happened."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from recbole_diffgrm import checkpoint
from recbole_diffgrm.cli.main import main
from recbole_diffgrm.experiments.pipeline import run
from recbole_diffgrm.experiments.result import RunResult
from tests.conftest import ROOT, SMALL


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "checkpoint_seconds", "points"),
    [
        ("DiffGRM", 1e-9, 9),
        ("DiffGRM+items", 1e-9, 5),
        ("SASRec", 600, 7),
        ("BERT4Rec", 1e-9, 7),
        ("S3Rec", 1e-9, 7),
        *((model, 1e-9, 3) for model in SMALL),
    ],
)
def test_killed_at_any_moment(model, checkpoint_seconds, points, tiny, tmp_path):
    command = [sys.executable, "-m", "tests.kill_harness", model, tiny, tmp_path, checkpoint_seconds, points]
    done = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["events"] > 40
    assert len(report["killed"]) >= points
    for moment, outcome in report["killed"].items():
        assert outcome == report["reference"], moment


def command_line(tiny, folder, **extra):
    settings = {
        "dataset": "tiny",
        "data_path": tiny,
        "config_files": tiny / "tiny.yaml",
        "output_dir": folder,
        "train_batch_size": 16,
        "epochs": 7,
        "stopping_step": 20,
        "hidden_size": 16,
        "inner_size": 16,
        "checkpoint_seconds": 1000,
        **extra,
    }
    return [sys.executable, "run_recbole_diffgrm.py", *(f"--{key}={value}" for key, value in settings.items())]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_save_and_exit_cleanly(number, tiny, tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command_line(tiny, tmp_path / "stopped"), cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
    )
    for line in process.stderr:
        if "train epoch 2:" in line:
            time.sleep(0.1)  # somewhere inside an epoch
            process.send_signal(number)
            break
    message = process.stderr.read()
    assert process.wait(60) == 128 + number
    assert "continue with --resume" in message and "Traceback" not in message
    (run_dir,) = (tmp_path / "stopped" / "tiny").iterdir()
    assert not (run_dir / "result.json").exists()
    assert checkpoint.load(run_dir / "state.pt")["progress"]["epoch"] >= 2

    # Fewer epochs would be another configuration: finish both runs.
    for folder, extra in (("stopped", ["--resume"]), ("whole", [])):
        command = command_line(tiny, tmp_path / folder) + extra
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
    resumed = RunResult.load(run_dir)
    whole = RunResult.load(next((tmp_path / "whole" / "tiny").iterdir()))
    assert resumed.test == whole.test
    assert [entry["loss"] for entry in resumed.curve] == [entry["loss"] for entry in whole.curve]


def test_resume_without_an_unfinished_run(options, capsys):
    config_files = options.pop("config_files")
    first = run("SASRec", "tiny", config_files, resume=True, **options)  # nothing there: a new run
    assert first.test
    again = run("SASRec", "tiny", config_files, resume=True, **options)  # finished: the same result
    assert again.run_dir == first.run_dir
    other = run("SASRec", "tiny", config_files, resume=True, **{**options, "epochs": 1})  # another configuration
    assert other.run_dir != first.run_dir
    third = run("SASRec", "tiny", config_files, **options)  # not asked to resume: a run of its own
    assert third.run_dir != first.run_dir
    assert third.test == first.test


@pytest.mark.slow
def test_a_run_in_work_is_not_resumed_by_another(options):
    from recbole_diffgrm.experiments import run_directory
    from recbole_diffgrm.models import build_config

    config_files = options.pop("config_files")
    config = build_config("SASRec", "tiny", config_files, options)
    config_hash = run_directory.run_hash(config)
    in_work = run_directory.create(config, config_hash)
    code = (
        "import sys, json; from recbole_diffgrm.models import build_config;"
        "from recbole_diffgrm.experiments import run_directory;"
        "a = json.loads(sys.argv[1]); c = build_config('SASRec', 'tiny', a['files'], a['options']);"
        "print(run_directory.latest_unfinished(c, run_directory.run_hash(c)))"
    )
    argument = json.dumps({"files": [str(path) for path in config_files], "options": options})
    command = [sys.executable, "-c", code, argument]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip() == "None"
    in_work.release()
    assert str(in_work.path) not in subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stderr
    found = run_directory.latest_unfinished(config, config_hash)
    assert found.path == in_work.path
    found.release()


@pytest.mark.slow
def test_resume_on_the_command_line_tells_what_is_there(tiny, tmp_path, capsys):
    arguments = command_line(tiny, tmp_path, epochs=1)[2:]
    assert main(arguments) == 0
    assert main([*arguments, "--resume"]) == 0
    assert "finished already" in capsys.readouterr().out

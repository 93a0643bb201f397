"""The command line of searches, in one process, in several, and killed."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from recbole_diffgrm.cli.tune import main
from recbole_diffgrm.training.trainer import Trainer
from tests.conftest import ROOT, error_line, run_python


def read_trials(tmp_path, folder="runs"):
    [path] = (tmp_path / folder / "tiny").glob("tune-SASRec-*/tune.json")
    trials = json.loads(path.read_text())["trials"]
    compared = ("trial", "state", "score", "values", "epochs", "best_epoch")
    return sorted([{key: trial[key] for key in compared} for trial in trials], key=lambda trial: trial["trial"])


def start(arguments):
    command = [sys.executable, "-m", "recbole_diffgrm.tune", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_more_trials_and_a_report(arguments, tmp_path, capsys):
    assert main(arguments(trials=1, report=None)[:-1] + ["--report"]) == 2
    assert "there is no search" in capsys.readouterr().err
    assert main(arguments(trials=1)) == 0
    first = read_trials(tmp_path)
    assert main(arguments(trials=2)) == 0
    second = read_trials(tmp_path)
    assert second[:1] == first and len(second) == 2
    capsys.readouterr()
    [page] = (tmp_path / "runs" / "tiny").glob("tune-*/tune.md")
    before = page.read_text()
    page.unlink()
    assert main([*arguments(), "--report"]) == 0
    assert page.read_text() == before and "trial 1 of" not in capsys.readouterr().out


@pytest.mark.slow
def test_killed_in_the_middle_of_a_trial(arguments, tmp_path):
    """SIGKILL in the second trial: the same command continues it, and ends as if nothing had happened."""
    settings = {"epochs": 6, "trials": 3, "stopping_step": 6}
    assert main(arguments(**settings, output_dir=tmp_path / "whole")) == 0
    with start(arguments(**settings)) as process:
        seen = 0
        for line in process.stderr:
            seen += "train epoch 3:" in line
            if seen == 2:
                process.kill()
                break
        assert process.wait(60) == -signal.SIGKILL
    assert len(list((tmp_path / "runs" / "tiny").glob("SASRec-*"))) == 2
    done = run_python("-m", "recbole_diffgrm.tune", *arguments(**settings))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "resumed in train epoch" in done.stderr and "trial 1 of 3" not in done.stdout
    assert read_trials(tmp_path) == read_trials(tmp_path, "whole")
    assert len(list((tmp_path / "runs" / "tiny").glob("SASRec-*"))) == 3


@pytest.mark.slow
def test_two_processes_share_a_search(arguments, tmp_path):
    settings = arguments(trials=8, epochs=4, stopping_step=4)
    processes = [start(settings) for _ in range(2)]
    printed = []
    for process in processes:
        output, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors[-2000:]
        printed.append(re.findall(r"trial (\d+) of 8", output))
    assert sorted(int(number) for numbers in printed for number in numbers) == list(range(1, 9))
    assert main([*settings, "--report"]) == 0
    assert all(trial["state"] in ("complete", "pruned") for trial in read_trials(tmp_path))
    assert len(list((tmp_path / "runs" / "tiny").glob("SASRec-*"))) == 8
    assert len(list((tmp_path / "runs" / "tiny").glob("SASRec-*/result.json"))) == 1


def test_stopped_by_a_signal(arguments, tmp_path, monkeypatch, capsys):
    original, steps = Trainer._step, []

    def send_a_signal(self, *arguments):
        steps.append(1)
        if len(steps) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, *arguments)

    monkeypatch.setattr(Trainer, "_step", send_a_signal)
    assert main(arguments(train_batch_size=64)) == 128 + signal.SIGTERM
    assert "the same command goes on" in capsys.readouterr().err
    assert main(arguments(train_batch_size=64)) == 0
    assert "resumed in train epoch 1, batch 3" in capsys.readouterr().err


def test_fixed_keys_are_not_searched(arguments, tmp_path, capsys):
    assert main(arguments(trials=1, epochs=1, learning_rate=0.01, n_layers=1)) == 0
    assert "fixed, not searched: learning_rate, n_layers" in capsys.readouterr().out
    assert set(read_trials(tmp_path)[0]["values"]) == {"hidden_size"}


def test_no_trial_came_to_its_end(arguments, space, capsys):
    space.write_text("hidden_size: [33]\n")
    assert main(arguments(trials=1)) == 1
    assert "no trial came to its end" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "SASRek"}, ["SASRek", "SASRec"]),
        ({"model": "SASRec,SASRec"}, ["twice"]),
        ({"model": "Pop"}, ["Pop", "nothing to train"]),
        ({"space": "missing.yaml"}, ["missing.yaml"]),
        ({"space": "missing.test"}, ["missing.test"]),
        ({"trials": "many"}, ["--trials", "'many'"]),
        ({"trials": 0}, ["--trials", "0"]),
        ({"timeout": -1}, ["--timeout"]),
        ({"sampler": "cmaes"}, ["--sampler", "tpe, random, grid"]),
        ({"sampler": "grid"}, ["--sampler=grid", "learning_rate"]),
        ({"pruner": "hyperband"}, ["--pruner", "median, none"]),
        ({"epohs": 3}, ["unknown key 'epohs'", "epochs"]),
        ({"dataset": "absent"}, ["absent"]),
        ({"learning_rate": 0.1, "hidden_size": 16, "n_layers": 1}, ["every key"]),
    ],
)
def test_mistakes_are_one_line(changes, words, arguments, tmp_path, capsys):
    assert main(arguments(**changes)) == 2
    error = error_line(capsys.readouterr().err)
    assert all(word in error for word in words)
    assert not list(tmp_path.rglob("journal.log"))


def test_an_unknown_key_in_a_space(arguments, space, capsys):
    space.write_text("hidden_sise: [16, 32]\n")
    assert main(arguments()) == 2
    error = error_line(capsys.readouterr().err)
    assert "space.yaml: unknown key 'hidden_sise'. Did you mean hidden_size?" in error


def test_without_optuna(arguments, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(arguments()) == 2
    assert capsys.readouterr().err == 'error: a search needs Optuna: pip install "recbole_diffgrm[tune]"\n'


def test_help(capsys):
    assert main(["--help"]) == 0 and "--space=FILE" in capsys.readouterr().out
    assert main([]) == 2
    assert main(["--dataset=tiny"]) == 2 and "--model=NAME" in capsys.readouterr().err


def test_the_command_needs_no_torch_to_say_what_is_wrong():
    code = "import sys; from recbole_diffgrm.cli.tune import main; main(['--dataset=x']); print('torch' in sys.modules)"
    assert run_python("-c", code, PYTHONPATH=os.environ.get("PYTHONPATH", "")).stdout.strip() == "False"

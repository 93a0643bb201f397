"""Several processes give what one gives, stop together, and go on together."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from recbole_diffgrm import processes
from recbole_diffgrm.cli.main import main
from recbole_diffgrm.cli.study import main as study
from recbole_diffgrm.cli.tune import main as tune
from recbole_diffgrm.config.recbole_config import choose_device
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.experiments.result import RunResult
from tests.conftest import ROOT, write_dataset
from tests.processes_harness import FROM_TEXT, MODELS, command, stub_encoder

NO_DROPOUT = """
models:
  SASRec: {hidden_dropout_prob: 0.0, attn_dropout_prob: 0.0}
  S3Rec: {pretrain_epochs: 1}
  DiffGRM: {dropout_prob: 0.0}
  RPG: {embedding_dropout_prob: 0.0, hidden_dropout_prob: 0.0, attn_dropout_prob: 0.0}
"""
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data"))


def torchrun(*arguments) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *map(str, arguments)]


def work_folder(parent: Path) -> Path:
    (parent / "no_dropout.yaml").write_text(NO_DROPOUT)
    return parent


def results(folder: Path) -> dict[str, RunResult]:
    return {
        path.name.split("-")[0]: RunResult.load(path)
        for path in (folder / "tiny").iterdir()
        if path.is_dir() and "comparison" not in path.name
    }


def check_same(ours: RunResult, theirs: RunResult) -> None:
    """To what adding up in another order changes."""
    for entry, other in zip(ours.curve, theirs.curve, strict=True):
        assert entry["loss"] == pytest.approx(other["loss"], rel=1e-6)
        assert entry["num_targets"] == other["num_targets"]
        assert entry.get("valid", {}) == pytest.approx(other.get("valid", {}), abs=1e-6)
        statistics = {name: np.ravel(value) for name, value in entry.get("statistics", {}).items()}
        for name, value in statistics.items():
            assert value == pytest.approx(np.ravel(other["statistics"][name]), abs=1e-5)
    for ranking, metrics in ours.test.items():
        assert metrics == pytest.approx(theirs.test[ranking], abs=1e-6)
    assert ours.sid_shares == pytest.approx(theirs.sid_shares)


@pytest.fixture(scope="module")
def two(data, tmp_path_factory) -> tuple[Path, list[dict], str]:
    """The folder that the harness has worked in, what each process saw, and what was shown. Each process has an agent
    of its own, as on two machines; two processes of one agent are those of the test that kills one."""
    work = work_folder(tmp_path_factory.mktemp("two"))
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    node = ["--nnodes=2", "--nproc_per_node=1", "--rdzv_backend=c10d", "--rdzv_id=test", "--local_addr=localhost"]
    agents = [
        subprocess.Popen(
            torchrun(*node, f"--rdzv_endpoint=localhost:{port}", "-m", "tests.processes_harness", data, work),
            cwd=ROOT,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    ]
    shown = [agent.communicate(timeout=300)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], shown
    return work, [json.loads((work / f"rank-{rank}.json").read_text()) for rank in (0, 1)], "".join(shown)


@pytest.mark.slow
def test_two_processes_give_what_one_gives(data, two):
    work, answers, _ = two
    assert [answer["compare"] for answer in answers] == [0, 0]
    assert main(command(data, work, model=",".join(MODELS), output_dir=work / "one")) == 0
    ours, theirs = results(work / "two"), results(work / "one")
    for model in set(MODELS) - {"S3Rec"}:  # its pre-training masks at random
        check_same(ours[model], theirs[model])
    assert [entry["stage"] for entry in ours["S3Rec"].curve] == [entry["stage"] for entry in theirs["S3Rec"].curve]
    assert len(list((work / "two" / "tiny").glob("comparison-*"))) == 1


@pytest.mark.slow
def test_given_weights_rank_the_same(two):
    work, answers, _ = two
    assert [answer["retest"] for answer in answers] == [0, 0]
    run = next((work / "two" / "tiny").glob("SASRec-*"))
    assert main([f"--retest={run}", "--topk=[3]", f"--output_dir={work / 'retest_of_one'}"]) == 0
    ranks = [np.load(next((work / name / "tiny").glob("*/ranks.npz"))) for name in ("retest", "retest_of_one")]
    for name in ranks[0].files:
        assert ranks[0][name].tolist() == ranks[1][name].tolist()


@pytest.mark.slow
def test_a_signal_on_one_process_stops_all_at_the_same_step(data, two):
    work, answers, _ = two
    assert [(answer["signal"], answer["steps"], answer["resume"]) for answer in answers] == [(143, 9, 0)] * 2
    arguments = command(data, work, model="SASRec", output_dir=work / "not_stopped", train_batch_size=53)
    assert main(arguments) == 0
    check_same(results(work / "stopped")["SASRec"], results(work / "not_stopped")["SASRec"])
    assert [(answer["signal in test"], answer["test again"]) for answer in answers] == [(130, 0)] * 2


@pytest.mark.slow
def test_texts_are_encoded_by_all(data, two):
    work, answers, _ = two
    assert [answer["encode"] for answer in answers] == [0, 0]
    assert [len(answer["texts"]) for answer in answers] == [20, 20]
    assert len({text for answer in answers for text in answer["texts"]}) == 40
    with stub_encoder() as encoded:
        assert main(command(data, work, output_dir=work / "alone", cache_dir=work / "cache_of_one", **FROM_TEXT)) == 0
    assert len(encoded) == 40
    digests = [results(work / name)["DiffGRM"].sid_digest for name in ("encoded", "alone")]
    assert digests[0] == digests[1] != ""
    assert not list((work / "cache").glob("*/part-*"))


@pytest.mark.slow
def test_an_error_on_one_process_is_that_of_all_and_said_once(two):
    _, answers, shown = two
    assert [(answer["nan"], answer["full disk"]) for answer in answers] == [(2, 2)] * 2
    assert shown.count("the training loss became NaN in epoch 1, batch 2") == 1
    # Of the first process alone, which goes on with the next model as the others do
    assert [answer["broken in a comparison"] for answer in answers] == [1, 1]
    assert shown.count("Traceback") == shown.count("RuntimeError: the writer is broken\n") == 2


@pytest.mark.slow
def test_the_first_process_alone_speaks(two):
    _, _, shown = two
    assert shown.count("stopped by signal 15") == 1
    assert shown.count("S3Rec on tiny, seed 2020") == 1
    assert len(re.findall(r"^tiny: test metrics, item level, all items", shown, re.M)) == 2  # of two comparisons


@pytest.mark.slow
def test_gradients_are_weighted_by_targets(two):
    _, answers, _ = two
    used, once, never, loss, num_targets, stop, is_due = answers[0]["messages"]
    assert (used, once, never) == ([1.25, 1.25], [0.25, 0.25], None)  # (3 * 1 + 1 * 2) / 4
    assert (loss, num_targets, stop, is_due) == (1.25, 4, signal.SIGINT, True)
    assert answers[0]["messages"] == answers[1]["messages"]


@pytest.mark.slow
def test_no_thread_of_the_exchange_is_left_when_python_ends(two):
    for answer in two[1]:
        assert not [name for name in answer["threads"] if "gloo" in name]


@pytest.mark.slow
def test_a_killed_process_ends_the_others_with_one_line_and_one_process_goes_on(data, tmp_path):
    work = work_folder(tmp_path)
    arguments = command(data, work, model="SASRec", output_dir=work / "killed", train_batch_size=53, stopping_step=99)
    arguments[arguments.index("--epochs=3")] = "--epochs=30"
    log = work / "shown.txt"
    with log.open("w") as file:
        started = subprocess.Popen(
            [sys.executable, "-m", "recbole_diffgrm", "--nproc=2", *arguments],
            cwd=ROOT,
            env=ENVIRONMENT,
            stdout=file,
            stderr=file,
        )
        _wait_for(log, "epoch 3:", started)
        os.kill(_process_of_rank(1, started.pid), signal.SIGKILL)
        assert started.wait(timeout=60) == 137
    shown = log.read_text()
    assert shown.count("another process of this run has ended") == 1
    assert "Traceback" not in shown
    assert main([*arguments, "--resume"]) == 0  # with one process
    assert (
        main([argument for argument in arguments if "output_dir" not in argument] + [f"--output_dir={work / 'whole'}"])
        == 0
    )
    check_same(results(work / "killed")["SASRec"], results(work / "whole")["SASRec"])


def _wait_for(log: Path, words: str, started: subprocess.Popen) -> None:
    while words not in log.read_text():
        assert started.poll() is None, log.read_text()
        time.sleep(0.05)


def _process_of_rank(rank: int, parent: int) -> int:
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                is_child = f"PPid:\t{parent}\n" in (path / "status").read_text()
                if is_child and f"RANK={rank}" in (path / "environ").read_bytes().decode().split("\0"):
                    return int(path.name)
            except OSError:
                continue
    raise AssertionError("there is no such process")


# One process


def test_one_process_is_the_first_of_one(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")  # other programs set it too
    assert (processes.world(), processes.rank(), processes.is_first()) == (1, 0, True)
    assert processes.from_first(lambda: 3) == 3
    assert processes.every(4) == [4]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nproc=0"], "nproc"),
        (["--nproc=two"], "nproc"),
        (["--nproc=2", "--recommend=runs/x"], "one process"),
        (["--world_size=4"], "torchrun"),
        (["--nproc=2", "--epochs=many"], "epochs"),
    ],
)
def test_wrong_commands(arguments, words, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


@pytest.mark.parametrize("command_line", [study, tune])
def test_commands_that_torchrun_does_not_start(command_line, capsys, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "1")
    assert command_line(["x.yaml"] if command_line is study else ["--model=SASRec"]) == 2
    assert "several times" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("use_gpu", "gpu_id", "local_rank", "num_gpus", "device"),
    [
        (True, 0, 0, 2, "cuda:0"),
        (True, "0", 1, 2, "cuda:1"),
        (True, 2, 1, 4, "cuda:3"),
        (True, "3,1", 1, 4, "cuda:1"),
        (True, 1, 0, 4, "cuda:1"),
        (True, 0, 0, 0, "cpu"),
        (True, -1, 0, 2, "cpu"),
        (True, "", 0, 2, "cpu"),
        (False, 0, 0, 2, "cpu"),
    ],
)
def test_devices(use_gpu, gpu_id, local_rank, num_gpus, device):
    assert choose_device(use_gpu, gpu_id, local_rank, num_gpus) == device


@pytest.mark.parametrize(("gpu_id", "local_rank"), [(0, 2), ("0,1", 2), ("0,7", 1), (5, 0), ("first", 0)])
def test_a_gpu_that_is_not_there(gpu_id, local_rank):
    with pytest.raises(UserError, match="gpu_id"):
        choose_device(True, gpu_id, local_rank, 2)

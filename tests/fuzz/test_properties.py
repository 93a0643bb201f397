"""That the fuzzer notices what it looks for."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.fuzz import world as worlds
from tests.fuzz.__main__ import find_tests, read_finding, take_turn
from tests.fuzz.properties import check_call, check_metrics
from tests.fuzz.world import arguments, finished_run, start_afresh, world


def say(text: str, code: int) -> int:
    print(text, file=sys.stderr)
    return code


WRONG = {
    "exit code 3": lambda words: 3,
    "0 error lines": lambda words: 2,
    "2 error lines": lambda words: say("error: a\nerror: b", 2),
    "something follows": lambda words: say("error: a\nb", 2),
    "control characters": lambda words: say("error: \x1b[2J", 2),
    "an error of 3007 characters": lambda words: say("error: " + "x" * 3000, 2),
    "Traceback": lambda words: say("Traceback (most recent call last):", 0),
    "outside .*open": lambda words: Path("/nowhere/at/all").write_text("x") and 0,
    "outside .*mkdir": lambda words: os.mkdir("/nowhere/at/all") or 0,  # noqa: PTH102
    "outside .*Popen": lambda words: subprocess.run(["true"]).returncode,
    "current folder": lambda words: Path("/proc/self/cwd/x").write_text("") * 0,
    "executed": lambda words: (world() / "canary").mkdir() or 0,
}


@pytest.mark.parametrize("reason", WRONG)
def test_what_no_command_may_do(reason, monkeypatch):
    def program(words):
        try:
            return WRONG[reason](words)
        except OSError:
            return 0

    monkeypatch.setitem(worlds.PROGRAMS, "run", program)
    with pytest.raises(AssertionError, match=reason):
        check_call(["--x"])
    start_afresh(world())


def test_other_ranks_or_other_metrics_are_noticed(tmp_path):
    run = shutil.copytree(finished_run("DiffGRM"), tmp_path / "run")
    check_metrics(run)
    with np.load(run / "ranks.npz") as saved:
        arrays = dict(saved)
    for name in ("item_all", "item_unseen", "sid_all", "sid_unseen"):
        changed = np.where(np.arange(len(arrays[name])) == 7, 11 - np.minimum(arrays[name], 10), arrays[name])
        np.savez(run / "ranks.npz", **arrays | {name: changed})
        with pytest.raises(AssertionError, match="by definition"):
            check_metrics(run)


def test_other_numbers_than_printed_are_noticed():
    out = check_call(arguments(model="Pop")).out
    run = next((world() / "runs" / "tiny").iterdir())
    check_metrics(run, out)
    with pytest.raises(AssertionError, match="printed"):
        check_metrics(run, out.replace("0.1", "0.2"))


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGSEGV])
def test_an_example_that_kills_the_process_is_kept(death, tmp_path, monkeypatch):
    monkeypatch.setattr("tests.fuzz.__main__.FINDINGS", tmp_path)
    strategy, _ = find_tests()["test_histories"]
    tried, found = take_turn("test_histories", strategy, lambda example: os.kill(os.getpid(), death), 1, 5, set())
    [(reason, path)] = found.items()
    assert tried == 1 and reason.startswith(death.name) and read_finding(path)[0] == "test_histories"

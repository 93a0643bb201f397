"""Lets the disk fail under a run, and resumes it. A process of its own: it forks, which a test runner should not.

python -m tests.fault_harness MODEL DATA_FOLDER WORK_FOLDER POINTS      POINTS: how many faults, or `all`

Every call of the run that changes something on disk is an event: open, write, fsync, rename, unlink, mkdir, rmdir.
At the n-th one a fault begins: the disk is full or read-only from there on, one call fails, or the process is killed.
Then the same command is run with --resume. Without `all`, the events and the faults take turns.
Prints a JSON object: what a run without faults gave, and what each of the others gave in both attempts.
"""

import errno
import io
import json
import os
import pathlib
import shutil
import signal
import sys
import threading
import traceback
from pathlib import Path

import torch

from recbole_diffgrm.cli.main import main as command_line
from recbole_diffgrm.experiments import pipeline
from recbole_diffgrm.experiments.result import RunResult
from tests.kill_harness import outcome

FREES = {"unlink", "rmdir", "rename", "replace"}  # what a full disk still does
FAULTS = {"full": errno.ENOSPC, "fails once": errno.EIO, "read-only": errno.EROFS, "killed": None}


class Disk:
    """Counts the calls of this process that change something in `folder`, and fails from the one numbered `at`."""

    def __init__(self, folder: Path, fault: str = "", at: int = 0):
        self.folder, self.fault, self.at, self.events = folder.resolve(), fault, at, 0

    def event(self, call: str, path: object, folder_handle: int | None = None) -> None:
        path = _path_of(path) if isinstance(path, int) else Path(path)
        if folder_handle is not None:
            path = _path_of(folder_handle) / path
        is_ours = self.folder in path.absolute().parents and "tensorboard" not in path.parts
        if not is_ours or threading.current_thread() is not threading.main_thread():
            return
        self.events += 1
        lasts = self.fault in ("full", "read-only")
        if not self.fault or self.events < self.at or (self.events > self.at and not lasts):
            return
        if self.fault == "full" and call in FREES:
            return
        number = FAULTS[self.fault]
        if number is None:
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            raise OSError(number, os.strerror(number), str(path))

    def install(self) -> None:
        for name in ("replace", "rename", "mkdir", "unlink", "rmdir", "fsync"):
            self._watch(name)
        open_handle, open_file, disk = os.open, io.open, self

        def watched_os_open(path, flags, *rest, **keywords):
            if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
                disk.event("open", path)
            return open_handle(path, flags, *rest, **keywords)

        class Raw(io.FileIO):
            def write(self, data):
                disk.event("write", self.name)
                return super().write(data)

        def watched_open(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, *rest):
            if not set(mode) & set("wax+") or "/tensorboard" in str(file):
                return open_file(file, mode, buffering, encoding, errors, newline, *rest)
            disk.event("open", file)
            raw = Raw(file, mode.replace("b", "").replace("t", ""))
            binary = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return binary if "b" in mode else io.TextIOWrapper(binary, encoding, errors, newline)

        os.open, io.open = watched_os_open, watched_open
        accessor = getattr(pathlib, "_NormalAccessor", None)  # Python 3.10 keeps the functions there
        if accessor:
            for name in ("replace", "rename", "mkdir", "unlink", "rmdir"):
                setattr(accessor, name, staticmethod(getattr(os, name)))
            accessor.open = staticmethod(watched_open)

    def _watch(self, name: str) -> None:
        original = getattr(os, name)

        def watched(path, *arguments, **keywords):
            self.event(name, path, keywords.get("dir_fd"))
            return original(path, *arguments, **keywords)

        setattr(os, name, watched)


def _path_of(handle: int) -> Path:
    return Path(f"/proc/self/fd/{handle}").readlink()


def attempt(arguments: list[str], work: Path, disk: Disk) -> dict:
    """The command in a child process: its exit code (None: killed), what it said, and how many events there were."""
    said, counted = work / "stderr", work / "events"
    child = os.fork()
    if child == 0:
        with said.open("w") as file:
            os.dup2(file.fileno(), 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        disk.install()
        try:
            code = command_line(arguments)
        except BaseException:
            traceback.print_exc()
            code = 99
        sys.stderr.flush()
        handle = os.open(counted, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.write(handle, str(disk.events).encode())
        os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return {"exit_code": None, "signal": os.WTERMSIG(status), "stderr": said.read_text()}
    return {"exit_code": os.WEXITSTATUS(status), "stderr": said.read_text(), "events": int(counted.read_text())}


def finished(folder: Path) -> dict:
    """All that faults must not change. There is one run directory, and no leftover in the cache."""
    (run_dir,) = (folder / "runs" / "tiny").iterdir()
    cached = sorted(path.name for path in (folder / "cache").rglob("*") if not path.name.endswith(".lock"))
    return {**outcome(RunResult.load(run_dir)), "cache": cached}


def main(model: str, data: str, work: str, points: str) -> None:
    torch.set_num_threads(1)
    torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])  # what torch imports late is imported here, once for all
    assert pipeline

    def arguments(folder: Path) -> list[str]:
        settings = {
            "model": model,
            "dataset": "tiny",
            "data_path": data,
            "config_files": Path(data) / "tiny.yaml",
            "output_dir": folder / "runs",
            "cache_dir": folder / "cache",
            "epochs": 2,
            "train_batch_size": 100,
            "MAX_ITEM_LIST_LENGTH": 10,
            "save_topk": 3,
            "checkpoint_seconds": 1000,
            "show_progress": False,
        }
        if model == "S3Rec":
            settings |= {"pretrain_epochs": 1, "hidden_size": 16, "inner_size": 16}
            del settings["cache_dir"]
        return [f"--{key}={value}" for key, value in settings.items()]

    def run(name: str, fault: str = "", at: int = 0, resume: bool = False) -> dict:
        folder = Path(work) / "disk" / name
        folder.mkdir(parents=True, exist_ok=True)
        return attempt(arguments(folder) + ["--resume"] * resume, Path(work), Disk(folder, fault, at))

    whole = run("whole")
    assert whole["exit_code"] == 0, whole["stderr"]
    reference = finished(Path(work) / "disk" / "whole")
    every = [(at, fault) for at in range(1, whole["events"] + 1) for fault in FAULTS]
    if points != "all":  # 5 is prime to the number of faults: each has its turn at early and late events
        step = len(every) // int(points) // len(FAULTS) * len(FAULTS) + 5
        every = every[::step]
    faults = {}
    for at, fault in every:
        name = f"{fault} at {at}"
        first, again = run(name, fault, at), run(name, resume=True)
        done = finished(Path(work) / "disk" / name) if again["exit_code"] == 0 else None
        faults[name] = {"first": first, "again": again, "same": done == reference, "outcome": done}
        if done == reference:
            del faults[name]["outcome"]
            shutil.rmtree(Path(work) / "disk" / name)
    print(json.dumps({"events": whole["events"], "reference": reference, "faults": faults}))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A folder to run commands in, and a watch on what they do: time, memory, files, programs, network.

Commands run in this process, which takes milliseconds instead of seconds. What an exception would print as a traceback
is raised from `call`.
"""

import atexit
import contextlib
import io
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

os.environ["HF_HUB_OFFLINE"] = "1"  # read when the library is imported

from recbole_diffgrm.cli import main as run
from recbole_diffgrm.cli.study import main as study
from recbole_diffgrm.cli.tokenizer import main as tokenizer
from recbole_diffgrm.cli.tune import main as tune
from tests.conftest import write_dataset
from tests.fuzz.strategies import CANARY, ROOT

PROGRAMS: dict[str, Callable[[list[str]], int]] = {"run": run, "tokenizer": tokenizer, "tune": tune, "study": study}
STOP_AFTER = 4  # seconds of the processor; then the command gets SIGINT
GIVE_UP_AFTER = 20  # seconds more; a command that has not stopped by then hangs
MEMORY = 3 << 30  # bytes, beyond what the process has already


class Outcome(NamedTuple):
    code: int
    out: str
    err: str
    strayed: tuple[str, ...] = ()  # what it did outside its folder


class Hangs(AssertionError):
    """A command did not stop when asked to."""


@cache
def world() -> Path:
    """data/ is the data set `tiny`; files/, runs/ and cache/ are empty before each example; here/, the current folder,
    stays empty; finished/ and unfinished/ hold runs to damage copies of."""
    import recbole_diffgrm.experiments.pipeline  # noqa: F401  # takes seconds, which are not those of an example

    memory = Path("/dev/shm")  # where forcing to disk costs nothing
    root = Path(tempfile.mkdtemp(prefix="fuzz-", dir=memory if memory.is_dir() else None)).resolve()
    atexit.register(_remove, root, os.getpid())
    for name in ("finished", "unfinished"):
        (root / name).mkdir()
    write_dataset(root / "data")
    settings = root / "data" / "tiny.yaml"
    settings.write_text(settings.read_text().replace(str(root / "data" / "cache"), str(root / "cache")))
    start_afresh(root)
    return root


def _remove(root: Path, process: int) -> None:
    if os.getpid() == process:  # not at the end of a child of `make fuzz`
        shutil.rmtree(root, ignore_errors=True)


def start_afresh(root: Path) -> Path:
    for name in ("files", "runs", "cache", "here"):
        shutil.rmtree(root / name, ignore_errors=True)
        (root / name).mkdir()
    shutil.rmtree(insert(CANARY, root), ignore_errors=True)
    return root


def insert(text: str, root: Path) -> str:
    return text.replace(ROOT, str(root))


SETTINGS = {
    "dataset": "tiny",
    "data_path": f"{ROOT}/data",
    "output_dir": f"{ROOT}/runs",
    "config_files": f"{ROOT}/data/tiny.yaml",
    "epochs": "1",
    "MAX_ITEM_LIST_LENGTH": "10",
    "train_batch_size": "512",
    "show_progress": "False",
}
STUDY = {key: SETTINGS[key] for key in ("data_path", "output_dir")} | {"results": f"{ROOT}/files"}


def arguments(**settings: Any) -> list[str]:
    """Of a run of a tenth of a second, with some settings changed, or left out (None)."""
    changed = {**SETTINGS, **settings}
    return [f"--{key}={value}" for key, value in changed.items() if value is not None]


def call(words: list[str], program: str = "run", stop_after: float = STOP_AFTER) -> Outcome:
    """Run a command as a shell would."""
    root = world()
    out, err = io.StringIO(), io.StringIO()
    words = [insert(word, root) for word in words]
    with (
        contextlib.chdir(root / "here") if sys.version_info >= (3, 11) else contextlib.nullcontext(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        _limited_memory(),
        _limited_time(stop_after),
        _watched(root) as strayed,
    ):
        code = PROGRAMS[program](words)
    return Outcome(code, out.getvalue(), err.getvalue(), tuple(strayed))


@cache
def finished_run(model: str, seed: int = 2020) -> Path:
    """The directory of a finished run, below finished/."""
    return _keep(model, "finished", seed, stop_at_step=None)


@cache
def unfinished_run(model: str) -> Path:
    """The directory of a run that was stopped in its second epoch, below unfinished/."""
    return _keep(model, "unfinished", 2020, stop_at_step=8)


TWO_EPOCHS = {"epochs": "2", "train_batch_size": "50", "save_topk": "3"}


def _keep(model: str, folder: str, seed: int, stop_at_step: int | None) -> Path:
    from recbole_diffgrm.training.trainer import Trainer

    root, step, steps = world(), Trainer._step, []
    parent = f"{folder}/{model}-{seed}"
    shutil.rmtree(root / parent, ignore_errors=True)  # a child of `make fuzz` may have made it

    def stop(self, *more):
        steps.append(1)
        if len(steps) == stop_at_step:
            signal.raise_signal(signal.SIGINT)
        return step(self, *more)

    Trainer._step = stop
    try:
        done = call(arguments(model=model, output_dir=f"{ROOT}/{parent}", seed=seed, **TWO_EPOCHS), stop_after=60)
    finally:
        Trainer._step = step
    assert done.code == (130 if stop_at_step else 0), done.err
    [run_dir] = (root / parent / "tiny").iterdir()
    return run_dir


@contextlib.contextmanager
def _limited_time(stop_after: float) -> Iterator[None]:
    """A long run is stopped by a signal, as a user would do it. This has to work."""
    asked: list[int] = []

    def stop(number, frame):
        if asked:
            raise Hangs(f"did not stop {GIVE_UP_AFTER} seconds after SIGINT")
        asked.append(number)
        signal.setitimer(signal.ITIMER_PROF, GIVE_UP_AFTER)
        signal.raise_signal(signal.SIGINT)

    previous = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, stop_after)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


@contextlib.contextmanager
def _limited_memory() -> Iterator[None]:
    previous = resource.getrlimit(resource.RLIMIT_DATA)
    status = Path("/proc/self/status")
    if status.exists():  # Linux
        used = next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmData"))
        resource.setrlimit(resource.RLIMIT_DATA, ((used << 10) + MEMORY, previous[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, previous)


# Python calls `_watch` for every file that it opens and every program that it starts. It cannot be taken out again.

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGED_PATH = {"os.mkdir": 0, "os.rename": 1, "os.remove": 0, "os.rmdir": 0, "os.link": 1, "os.symlink": 1}
STARTED = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.startfile", "pty.spawn")
HARMLESS_PROGRAMS = ("git", "lscpu", "ldconfig", "uname")  # the environment of a run is part of its result
# Peak memory is measured anew for each run; libraries have temporary folders and caches of their own.
HARMLESS_PLACES = (os.devnull, "/proc/self/", tempfile.gettempdir() + os.sep)
HARMLESS_PLACES += tuple(str(Path.home() / name) for name in (".cache", ".config/matplotlib"))
_watching: list[tuple[Path, list[str]]] = []


@contextlib.contextmanager
def _watched(root: Path) -> Iterator[list[str]]:
    strayed: list[str] = []
    _watching.append((root, strayed))
    try:
        yield strayed
    finally:
        _watching.pop()


def _watch(event: str, details: tuple) -> None:
    if not _watching:
        return
    root, strayed = _watching[-1]
    if event == "open" and isinstance(details[2], int) and details[2] & WRITING:
        _check_path(event, details[0], root, strayed)
    elif event in CHANGED_PATH and details[-1] == -1:  # else relative to a folder that is open, as rmtree does it
        _check_path(event, details[CHANGED_PATH[event]], root, strayed)
    elif event in STARTED and Path(os.fsdecode(details[0])).name not in HARMLESS_PROGRAMS:
        strayed.append(f"{event} {details[:2]}")
    elif event == "socket.getaddrinfo":
        raise socket.gaierror("no network while fuzzing")
    elif event == "socket.connect":
        raise ConnectionRefusedError("no network while fuzzing")


def _check_path(event: str, path: Any, root: Path, strayed: list[str]) -> None:
    if isinstance(path, int):  # a file that is open already
        return
    place = os.path.abspath(os.fsdecode(path))  # noqa: PTH100  as it is written: links are followed by resolve()
    inside = place.startswith(f"{root}{os.sep}") and not place.startswith(f"{root / 'here'}{os.sep}")
    if not inside and not place.startswith(HARMLESS_PLACES) and "__pycache__" not in place:
        strayed.append(f"{event} {place}")


sys.addaudithook(_watch)

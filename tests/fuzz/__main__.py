"""python -m tests.fuzz: new inputs for some time. What is found is kept in tests/fuzz/findings, one file each.

  --seconds=N        for how long (default: 600)
  --seed=N           the same seed tries the same inputs (default: the date of today)
  --only=NAME        only the tests with this in their names
  --repeat=FILE      once more what a file in findings/ describes

Each test has its turn in a child process, for a few seconds at a time: what kills the process is a finding as well.
Exit code 1 if there is a finding.
"""

import argparse
import ast
import contextlib
import faulthandler
import importlib
import itertools
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz import world as worlds

HERE = Path(__file__).parent
FINDINGS = HERE / "findings"
TURN = 15  # seconds of one test
SHRINK = 30  # seconds for making one example smaller
HANGS = 120  # seconds of one example that waits, or in code that no signal reaches

Tests = dict[str, tuple[Any, Callable[[Any], None]]]  # {name: (strategy, test of one example)}


class Enough(BaseException):
    """The time is over. Not an Exception: nothing may catch it."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=int(date.today().strftime("%Y%m%d")))
    parser.add_argument("--only", default="")
    parser.add_argument("--repeat", type=Path)
    options = parser.parse_args()
    tests = find_tests()
    if options.repeat:
        name, example = read_finding(options.repeat)
        tests[name][1](example)
        print("nothing wrong")
        return 0
    tests = {name: test for name, test in tests.items() if options.only in name}
    return search(tests, options.seconds, options.seed)


def find_tests() -> Tests:
    modules = [importlib.import_module(f"tests.fuzz.{path.stem}") for path in sorted(HERE.glob("test_*.py"))]
    return {
        name: value.fuzzed for module in modules for name, value in vars(module).items() if hasattr(value, "fuzzed")
    }


def search(tests: Tests, seconds: float, first_seed: int) -> int:
    print(f"{len(tests)} tests for {seconds:g} seconds, seed {first_seed}", flush=True)
    warm_up()
    deadline, examples, known = time.monotonic() + seconds, Counter[str](), dict[str, Path]()
    for turn, name in enumerate(itertools.cycle(tests)):
        if time.monotonic() > deadline:
            break
        turn_seed = random.Random(f"{first_seed} {turn} {name}").randrange(1 << 32)
        length = min(TURN, deadline - time.monotonic())
        tried, found = take_turn(name, *tests[name], turn_seed, length, set(known))
        examples[name] += tried
        known |= found
        for reason, path in found.items():
            print(f"FOUND by {name}: {reason}\n  python -m tests.fuzz --repeat={path}", flush=True)
        left = max(0, deadline - time.monotonic())
        print(f"{left:4.0f} s left, {examples.total():,} examples, {len(known)} findings; {name}: {tried}", flush=True)
    print(f"\n{examples.total():,} examples, seed {first_seed}: {len(known)} findings")
    for reason, path in known.items():
        print(f"  {reason}\n    python -m tests.fuzz --repeat={path}")
    return 1 if known else 0


def warm_up() -> None:
    """What is imported late, or made once, is there before a child process counts its seconds."""
    for model in ("Pop", "SASRec", "DiffGRM"):
        worlds.finished_run(model)


def take_turn(
    name: str, strategy: Any, test: Callable, turn_seed: int, length: float, known: set[str]
) -> tuple[int, dict[str, Path]]:
    """How many examples were tried, and {reason: file} of what was found, in a child process."""
    notes = Path(tempfile.mkdtemp())
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            play(Turn(name, test, turn_seed, length, known, notes), strategy)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    found = {read_reason(path): path for path in map(Path, (notes / "found").read_text().split("\n")[:-1])}
    if status:
        example = ast.literal_eval((notes / "example").read_text())
        died = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "hangs, no signal reaches it"
        where = (notes / "fault").read_text().split("\n\n")[0]
        reason = f"{died} {' '.join(where.splitlines()[1:4])}"
        if reason not in known:
            found[reason] = write_finding(name, turn_seed, example, reason, where)
    tried = len((notes / "tried").read_bytes())
    shutil.rmtree(notes)
    return tried, found


class Turn:
    """One test in a child process. It notes what it does in files, which outlive it."""

    def __init__(self, name: str, test: Callable, turn_seed: int, length: float, known: set[str], notes: Path):
        self.name, self.test, self.seed, self.known, self.notes = name, test, turn_seed, known, notes
        self.deadline = time.monotonic() + length
        self.smallest: dict[str, int] = {}  # {reason: length of the shortest example}
        for file in ("found", "tried", "fault"):
            (notes / file).touch()

    def try_example(self, example: Any) -> None:
        if time.monotonic() > self.deadline:
            raise Enough
        (self.notes / "example").write_text(repr(example), encoding="utf-8")
        with (self.notes / "tried").open("ab") as file:
            file.write(b".")
        faulthandler.dump_traceback_later(HANGS, exit=True, file=self.fault_file)
        try:
            self.test(example)
        except Exception as error:
            reason = describe(error)
            if reason in self.known:
                return
            self.note_finding(reason, example, traceback.format_exc())
            raise
        finally:
            faulthandler.cancel_dump_traceback_later()

    def note_finding(self, reason: str, example: Any, details: str) -> None:
        """At once, and again for each smaller example: hypothesis may not come to its end."""
        if not self.smallest:
            self.deadline = time.monotonic() + SHRINK
        size = len(repr(example))
        if size <= self.smallest.get(reason, size):
            path = write_finding(self.name, self.seed, example, reason, details)
            if reason not in self.smallest:
                with (self.notes / "found").open("a") as file:
                    file.write(f"{path}\n")
            self.smallest[reason] = size


def play(turn: Turn, strategy: Any) -> None:
    with (turn.notes / "fault").open("w") as file, Path(os.devnull).open("w") as nowhere:
        turn.fault_file = file
        faulthandler.enable(file)
        sys.stdout = sys.stderr = nowhere
        os.dup2(nowhere.fileno(), 2)  # what libraries in C print when they abort
        chosen = settings(
            max_examples=10**6,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        seed(turn.seed)(chosen(given(strategy)(turn.try_example)))()


def describe(error: Exception) -> str:
    """Its type and where it comes from: the same for every example that shows the same fault."""
    frames = traceback.extract_tb(error.__traceback__)
    package = str(HERE.parents[1] / "recbole_diffgrm") + os.sep
    ours = [frame for frame in frames if frame.filename.startswith(package)] or frames
    places = dict.fromkeys(f"{Path(frame.filename).name}, {frame.name}" for frame in (ours[-1], frames[-1]))
    message = re.sub(r"\d+", "0", str(error)).partition(":")[0][:60] if isinstance(error, AssertionError) else ""
    return " ".join([type(error).__name__, message, "in", *" > ".join(places).split()])


def write_finding(name: str, turn_seed: int, example: Any, reason: str, details: str) -> Path:
    FINDINGS.mkdir(exist_ok=True)
    digest = f"{random.Random(reason).randrange(1 << 32):08x}"
    path = FINDINGS / f"{name.removeprefix('test_')}-{digest}.txt"
    path.write_text(
        f"{name}\n{reason}\nseed {turn_seed}\n{example!r}\n\n{details}\n", encoding="utf-8", errors="replace"
    )
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def read_finding(path: Path) -> tuple[str, Any]:
    name, _, _, example, *_ = path.read_text(encoding="utf-8").split("\n")
    return name, ast.literal_eval(example)


def read_reason(path: Path) -> str:
    return path.read_text(encoding="utf-8").split("\n")[1]


if __name__ == "__main__":
    sys.exit(main())

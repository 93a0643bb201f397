"""Sides of a benchmark that take turns: each a process of its own that works when it is told to."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


class Side:
    """A process that answers each line of its input with a line of JSON."""

    def __init__(self, python: str, script: str, arguments: list[str], threads: int):
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen([python, script, *arguments], env=environment, text=True, **pipes)
        self.started = self._answer()

    def ask(self, what: str) -> dict:
        with suppress(BrokenPipeError):  # it is gone: there will be no answer
            print(what, file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(self.process.args[:3])} stopped (memory?)")
        return json.loads(line)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def questions() -> Iterator[list[str]]:
    """In a side's process: what it is asked, as words."""
    for line in sys.stdin:
        yield line.split()


def report(**values) -> None:
    print(json.dumps(values), flush=True)


def memory_mib(name: str) -> float:
    """VmRSS (now) or VmHWM (most so far) of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024

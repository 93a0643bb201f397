"""Progress of long work on standard error: a bar on a terminal, elsewhere a log line every half a minute."""

import io
import logging
import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

from recbole_diffgrm import processes
from recbole_diffgrm.words import count, duration

logger = logging.getLogger(__name__)

SECONDS = 30.0  # between lines


def progress_bar(iterable: Iterable[Any] | None = None, *, show: bool = True, **settings: Any) -> tqdm:
    """tqdm with its `settings` (total, desc, unit, ...); shown only if `show`, and by the first process."""
    kind = tqdm if sys.stderr.isatty() else _Lines
    return kind(iterable, disable=not (show and processes.is_first()), **settings)


class _Lines(tqdm):
    """Counts and measures as a bar does, and is shown as a line. Short work has none."""

    def __init__(self, iterable: Iterable[Any] | None, **settings: Any):
        nowhere = io.StringIO()  # takes the control characters that tqdm writes at the end
        every = {"mininterval": SECONDS, "miniters": 1, "delay": SECONDS}
        super().__init__(iterable, **{**settings, **every, "leave": False, "file": nowhere})

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        if msg is None:  # else an empty one, to wipe a bar off the screen
            logger.info(self._describe())

    def _describe(self) -> str:
        """train epoch 3 of 20: 40% of 513 batches, loss 3.4, 12 min left"""
        now = self.format_dict
        parts = [f"{now['n'] / self.total:.0%} of {self._size(self.total)}" if self.total else self._size(now["n"])]
        if now["postfix"]:
            parts.append(now["postfix"])
        done = now["n"] - now["initial"]
        if self.total and done > 0:
            parts.append(f"{duration(now['elapsed'] / done * (self.total - now['n']))} left")
        return f"{self.desc}: {', '.join(parts)}"

    def _size(self, number: float) -> str:
        if self.unit == "B":
            return f"{number / 1e6:,.1f} MB"
        return count(int(number), self.unit, "batches" if self.unit == "batch" else "")

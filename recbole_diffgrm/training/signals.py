"""SIGINT and SIGTERM: finish the step in hand, save, leave."""

import signal
import threading
from pathlib import Path
from typing import Any

from recbole_diffgrm import processes
from recbole_diffgrm.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignal:
    """While open, the first signal is remembered and acted upon at the next `check`; a second one acts at once, but for
    processes of torchrun, which hands on a signal that they may have had already."""

    def __init__(self, run_dir: Path):
        self.run_dir = run_dir
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is threading.main_thread():  # Python delivers signals there only
            self._previous = {number: signal.signal(number, self._remember) for number in SIGNALS}
        return self

    def __exit__(self, kind, *rest) -> None:
        self._restore()
        if kind is None:
            self.check()  # it came after the last step: do not go on to the next model

    def check(self) -> None:
        """One of several processes has had a signal: all of them stop."""
        self.act_on(processes.greatest(self.received or 0))

    def act_on(self, number: int) -> None:
        """0: there was no signal."""
        if number:
            raise Interrupted(number, self.run_dir)

    def _remember(self, number: int, frame) -> None:
        self.received = number
        if processes.world() == 1:
            self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

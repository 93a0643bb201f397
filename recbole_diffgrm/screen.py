"""Log lines on standard error, from the first second of a command, or of `run` in Python, to its end."""

import functools
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

from recbole_diffgrm import processes

OURS = ("recbole_diffgrm", "recbole", "root")  # RecBole logs to the root logger

P = ParamSpec("P")
R = TypeVar("R")

_COLORS = re.compile(r"\x1b\[[0-9;]*m")


@contextmanager
def log_to_screen(level: str = "INFO") -> Iterator[None]:
    """Lines of the project and of RecBole, and warnings of other libraries. Inside another one it sets the level. Of
    several processes only the first one is heard."""
    root = logging.getLogger()
    previous = root.level
    is_shown = any(isinstance(handler, _Screen | _Silence) for handler in root.handlers)
    handlers: list[logging.Handler] = [] if is_shown else [_Screen() if processes.is_first() else _Silence()]
    root.setLevel(level)
    for handler in handlers:
        root.addHandler(handler)
    try:
        yield
    finally:
        root.setLevel(previous)
        for handler in handlers:
            root.removeHandler(handler)


def logs_to_screen(work: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Of a function that takes a configuration first: what it does is shown, at the level of the key `state`."""

    @functools.wraps(work)
    def shown(config: Any, *arguments: P.args, **options: P.kwargs) -> R:
        with log_to_screen(config["state"]):
            return work(config, *arguments, **options)

    return shown


class Colorless(logging.Formatter):
    """RecBole colours its lines."""

    def format(self, record: logging.LogRecord) -> str:
        return _COLORS.sub("", super().format(record))


class _Silence(logging.NullHandler):
    """Of the other processes. Not any NullHandler: other libraries add theirs."""


class _Screen(logging.StreamHandler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(Colorless("%(asctime)s %(message)s", "%H:%M:%S"))

    def filter(self, record: logging.LogRecord) -> bool:
        return record.name.split(".")[0] in OURS or record.levelno >= logging.WARNING

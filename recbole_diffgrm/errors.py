"""Errors that the user can fix: shown as one line, never as a traceback."""

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class UserError(ValueError):
    """Bad input. The message says what is wrong and what to do; the command line exits with code 2."""

    def __init__(self, message: str = ""):
        super().__init__(" ".join(message.splitlines()))  # a name or value in it may have several


class Interrupted(Exception):
    """SIGINT or SIGTERM arrived. Progress is saved; the command line exits with 128 + the signal's number."""

    def __init__(self, signal_number: int, run_dir: Path):
        super().__init__(f"stopped by signal {signal_number}; saved in {run_dir}, continue with --resume")
        self.signal_number = signal_number


def divergence_error(what: str) -> UserError:
    return UserError(f"{what}: lower learning_rate or set clip_grad_norm")


def suggest(name: str, candidates: Iterable[str]) -> str:
    """` Did you mean X?`, or nothing when no name is close."""
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f" Did you mean {by_lower[close[0]]}?" if close else ""


def show(value: Any, longest: int = 200) -> str:
    """A value in a message: on one line, and cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of more than 4300 digits
        return "a number of thousands of digits"
    return text if len(text) <= longest else f"{text[:longest]}..."

"""What all commands share: --key=value arguments, and exit codes."""

import _thread
import logging
import os
import shlex
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recbole_diffgrm import processes
from recbole_diffgrm.config.argument_values import parse_argument, parse_texts
from recbole_diffgrm.errors import Interrupted, UserError
from recbole_diffgrm.files import first_line
from recbole_diffgrm.memory import explain_shortage
from recbole_diffgrm.screen import log_to_screen

logger = logging.getLogger(__name__)

LONGEST_ERROR = 1200  # characters; a message may quote a whole file
SHORT = {"-m": "--model", "-d": "--dataset"}  # as RecBole's run_recbole.py has them


def parse_arguments(
    arguments: Sequence[str], flags: Collection[str] = (), texts: Collection[str] = ()
) -> dict[str, Any]:
    """--key=value or --key value, values as YAML but for keys that hold a text and `texts`; a bare --key is True, and
    `flags` take no value."""
    from recbole_diffgrm.models import text_keys

    parsed: dict[str, Any] = {}
    rest = [SHORT.get(argument, argument) for argument in arguments]
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("--") or argument == "--":
            raise UserError(f"cannot read {argument!r}: options are written --key=value (see --help)")
        key, equals, text = argument[2:].partition("=")
        if not equals and key not in flags and rest and not rest[0].startswith("--"):
            equals, text = "=", rest.pop(0)
        if key in parsed:
            raise UserError(f"--{key} is given twice")
        parsed[key] = True if not equals else text if key in texts else parse_argument(key, text, text_keys())
    for flag in set(flags) & set(parsed):
        if not isinstance(parsed[flag], bool):
            raise UserError(f"--{flag} takes no value")
    return parsed


def split_names(text: Any, key: str) -> list[str]:
    """NAME,NAME,..."""
    names = [name.strip() for name in str(text).split(",") if name.strip()]
    if not names:
        raise UserError(f"--{key} is empty")
    check_different(names, key)
    return names


def split_files(text: Any) -> list[str]:
    """FILE FILE ..., in quotes where a name has blanks, or a YAML list; or one name, blanks and all."""
    text = "" if text is True else str(text).strip()
    if os.path.isfile(text):  # noqa: PTH113  False for whatever no file can be called
        return [text]
    if text.startswith("["):
        return parse_texts(text, "config_files")
    words = shlex.shlex(text, posix=True, punctuation_chars=False)
    words.whitespace_split, words.commenters, words.escape = True, "", ""  # a backslash is part of a name
    try:
        return list(words)
    except ValueError:
        raise UserError(f"--config_files: a quote is not closed in {text}") from None


def check_different(values: Sequence[Any], key: str) -> None:
    for value in values:
        if values.count(value) > 1:
            raise UserError(f"--{key} names {value} twice")


def check_alone() -> None:
    """For commands that many processes share without torchrun, as each does what is left to do."""
    if processes.world() > 1:
        raise UserError("this command is not started by torchrun: start it several times, and each does what is left")


@contextmanager
def working(level: str = "INFO") -> Iterator[None]:
    """Around the work of a command that was checked: what is done is said on standard error, from the first second on.
    Imports of torch and the like belong inside: they take seconds, on a busy disk many."""
    with log_to_screen(level):
        logger.info("loading libraries (torch, RecBole)")
        yield


def open_report(path: Path) -> None:
    """In the browser, if it could be written and there is one."""
    import webbrowser

    if path.exists() and not webbrowser.open(path.resolve().as_uri()):
        print(f"there is no browser here to open {path}", file=sys.stderr)


def print_error(error: object) -> None:
    """As one line, whatever text of the user is in it: a terminal obeys control characters."""
    text = str(error)
    if len(text) > LONGEST_ERROR:
        text = f"{text[: LONGEST_ERROR // 2]} ... {text[-LONGEST_ERROR // 2 :]}"
    printable = (part if part.isprintable() else part.encode("unicode_escape").decode() for part in text)
    print(f"error: {''.join(printable)}", file=sys.stderr)


def exit_code(work: Callable[[], int]) -> int:
    """Of `work`: a user's mistake or a signal is one line on standard error and a code of its own."""
    with _interrupts_kept():  # to the end: an exception keeps objects of `work` alive
        return _exit_code(work)


def _exit_code(work: Callable[[], int]) -> int:
    try:
        with explain_shortage():
            return work()
    except UserError as error:
        _fail(error)
        return 2
    except OSError as error:  # of a disk or a folder, as one that may not be looked into
        _fail(f"{error.filename or 'a file'}: {error.strerror or first_line(error)}")
        return 2
    except processes.LostProcess as error:
        _fail(error)
        return 1
    except Interrupted as stop:
        if processes.is_first():
            print(stop, file=sys.stderr)
        return 128 + stop.signal_number
    except KeyboardInterrupt:  # before training began, or a second time
        if processes.is_first():
            print("stopped", file=sys.stderr)
        return 130


def _fail(error: object) -> None:
    """Of several processes that end with an error one says why."""
    if processes.is_first_to_fail():
        print_error(error)


@contextmanager
def _interrupts_kept() -> Iterator[None]:
    """Ctrl-C while Python deletes an object is lost, with a traceback: here it comes again a moment later, unless it is
    all over by then."""
    original, timers = sys.unraisablehook, list[threading.Timer]()

    def hook(lost: Any) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            original(lost)
            return
        timers.append(threading.Timer(0.05, _thread.interrupt_main))
        timers[-1].start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = original
        for timer in timers:
            timer.cancel()

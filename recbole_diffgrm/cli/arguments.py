"""What all commands share: --key=value arguments, and exit codes."""

import logging
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from recbole_diffgrm.config.layers import is_text_key, parse_value
from recbole_diffgrm.errors import Interrupted, UserError
from recbole_diffgrm.files import first_line
from recbole_diffgrm.screen import log_to_screen

logger = logging.getLogger(__name__)

SHORT = {"-m": "--model", "-d": "--dataset"}  # as RecBole's run_recbole.py has them


def parse_arguments(
    arguments: Sequence[str], flags: Collection[str] = (), texts: Collection[str] = ()
) -> dict[str, Any]:
    """--key=value or --key value, values as YAML but for `texts`; a bare --key is True, and `flags` take no value."""
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
        is_text = key in texts or is_text_key(key)
        parsed[key] = True if not equals else text if is_text else parse_value(text, key)
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


def check_different(values: Sequence[Any], key: str) -> None:
    for value in values:
        if values.count(value) > 1:
            raise UserError(f"--{key} names {value} twice")


@contextmanager
def working(level: str = "INFO") -> Iterator[None]:
    """Around the work of a command that was checked: what is done is said on standard error, from the first second on.
    Imports of torch and the like belong inside: they take seconds, on a busy disk many."""
    with log_to_screen(level):
        logger.info("loading libraries (torch, RecBole)")
        yield


def exit_code(work: Callable[[], int]) -> int:
    """Of `work`: a user's mistake or a signal is one line on standard error and a code of its own."""
    try:
        return work()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # of a disk or a folder, as one that may not be looked into
        print(f"error: {error.filename or 'a file'}: {error.strerror or first_line(error)}", file=sys.stderr)
        return 2
    except Interrupted as stop:
        print(stop, file=sys.stderr)
        return 128 + stop.signal_number
    except KeyboardInterrupt:  # before training began, or a second time
        print("stopped", file=sys.stderr)
        return 130

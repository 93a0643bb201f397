"""RecBole's atomic files: reading item features and text, and writing both kinds of file.

The format is tab-separated with a header of `name:type`. It says nothing about quotes, and RecBole reads a field that
happens to begin with `"` as the start of a quoted one. So: fields with quotes or tabs are written quoted (any CSV
reader understands that, RecBole's too), and read in both ways, quoted or plain, in every kind of file.
"""

import csv
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from recbole_diffgrm.errors import UserError
from recbole_diffgrm.files import atomic_write, reading

KINDS = ("token", "token_seq", "float", "float_seq")
PADDING = "[PAD]"  # RecBole's name for number 0
MAX_ID_LENGTH = 1000  # characters: tables of ids are as wide as the longest
MAX_LINE_LENGTH = 1 << 26  # characters: the rest of a file without line breaks is not data

_BREAKS = re.compile(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")
_QUOTED = re.compile(r'"(?:[^"]|"")*"')


def read_header(path: Path) -> dict[str, str]:
    """Column names and types, in file order."""
    with reading(path), path.open(encoding="utf-8-sig") as file:
        line = file.readline(MAX_LINE_LENGTH).rstrip("\r\n")
    if not line:
        raise UserError(f"{path}: the first line is empty; it must name columns as name:type ({', '.join(KINDS)})")
    header: dict[str, str] = {}
    for field in line.split("\t"):
        name, _, kind = field.partition(":")
        if kind not in KINDS:
            raise UserError(
                f"{path}: the first line must name columns as name:type ({', '.join(KINDS)}), found {name[:100]!r}"
            )
        if name in header:
            raise UserError(f"{path}: the first line names the column {name[:100]!r} twice")
        header[name] = kind
    return header


def read_rows(path: Path) -> Iterator[list[str]]:
    """The fields of each line after the header, as text. A line with another number of fields is an error."""
    return (fields for _, fields in read_numbered_rows(path))


def read_numbered_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The same, with the number of each line."""
    header = [f"{name}:{kind}" for name, kind in read_header(path).items()]
    with reading(path), path.open(encoding="utf-8-sig", newline="\n") as file:
        file.readline()
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_LENGTH), ""), start=2):
            if len(line) == MAX_LINE_LENGTH:
                raise UserError(f"{path}, line {number}: longer than {MAX_LINE_LENGTH:,} characters")
            line = line.rstrip("\r\n")
            if not line:
                continue
            fields = [unquote(field) for field in line.split("\t")]
            if len(fields) != len(header) and '"' in line:  # a tab inside quotes
                csv.field_size_limit(MAX_LINE_LENGTH)
                fields = next(csv.reader([line], delimiter="\t"))
            if len(fields) != len(header):
                raise UserError(f"{path}, line {number}: {len(fields)} fields where the header has {len(header)}")
            if fields == header:
                raise repeated_header(path, number)
            yield number, fields


def repeated_header(path: Path, number: int) -> UserError:
    return UserError(f"{path}, line {number}: repeats the header; if files were joined, keep only the first header")


def check_ids(ids: Iterable[str], where: str) -> None:
    """An id means the same in every file and table; `where` names the file and the column."""
    for one in ids:
        fault = id_fault(one)
        if fault:
            raise UserError(f"{where} {one[:40]!r} cannot be an id: {fault}")


def id_fault(text: str) -> str | None:
    """Why a text cannot be an id, or None."""
    if text == PADDING:
        return "RecBole reserves it for padding"
    if len(text) > MAX_ID_LENGTH:
        return f"it has {len(text):,} characters, and ids have at most {MAX_ID_LENGTH:,}"
    if "\0" in text or "\t" in text or _BREAKS.search(text):
        return "it has a tab, line break or NUL"
    return None


def write_atomic_file(path: Path, header: dict[str, str], rows: Iterable[Iterable[str]]) -> int:
    """A file under its own name is always whole. Returns the number of rows."""
    count = 0
    try:
        with atomic_write(path, "w") as file:
            file.write("\t".join(f"{name}:{kind}" for name, kind in header.items()) + "\n")
            for row in rows:
                file.write("\t".join(map(quote, row)) + "\n")
                count += 1
    except UnicodeEncodeError as error:  # a half of a surrogate pair
        text = error.object[max(0, error.start - 20) : error.end + 20]
        raise UserError(f"{path.name}: there is text that UTF-8 cannot hold: {text!r}") from None
    return count


def quote(field: str) -> str:
    field = _BREAKS.sub(" ", field)  # one line is one record, for every reader
    return '"' + field.replace('"', '""') + '"' if '"' in field or "\t" in field else field


def unquote(field: str) -> str:
    if len(field) > 1 and field[0] == '"' and _QUOTED.fullmatch(field):
        return field[1:-1].replace('""', '"')
    return field

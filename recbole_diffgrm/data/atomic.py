"""RecBole's atomic files: reading item features and text, and writing both kinds of file.

The format is tab-separated with a header of `name:type`. It says nothing about quotes, and RecBole reads a field that
happens to begin with `"` as the start of a quoted one. So: fields with quotes or tabs are written quoted (any CSV
reader understands that, RecBole's too), and read in both ways, quoted or plain.
"""

import csv
import logging
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from recbole_diffgrm.errors import UserError

logger = logging.getLogger(__name__)

_BREAKS = re.compile(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")
_QUOTED = re.compile(r'"(?:[^"]|"")*"')


def read_header(path: Path) -> dict[str, str]:
    """Column names and types, in file order."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            fields = file.readline().rstrip("\r\n").split("\t")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    header = {name: kind for name, _, kind in (field.partition(":") for field in fields)}
    untyped = [name for name, kind in header.items() if kind not in ("token", "token_seq", "float", "float_seq")]
    if untyped:
        raise UserError(
            f"{path}: the first line must name columns as name:type (token, token_seq, float, float_seq), "
            f"found {untyped[0]!r}"
        )
    return header


def read_rows(path: Path) -> Iterator[list[str]]:
    """The fields of each line after the header, as text. A line with another number of fields is an error."""
    columns = len(read_header(path))
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            next(file)
            for number, line in enumerate(file, start=2):
                line = line.rstrip("\r\n")
                if not line:
                    continue
                fields = [_unquote(field) for field in line.split("\t")]
                if len(fields) != columns and '"' in line:  # a tab inside quotes
                    fields = next(csv.reader([line], delimiter="\t"))
                if len(fields) != columns:
                    raise UserError(f"{path}, line {number}: {len(fields)} fields where the header has {columns}")
                yield fields
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from None


def read_item_texts(path: Path, id_column: str = "item_id") -> dict[str, dict[str, str]]:
    """All columns of an .item file as text: {item id: {column: text}}. The first line of an id counts."""
    names = list(read_header(path))
    if id_column not in names:
        raise UserError(f"{path} has no column {id_column}; it has {', '.join(names)}")
    key = names.index(id_column)
    texts: dict[str, dict[str, str]] = {}
    repeated = []
    for fields in read_rows(path):
        if fields[key] in texts:
            repeated.append(fields[key])
            continue
        texts[fields[key]] = {n: f for i, (n, f) in enumerate(zip(names, fields)) if i != key}
    if repeated:
        logger.warning(
            f"{path}: {len(repeated)} lines repeat an earlier {id_column} ({repeated[0]!r}) and are not read"
        )
    return texts


def write_atomic_file(path: Path, header: dict[str, str], rows: Iterable[Iterable[str]]) -> int:
    """Write to a temporary file and rename, so that a file under its own name is always whole. Returns the rows."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    count = 0
    try:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            file.write("\t".join(f"{name}:{kind}" for name, kind in header.items()) + "\n")
            for row in rows:
                file.write("\t".join(map(_quote, row)) + "\n")
                count += 1
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return count


def _quote(field: str) -> str:
    field = _BREAKS.sub(" ", field)  # one line is one record, for every reader
    return '"' + field.replace('"', '""') + '"' if '"' in field or "\t" in field else field


def _unquote(field: str) -> str:
    if len(field) > 1 and field[0] == '"' and _QUOTED.fullmatch(field):
        return field[1:-1].replace('""', '"')
    return field

"""Tables from the columns of atomic files; what is no number, or no id, is refused here."""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.compute
from pyarrow import csv as arrow_csv
from recbole.utils import FeatureType

from recbole_diffgrm import memory
from recbole_diffgrm.data.atomic import (
    MAX_ID_LENGTH,
    check_ids,
    read_header,
    read_numbered_rows,
    repeated_header,
    unquote,
)
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.files import first_line, reading

Columns = dict[str, FeatureType]

ARROW_TYPES = {
    FeatureType.TOKEN: pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
    FeatureType.FLOAT: pyarrow.float64(),
    FeatureType.TOKEN_SEQ: pyarrow.string(),
    FeatureType.FLOAT_SEQ: pyarrow.string(),
}
BLOCK_SIZE = 1 << 26  # bytes of .inter read at once
MAX_TOKEN_LENGTH = 10_000  # characters of a feature: tables of tokens are as wide as the longest
MAX_LIST_LENGTH = 10_000  # values of a feature: tables of lists are as wide as the longest
MAX_FEATURE = float(np.finfo(np.float32).max)

# Tokens to look at one by one, as perhaps no ids.
_UNUSUAL = r"[\x00-\x1f\x{85}\x{2028}\x{2029}]|^\[PAD\]$"
_NUMBER = re.compile(r" *-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)? *", re.ASCII)  # as Arrow reads it


def read_interactions(path: Path, columns: Columns, ids: Sequence[str], time: str) -> pd.DataFrame:
    """Millions of short lines: Arrow's reader, which keeps each token once, not once a line."""
    content = _read_arrow(path, columns)
    table = {}
    for name, kind in columns.items():
        column = content[f"{name}:{kind.value}"]
        content = content.drop_columns([f"{name}:{kind.value}"])  # free each column once it is converted
        if kind == FeatureType.TOKEN:
            table[name] = _as_categorical(column)
            _check_tokens(table[name].categories, f"{path}: {name}", name in ids)
        else:
            table[name] = column.to_numpy().copy()  # what Arrow hands out may be read-only
        if kind == FeatureType.FLOAT:
            _check_numbers(table[name], path, name, is_time=name == time)
        del column
        memory.release_freed_memory()
    return pd.DataFrame(table, copy=False)


def read_features(path: Path, columns: Columns, ids: Sequence[str]) -> pd.DataFrame:
    """Of users or items; they may hold any text."""
    names = list(read_header(path))
    indices = [names.index(name) for name in columns]
    numbers, rows = [], []
    for number, fields in read_numbered_rows(path):
        numbers.append(number)
        rows.append([fields[index] or None for index in indices])
    if not rows:
        raise UserError(f"{path} has no lines after its header")
    table = pd.DataFrame(rows, columns=list(columns), dtype=object)
    for name, kind in columns.items():
        if kind == FeatureType.FLOAT:
            values = zip(numbers, table[name])
            table[name] = [_parse_feature(text, f"{path}, line {number}: {name}") for number, text in values]
        elif kind == FeatureType.TOKEN:
            _check_tokens(table[name].dropna().unique(), f"{path}: {name}", name in ids)
    return table


def split_lists(texts: pd.Series, kind: FeatureType, separator: str, most: int | None, where: str) -> list[np.ndarray]:
    """The values of each row, at most `most`."""
    parts = [[part for part in text.split(separator) if part][:most] for text in texts.fillna("")]
    longest = max(map(len, parts), default=0)
    if longest > MAX_LIST_LENGTH:
        raise UserError(
            f"{where} has a list of {longest:,} values; at most {MAX_LIST_LENGTH:,} can be loaded: set seq_len, or "
            "leave it out of load_col"
        )
    if kind == FeatureType.FLOAT_SEQ:
        return [np.array([_parse_feature(part, where) for part in row], dtype=float) for row in parts]
    for row in parts:
        _check_tokens(row, where, is_id=False)
    return [np.array(row, dtype=object) for row in parts]


def _read_arrow(path: Path, columns: Columns) -> pyarrow.Table:
    kinds = {f"{name}:{kind.value}": ARROW_TYPES[kind] for name, kind in columns.items()}
    with reading(path):
        try:
            return arrow_csv.read_csv(
                path,
                arrow_csv.ReadOptions(block_size=BLOCK_SIZE, use_threads=False),
                arrow_csv.ParseOptions(delimiter="\t", quote_char=False),
                arrow_csv.ConvertOptions(
                    column_types=kinds, include_columns=list(kinds), null_values=[""], strings_can_be_null=True
                ),
                memory_pool=pyarrow.system_memory_pool(),  # gives memory back; Arrow's own pool keeps it
            )
        except pyarrow.ArrowInvalid as error:
            _find_wrong_number(path, columns)
            raise UserError(f"{path} cannot be read: {first_line(error)}") from None


def _find_wrong_number(path: Path, columns: Columns) -> None:
    """Raises an error that names its line; nothing where Arrow complained about something else."""
    header = [f"{name}:{kind}" for name, kind in read_header(path).items()]
    indices = {name: header.index(f"{name}:float") for name, kind in columns.items() if kind == FeatureType.FLOAT}
    number = 1
    for number, fields in _read_lines(path):
        if fields == header:
            raise repeated_header(path, number)
        if len(fields) != len(header):
            return
        for name, index in indices.items():
            if not _NUMBER.fullmatch(fields[index]) or not math.isfinite(float(fields[index])):
                raise _wrong_number(path, number, name, fields[index])
    if number == 1:
        raise UserError(f"{path} has no interactions")


def _read_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(number, fields) of the lines that are rows for Arrow, whatever is in them; slow, to explain an error."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        file.readline()
        for number, line in enumerate(file, start=2):
            if line != "\n":
                yield number, line.rstrip("\n").split("\t")


def _check_numbers(values: np.ndarray, path: Path, name: str, is_time: bool) -> None:
    """Times keep 8 bytes, features become float32."""
    with np.errstate(over="ignore"):
        is_right = np.isfinite(values if is_time else values.astype(np.float32))
    if is_right.all():
        return
    row = int(is_right.argmin())
    index = list(read_header(path)).index(name)
    number, fields = next(line for i, line in enumerate(_read_lines(path)) if i == row)
    raise _wrong_number(path, number, name, fields[index])


def _wrong_number(path: Path, number: int, name: str, text: str) -> UserError:
    found = f"{text[:40]!r}, not a finite number" if text.strip() else "empty"
    return UserError(f"{path}, line {number}: {name} is {found}")


def _parse_feature(text: str | None, where: str) -> float:
    """NaN, as a missing number, is left to RecBole, which fills in the mean."""
    try:
        value = math.nan if text is None else float(text)
    except ValueError:
        value = math.inf
    if abs(value) > MAX_FEATURE:
        raise UserError(f"{where} is {str(text)[:40]!r}, not a finite number")
    return value


def _check_tokens(tokens: Any, where: str, is_id: bool) -> None:
    if is_id:
        texts = pyarrow.array(tokens, pyarrow.string())
        is_unusual = pyarrow.compute.or_(
            pyarrow.compute.match_substring_regex(texts, _UNUSUAL),
            pyarrow.compute.greater(pyarrow.compute.utf8_length(texts), MAX_ID_LENGTH),
        )
        check_ids(texts.filter(is_unusual).to_pylist(), where)
        return
    longest = max(map(len, tokens), default=0)
    if longest > MAX_TOKEN_LENGTH:
        raise UserError(
            f"{where} has a value of {longest:,} characters; at most {MAX_TOKEN_LENGTH:,} can be loaded as a feature: "
            "leave it out of load_col (the text of semantic IDs is read without it)"
        )


def _as_categorical(column: pyarrow.ChunkedArray) -> pd.Categorical:
    column = column.unify_dictionaries()
    if column.num_chunks == 0:
        return pd.Categorical([])
    codes = np.concatenate([chunk.indices.fill_null(-1).to_numpy() for chunk in column.chunks])
    tokens = column.chunk(0).dictionary
    texts = tokens.to_numpy(zero_copy_only=False)
    if pyarrow.compute.any(pyarrow.compute.starts_with(tokens, '"')).as_py():
        # As other files are read. "a" and a are the same; "" is missing.
        number, texts = pd.factorize(np.array([unquote(text) or None for text in texts], dtype=object))
        codes = np.where(codes < 0, -1, number[codes])
    return pd.Categorical.from_codes(codes, categories=texts)

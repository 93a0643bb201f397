"""Columns of texts with millions of rows: what a loop over them would take minutes and gigabytes for.

Ids and texts are Arrow arrays, or numpy arrays of Python's strings (an array of fixed width would be as wide as the
longest everywhere). Whatever Arrow does not read as data.atomic does is read by data.atomic.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from recbole_diffgrm.data.atomic import quote, read_header, read_rows, unquote
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.files import atomic_write, reading

BLOCK_SIZE = 1 << 26  # bytes read at once
ROWS_AT_ONCE = 1 << 19
TEXT = pyarrow.large_string()
_TO_QUOTE = r"[\"\t\r\n\v\f\x1c-\x1e\x{85}\x{2028}\x{2029}]"

Texts: TypeAlias = Any  # a list of str, an array of objects or of Arrow


def as_arrow(texts: Texts) -> pyarrow.Array:
    if isinstance(texts, pyarrow.Array | pyarrow.ChunkedArray):
        texts = texts.cast(TEXT)
        return texts.combine_chunks() if isinstance(texts, pyarrow.ChunkedArray) else texts
    return pyarrow.array(texts.tolist() if isinstance(texts, np.ndarray) and texts.dtype != object else texts, TEXT)


def as_objects(texts: pyarrow.Array) -> np.ndarray:
    """[N] Python's strings."""
    strings: np.ndarray = texts.to_numpy(zero_copy_only=False)
    return strings


def sort_order(texts: Texts) -> np.ndarray:
    """[N] rows in the order of the texts, as Python sorts them."""
    order: np.ndarray = pc.sort_indices(as_arrow(texts)).to_numpy().astype(np.int64)
    return order


def find_rows(texts: Texts, among: Texts) -> np.ndarray:
    """[N] the first row of each text in `among`; -1 where it is not there."""
    try:
        found = pc.index_in(as_arrow(texts), as_arrow(among))
    except UnicodeEncodeError:  # half of a surrogate pair is a text for Python only
        index: dict[str, int] = {}
        for row, text in enumerate(among):
            index.setdefault(str(text), row)
        return np.array([index.get(str(text), -1) for text in texts], np.int64)
    rows: np.ndarray = found.fill_null(-1).to_numpy().astype(np.int64)
    return rows


def join_codes(codes: np.ndarray) -> pyarrow.Array:
    """[N, n] -> texts such as `3 17 240`"""
    return _join([pyarrow.array(column).cast(TEXT) for column in codes.T], " ")


def _join(parts: Sequence[Any], separator: str | bytes) -> pyarrow.Array:
    return pc.binary_join_element_wise(*parts, pyarrow.scalar(separator, parts[0].type))


def hash_texts(*columns: Texts) -> str:
    """SHA-256 of texts, whatever characters are in them; of several columns, row by row."""
    digest = hashlib.sha256()
    try:
        arrays = [as_arrow(column) for column in columns]
    except UnicodeEncodeError:
        for row in zip(*columns):
            for text in row:
                content = str(text).encode("utf-8", "surrogatepass")
                digest.update(len(content).to_bytes(8, "big") + content)
        return digest.hexdigest()
    for start in range(0, len(arrays[0]), ROWS_AT_ONCE):
        parts = [part for array in arrays for part in _with_length(array.slice(start, ROWS_AT_ONCE))]
        digest.update(_content(_join(parts, b"")))
    return digest.hexdigest()


def _with_length(texts: pyarrow.Array) -> tuple[pyarrow.Array, pyarrow.Array]:
    """The length of each in 8 bytes, and its bytes."""
    length = pc.binary_length(texts).to_numpy().astype(">u8")
    kind = pyarrow.binary(8)
    as_bytes = pyarrow.FixedSizeBinaryArray.from_buffers(kind, len(texts), [None, pyarrow.py_buffer(length.tobytes())])
    return as_bytes.cast(pyarrow.large_binary()), texts.cast(pyarrow.large_binary())


def _content(texts: pyarrow.Array) -> memoryview:
    """Of a new array: the bytes of all its texts, one after the other."""
    return memoryview(texts.buffers()[2] or b"")


def read_columns(path: Path, names: Sequence[str]) -> dict[str, pyarrow.Array]:
    """Columns of an atomic file as text, as `read_rows` reads it."""
    header = read_header(path)
    missing = [name for name in names if name not in header]
    if missing:
        raise UserError(f"{path} has no column {missing[0]}; it has {', '.join(header)}")
    try:
        with reading(path):
            found = _read_plain(path, header, names)
    except (pyarrow.ArrowException, UserError):  # what is wrong with it is said below, with its line
        found = None
    if found is not None:
        return found
    indices = [list(header).index(name) for name in names]
    rows = [[fields[index] for index in indices] for fields in read_rows(path)]
    return {name: as_arrow([row[number] for row in rows]) for number, name in enumerate(names)}


def _read_plain(path: Path, header: Mapping[str, str], names: Sequence[str]) -> dict[str, pyarrow.Array] | None:
    """None where the file has something that Arrow reads in another way."""
    with path.open("rb") as file:
        while block := file.read(BLOCK_SIZE):
            if b"\r" in block:
                return None
    columns = {name: f"{name}:{kind}" for name, kind in header.items()}
    table = arrow_csv.read_csv(
        path,
        arrow_csv.ReadOptions(block_size=BLOCK_SIZE, use_threads=False),
        arrow_csv.ParseOptions(delimiter="\t", quote_char=False),
        arrow_csv.ConvertOptions(
            column_types={columns[name]: TEXT for name in names}, include_columns=[columns[name] for name in names]
        ),
        memory_pool=pyarrow.system_memory_pool(),
    )
    found = {name: as_arrow(table[columns[name]]) for name in names}
    if any(len(column) and pc.any(pc.equal(column, columns[name])).as_py() for name, column in found.items()):
        return None  # perhaps a header in the middle
    return {name: _unquote(column) for name, column in found.items()}


def _unquote(texts: pyarrow.Array) -> pyarrow.Array:
    return _change(texts, pc.starts_with(texts, '"'), unquote)


def _change(texts: pyarrow.Array, where: pyarrow.Array, function: Any) -> pyarrow.Array:
    """function(text) where it may differ from the text."""
    if len(texts) == 0 or not pc.any(where).as_py():
        return texts
    return pc.replace_with_mask(texts, where, as_arrow([function(text) for text in texts.filter(where).to_pylist()]))


def write_columns(path: Path, header: Mapping[str, str], columns: Iterable[Texts]) -> None:
    """The atomic file that `write_atomic_file` would write."""
    arrays = [as_arrow(column) for column in columns]
    with atomic_write(path) as file:
        file.write(("\t".join(f"{name}:{kind}" for name, kind in header.items()) + "\n").encode())
        for start in range(0, len(arrays[0]), ROWS_AT_ONCE):
            parts = [part.slice(start, ROWS_AT_ONCE) for part in arrays]
            parts = [_change(part, pc.match_substring_regex(part, _TO_QUOTE), quote) for part in parts]
            file.write(_content(_join([_join(parts, "\t"), pyarrow.scalar("\n", TEXT)], "")))

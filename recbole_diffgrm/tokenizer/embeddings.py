"""Vectors of items, and files of ready-made embeddings."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recbole_diffgrm.data.columns import find_rows
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.files import read_text
from recbole_diffgrm.tokenizer.arrays import open_arrays

NO_VECTOR = -1
FORMAT = (
    "a .npz with item_id [N] and embedding [N, d], or a .npy [N, d] with its item ids, one per line, in NAME.ids.txt"
)
CHECKED_AT_ONCE = 65536  # rows


@dataclass(frozen=True)
class ItemVectors:
    """Which row of `vectors` belongs to each item. The rows may be on disk."""

    item_ids: np.ndarray  # [N] objects: str
    row: np.ndarray  # [N], NO_VECTOR for items without text
    vectors: np.ndarray  # [R, d]
    dtype: type | None = None  # what they are read as, if not as they are

    @classmethod
    def empty(cls, item_ids: np.ndarray) -> "ItemVectors":
        """No item has a vector."""
        return cls(item_ids, np.full(len(item_ids), NO_VECTOR), np.zeros((0, 0), np.float32))

    @property
    def has_vector(self) -> np.ndarray:
        """[N] bool"""
        return self.row != NO_VECTOR

    def select(self, items: np.ndarray) -> np.ndarray:
        """Vectors of items that have one, by index or mask."""
        return self.read(self.row[items])

    def read(self, rows: np.ndarray) -> np.ndarray:
        """[B, d] of `vectors`"""
        with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, which is an error
            return self.vectors[rows].astype(self.dtype or self.vectors.dtype, copy=False)


def is_embedding_file(name: str) -> bool:
    return name.endswith((".npy", ".npz"))


def ids_file(path: Path) -> Path:
    """The item ids of a .npy."""
    return path.with_suffix(".ids.txt")


def read_embeddings(path: Path, item_ids: np.ndarray) -> ItemVectors:
    """Vectors of the items, read as float32. One that is missing, repeated or not a number is an error."""
    ids, vectors = _load(path)
    if vectors.ndim != 2 or len(ids) != len(vectors) or vectors.shape[1] == 0:
        raise UserError(f"{path}: {len(ids)} item ids do not match an array {list(vectors.shape)}; expected {FORMAT}")
    if vectors.dtype.kind != "f":
        raise UserError(f"{path}: embeddings must be floating-point numbers, not {vectors.dtype}")
    repeated = np.flatnonzero(find_rows(ids, ids) < np.arange(len(ids)))
    if len(repeated):
        raise UserError(f"{path}: item {ids[repeated[0]]!r} is listed twice")
    row = find_rows(item_ids, ids)
    missing = np.flatnonzero(row < 0)
    if len(missing):
        item = str(item_ids[missing[0]])
        raise UserError(f"{path}: {len(missing):,} of {len(item_ids):,} items have no embedding, such as {item!r}")
    embedded = ItemVectors(item_ids, row, vectors, np.float32)
    for start in range(0, len(row), CHECKED_AT_ONCE):
        wrong = ~np.isfinite(embedded.read(row[start : start + CHECKED_AT_ONCE])).all(axis=1)
        if wrong.any():
            item = item_ids[start + int(wrong.argmax())]
            raise UserError(f"{path}: the embedding of item {str(item)!r} holds NaN or infinity (as float32)")
    return embedded


def _load(path: Path) -> tuple[list[str], np.ndarray]:
    expected = f"sid_text_encoder expects {FORMAT}"
    with open_arrays(path, expected, expected) as content:
        if path.suffix == ".npz":
            ids, vectors = content["item_id"], content["embedding"]
            return [_as_text(item) for item in np.atleast_1d(ids).tolist()], np.asarray(vectors)
    lines = read_text(ids_file(path), expected).removeprefix("\ufeff").split("\n")
    return lines[:-1] if lines[-1] == "" else lines, content


def _as_text(item: object) -> str:
    return item.decode("utf-8") if isinstance(item, bytes) else str(item)

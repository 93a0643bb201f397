"""Vectors of items, and files of embeddings that someone else made."""

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recbole_diffgrm.errors import UserError

NO_VECTOR = -1
FORMAT = "a .npz with item_id [N] and embedding [N, d], or a .npy [N, d] with its ids, one a line, in NAME.ids.txt"
ROWS = 65536


@dataclass(frozen=True)
class ItemVectors:
    """Which row of `vectors` belongs to each item. The rows may lie on disk."""

    item_ids: np.ndarray  # [N] str
    row: np.ndarray  # [N], NO_VECTOR for items without text
    vectors: np.ndarray  # [R, d]

    def of(self, items: np.ndarray) -> np.ndarray:
        return self.vectors[self.row[items]]


def is_file(name: str) -> bool:
    return name.endswith((".npy", ".npz"))


def ids_file(path: Path) -> Path:
    """The ids of a .npy."""
    return path.with_suffix(".ids.txt")


def read(path: Path, item_ids: np.ndarray) -> ItemVectors:
    """Vectors of the items, as float32. One that is missing, named twice or not a number is an error."""
    ids, vectors = _load(path)
    if vectors.ndim != 2 or len(ids) != len(vectors) or vectors.shape[1] == 0:
        raise UserError(f"{path}: {len(ids)} ids and an array {list(vectors.shape)} do not fit; wanted is {FORMAT}")
    if vectors.dtype.kind != "f":
        raise UserError(f"{path}: embeddings must be floating-point numbers, not {vectors.dtype}")
    place = {item: row for row, item in enumerate(ids)}
    if len(place) < len(ids):
        twice = next(item for row, item in enumerate(ids) if place[item] != row)
        raise UserError(f"{path}: item {twice!r} is there twice")
    missing = [item for item in item_ids.tolist() if item not in place]
    if missing:
        raise UserError(
            f"{path}: {len(missing):,} of {len(item_ids):,} items have no embedding, {missing[0]!r} among them"
        )
    row = np.array([place[item] for item in item_ids.tolist()])
    if vectors.dtype != np.float32:
        with np.errstate(over="ignore"):  # what is too large for float32 is infinite, and found below
            vectors = vectors.astype(np.float32)
    for start in range(0, len(row), ROWS):
        wrong = ~np.isfinite(vectors[row[start : start + ROWS]]).all(axis=1)
        if wrong.any():
            item = item_ids[start + int(wrong.argmax())]
            raise UserError(f"{path}: the embedding of item {str(item)!r} holds NaN or infinity (as float32)")
    return ItemVectors(item_ids, row, vectors)


def _load(path: Path) -> tuple[list[str], np.ndarray]:
    try:
        content = np.load(path, mmap_mode="r" if path.suffix == ".npy" else None, allow_pickle=False)
        if path.suffix == ".npz":
            with content:
                return [_name(item) for item in np.atleast_1d(content["item_id"]).tolist()], content["embedding"]
        lines = ids_file(path).read_text(encoding="utf-8-sig").split("\n")
        return lines[:-1] if lines[-1] == "" else lines, content
    except FileNotFoundError as error:
        raise UserError(f"sid_encoder: {error.filename} does not exist; wanted is {FORMAT}") from None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"sid_encoder: {path} cannot be read ({reason}); wanted is {FORMAT}") from None


def _name(item: object) -> str:
    return item.decode("utf-8") if isinstance(item, bytes) else str(item)

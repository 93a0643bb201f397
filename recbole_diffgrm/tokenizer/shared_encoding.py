"""Texts that the processes of a run encode together: each every n-th one, and then the first puts the parts together.

The vector of a text does not depend on its batch (text_encoder), so the result is that of one process.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

from recbole_diffgrm import processes
from recbole_diffgrm.files import atomic_write, reading
from recbole_diffgrm.tokenizer.cache import get_or_build, is_built
from recbole_diffgrm.tokenizer.text_encoder import CHUNK_SIZE, VECTORS_FILE


def encode_together(
    root: Path, ingredients: dict[str, Any], texts: pyarrow.Array, encode: Callable[[Path, pyarrow.Array], None]
) -> None:
    """The cache entry `embeddings`, if it is not there yet. `encode` writes the vectors of texts into a folder."""
    rank, world = processes.rank(), processes.world()
    if len(texts) < world or processes.from_first(lambda: is_built(root, "embeddings", ingredients)):
        return

    def encode_part(folder: Path) -> None:
        encode(folder, texts.take(np.arange(rank, len(texts), world)))

    part = get_or_build(root, "part", {**ingredients, "part": rank, "of": world}, encode_part, resumable=True)
    parts = processes.every(part)
    processes.from_first(lambda: _put_together(root, ingredients, parts))


def _put_together(root: Path, ingredients: dict[str, Any], parts: list[Path]) -> None:
    if not all(part.exists() for part in parts):  # on disks of several machines: each encodes all texts itself
        return
    get_or_build(root, "embeddings", ingredients, lambda folder: _interleave(parts, folder / VECTORS_FILE))
    for part in parts:
        shutil.rmtree(part)


def _interleave(parts: list[Path], path: Path) -> None:
    vectors = [_open(part / VECTORS_FILE) for part in parts]
    shape = (sum(map(len, vectors)), vectors[0].shape[1])
    with atomic_write(path) as file:
        header = {"descr": np.lib.format.dtype_to_descr(vectors[0].dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, len(vectors[0]), CHUNK_SIZE):
            chunks = [part[start : start + CHUNK_SIZE] for part in vectors]  # the first is the longest
            block = np.empty((sum(map(len, chunks)), shape[1]), vectors[0].dtype)
            for rank, chunk in enumerate(chunks):
                block[rank :: len(chunks)] = chunk
            file.write(block.tobytes())


def _open(path: Path) -> np.ndarray:
    with reading(path):
        return np.load(path, mmap_mode="r")

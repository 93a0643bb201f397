"""Whitened item vectors for models that read them next to SIDs: finer than codes."""

from pathlib import Path

import numpy as np

from recbole_diffgrm.config.recbole_config import Config
from recbole_diffgrm.data.columns import hash_texts
from recbole_diffgrm.data.splits import Split
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.files import atomic_write, reading
from recbole_diffgrm.tokenizer.cache import get_or_build
from recbole_diffgrm.tokenizer.embedding_sources import describe_files, text_source
from recbole_diffgrm.tokenizer.embeddings import NO_VECTOR, ItemVectors
from recbole_diffgrm.tokenizer.parallel import BLOCK_ROWS
from recbole_diffgrm.tokenizer.split_items import SplitItems
from recbole_diffgrm.tokenizer.whitening import Whitening

FORMAT_VERSION = 1  # raise when the same ingredients begin to give other vectors
VECTORS_FILE, WHITENING_FILE = "vectors.npy", "whitening.npz"
MAX_TRAINING_VECTORS = 1 << 18  # of more items, so many are drawn to fit the whitening


def text_vectors(config: Config, split: Split) -> np.ndarray:
    """[num_items, p] float32 of length 1, by item number, whitened as for SIDs; 0 for padding and without text. On
    disk, in the cache: a page of it is in memory once it is read."""
    return fit_text_vectors(config, split)[0]


def fit_text_vectors(config: Config, split: Split) -> tuple[np.ndarray, Whitening]:
    """The same, and what whitens the vectors of new items."""
    items = SplitItems.from_split(split)
    ingredients = {
        "source": describe_files(config),
        "items": hash_texts(split.item_ids),
        "training_items": hash_texts(items.item_ids[items.in_training]),
        "settings": {key: config[key] for key in ("sid_pca_dim", "sid_seed")},
        "format": FORMAT_VERSION,
    }

    def build(folder: Path) -> None:
        embedded = text_source(config, items.item_ids).load()
        row = np.full(split.dataset.item_num, NO_VECTOR)  # by number
        row[items.number] = embedded.row
        whitening = _fit(config, embedded, items.in_training & embedded.has_vector)
        whitening.save(folder / WHITENING_FILE)
        _write(folder / VECTORS_FILE, embedded, row, whitening)

    root = Path(config["cache_dir"]) / config.dataset
    folder = get_or_build(root, "text_vectors", ingredients, build)
    path = folder / VECTORS_FILE
    with reading(path):
        # "c": torch has no tensors that may not be written
        return np.load(path, mmap_mode="c"), Whitening.load(folder / WHITENING_FILE)


def _fit(config: Config, embedded: ItemVectors, in_training: np.ndarray) -> Whitening:
    if not in_training.any():
        raise UserError(
            "no item that occurs in training has text for its vector: do the ids in .inter and .item agree?"
        )
    rows = embedded.row[in_training]
    if len(rows) > MAX_TRAINING_VECTORS:
        rows = np.random.default_rng(config["sid_seed"]).choice(rows, MAX_TRAINING_VECTORS, replace=False)
    return Whitening.fit(embedded.read(np.sort(rows)), config["sid_pca_dim"])


def _write(path: Path, embedded: ItemVectors, row: np.ndarray, whitening: Whitening) -> None:
    """Some at a time: all of them may be larger than memory."""
    shape = (len(row), whitening.dim)
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.float32)), "fortran_order": False, "shape": shape}
    with atomic_write(path) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, len(row), BLOCK_ROWS):
            part = row[start : start + BLOCK_ROWS]
            vectors = np.zeros((len(part), whitening.dim), np.float32)
            has_vector = part != NO_VECTOR
            if has_vector.any():
                vectors[has_vector] = whiten(whitening, embedded.read(part[has_vector]))
            file.write(vectors.tobytes())


def whiten(whitening: Whitening, embeddings: np.ndarray) -> np.ndarray:
    """[K, d] -> [K, p] float32, of length 1"""
    whitened = whitening.apply(embeddings)
    length = np.linalg.norm(whitened, axis=1, keepdims=True)
    return (whitened / np.where(length > 0, length, 1)).astype(np.float32)

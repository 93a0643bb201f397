"""Codes of items with and without a vector, and their SIDs once collisions are resolved."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from recbole_diffgrm.tokenizer import collisions
from recbole_diffgrm.tokenizer.embeddings import NO_VECTOR, ItemVectors
from recbole_diffgrm.tokenizer.parallel import BLOCK_CELLS, map_blocks
from recbole_diffgrm.tokenizer.quantizers.base import Quantizer
from recbole_diffgrm.tokenizer.quantizers.random_codes import RandomCodes
from recbole_diffgrm.tokenizer.reassign import reassign

ROWS = 1 << 17  # vectors that are read at once


def encode_items(settings: Mapping[str, Any], quantizer: Quantizer, items: ItemVectors) -> np.ndarray:
    """[N, n] codes; items without a vector get random codes."""
    codes = np.zeros((len(items.item_ids), settings["sid_num_digits"]), np.uint16)
    has_vector = items.has_vector
    if has_vector.any():
        rows, index = np.unique(items.row[has_vector], return_inverse=True)  # in the order they have on disk
        # Some at a time: the vectors may be on disk, and larger than memory.
        parts = [quantizer.encode(items.read(rows[start : start + ROWS])) for start in range(0, len(rows), ROWS)]
        codes[has_vector] = np.concatenate(parts)[index]
    codes[~has_vector] = _quantizer_of_ids(settings, quantizer).encode(items.item_ids[~has_vector])
    return codes


def resolve_collisions(
    settings: Mapping[str, Any],
    quantizer: Quantizer | None,
    items: ItemVectors,
    codes: np.ndarray,
    table: np.ndarray,
) -> np.ndarray:
    """SIDs of items with `codes` [N, n], by the rule `sid_collisions`, next to the SIDs of `table`, which stay.

    Only the rule `reassign` needs a quantizer.
    """
    rule, codebook_size = settings["sid_collisions"], settings["sid_codebook_size"]
    if rule == "extra_digit":
        return collisions.number_members(codes, codebook_size, table)
    if rule == "random_digit":
        return collisions.shuffle_members(codes, codebook_size, table, settings["sid_hash_size"], settings["sid_seed"])
    if rule == "keep":
        return codes
    assert quantizer is not None

    def nearest(chosen: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        cells = settings["sid_num_digits"] * codebook_size + count * quantizer.cells_per_candidate
        parts = map_blocks(
            lambda start, stop: _nearest_codes(settings, quantizer, items, codes, chosen[start:stop], count),
            len(chosen),
            max(1, BLOCK_CELLS // cells),
        )
        near, added = (np.concatenate(column) for column in zip(*parts))
        return near, added

    def label_vectors(chosen: np.ndarray) -> np.ndarray:
        """Equal vectors have equal labels; an item without a vector has a label to itself."""
        label = -1 - chosen
        has_vector = items.row[chosen] != NO_VECTOR
        if has_vector.any():
            vectors = items.select(chosen[has_vector])
            label[has_vector] = np.unique(vectors, axis=0, return_inverse=True)[1].ravel()
        return label

    return reassign(codes, codebook_size, nearest, label_vectors, table)


def _nearest_codes(
    settings: Mapping[str, Any],
    quantizer: Quantizer,
    items: ItemVectors,
    codes: np.ndarray,
    chosen: np.ndarray,
    count: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The nearest codes [B, count, n] of the items `chosen`, and what each adds to the error of their present ones."""
    num_digits = settings["sid_num_digits"]
    count = min(count, settings["sid_codebook_size"] ** num_digits)
    near = np.zeros((len(chosen), count, num_digits), np.uint16)
    added = np.zeros((len(chosen), count))
    has_vector = items.row[chosen] != NO_VECTOR
    by_vector, by_id = chosen[has_vector], chosen[~has_vector]
    for mask, part, kind, inputs in (
        (has_vector, by_vector, quantizer, items.select(by_vector)),
        (~has_vector, by_id, _quantizer_of_ids(settings, quantizer), items.item_ids[by_id]),
    ):
        if len(part):
            points = kind.transform(inputs)
            near[mask], errors = kind.nearest(points, count)
            added[mask] = errors - kind.errors(points, codes[part])[:, None]
    return near, added


def _quantizer_of_ids(settings: Mapping[str, Any], quantizer: Quantizer) -> Quantizer:
    """For items without a vector."""
    if quantizer.vectors_from is None:
        return quantizer
    return RandomCodes(settings["sid_num_digits"], settings["sid_codebook_size"], settings["sid_seed"])

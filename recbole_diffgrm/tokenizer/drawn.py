"""Codes drawn at random from an item's id: for the quantiser `random`, and for items that have no text."""

import hashlib
from collections.abc import Sequence

import numpy as np

from recbole_diffgrm.tokenizer.blocks import BLOCK_CELLS, map_blocks


def codes(item_ids: Sequence[str], digits: int, size: int, seed: int) -> np.ndarray:
    """[N, n] uint16, uniform; an item's codes depend on its id and the seed, not on the other items."""
    parts = map_blocks(
        lambda start, stop: costs(item_ids[start:stop], digits, size, seed).argmin(axis=2).astype(np.uint16),
        len(item_ids),
        max(1, BLOCK_CELLS // (digits * size)),
    )
    return np.concatenate(parts) if parts else np.zeros((0, digits), np.uint16)


def costs(item_ids: Sequence[str], digits: int, size: int, seed: int) -> np.ndarray:
    """[N, n, M] numbers in 0..1 that stand where distances to centroids would: the smallest of a digit is drawn."""
    start = np.array([_number(item, seed) for item in item_ids], np.uint64)
    with np.errstate(over="ignore"):
        drawn = _mixed(start[:, None] + np.arange(1, digits * size + 1, dtype=np.uint64))
    return ((drawn >> np.uint64(11)) * 2.0**-53).reshape(-1, digits, size)


def _number(item: str, seed: int) -> int:
    content = item.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8, key=seed.to_bytes(8, "big")).digest(), "big")


def _mixed(x: np.ndarray) -> np.ndarray:
    """SplitMix64: counts to uniform bits."""
    x = x * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))

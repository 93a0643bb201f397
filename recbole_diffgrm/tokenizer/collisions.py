"""SIDs as keys that can be sorted and compared; items that share a SID, and telling them apart by one more digit."""

import numpy as np

from recbole_diffgrm.errors import UserError
from recbole_diffgrm.tokenizer.parallel import BLOCK_CELLS, map_blocks
from recbole_diffgrm.tokenizer.quantizers.random_codes import RandomCodes

ONE_MORE_DIGIT = ("extra_digit", "random_digit")  # values of sid_collisions that add a digit to every SID


def to_keys(codes: np.ndarray, codebook_size: int) -> np.ndarray:
    """[..., n] codes -> [...] keys that compare and sort like the codes: integers if 64 bits suffice, else bytes."""
    num_digits, bits = codes.shape[-1], _bits(codebook_size)
    if num_digits * bits > 64:
        return np.ascontiguousarray(codes.astype(">u2")).view(f"S{2 * num_digits}")[..., 0]
    key = np.zeros(codes.shape[:-1], np.uint64)
    for digit in range(num_digits):
        key = key << bits | codes[..., digit].astype(np.uint64)
    return key


def from_keys(key: np.ndarray, num_digits: int, codebook_size: int) -> np.ndarray:
    """[...] keys -> [..., n] uint16 codes"""
    bits = _bits(codebook_size)
    if num_digits * bits > 64:
        return np.ascontiguousarray(key.astype(f"S{2 * num_digits}"))[..., None].view(">u2").astype(np.uint16)
    shifts = bits * np.arange(num_digits - 1, -1, -1, dtype=np.uint64)
    return (key[..., None] >> shifts & np.uint64((1 << int(bits)) - 1)).astype(np.uint16)


def _bits(codebook_size: int) -> np.uint64:
    return np.uint64((codebook_size - 1).bit_length())


def group_sizes(codes: np.ndarray, codebook_size: int) -> np.ndarray:
    """[N] how many items have each item's codes, itself included."""
    _, group, count = np.unique(to_keys(codes, codebook_size), return_inverse=True, return_counts=True)
    return count[group]


def number_members(codes: np.ndarray, codebook_size: int, table: np.ndarray) -> np.ndarray:
    """[N, n] -> [N, n + 1]: one more digit counts the items with the same codes, after those of `table` [T, n + 1]."""
    number = _rank_in_group(codes, codebook_size, table)
    if len(number) and number.max() >= codebook_size:
        raise UserError(
            f"sid_collisions: {number.max() + 1} items share one SID, too many for extra_digit with sid_codebook_size "
            f"{codebook_size}; use reassign, more digits or larger codebooks"
        )
    return np.concatenate([codes, number[:, None].astype(np.uint16)], axis=1)


def shuffle_members(codes: np.ndarray, codebook_size: int, table: np.ndarray, hash_size: int, seed: int) -> np.ndarray:
    """[N, n] -> [N, n + 1]: the i-th item with the same codes, after those of `table` [T, n + 1], takes the i-th entry
    of a random permutation of `hash_size` values, which depends on codes and seed only. ActionPiece's fifth feature."""
    number = _rank_in_group(codes, codebook_size, table)
    if len(number) and number.max() >= hash_size:
        raise UserError(
            f"sid_hash_size: {number.max() + 1} items share one SID, too many for random_digit with sid_hash_size "
            f"{hash_size}; use a larger one, reassign, more digits or larger codebooks"
        )
    random = RandomCodes(1, hash_size, seed)

    def choose(start: int, stop: int) -> np.ndarray:
        draws = random.transform([" ".join(map(str, row)) for row in codes[start:stop].tolist()])[:, 0]
        permutation = np.argsort(draws, axis=1)  # [B, hash_size]
        return np.take_along_axis(permutation, number[start:stop, None], axis=1)

    digit = map_blocks(choose, len(codes), max(1, BLOCK_CELLS // hash_size))
    return np.concatenate([codes, np.concatenate([number[:0, None], *digit]).astype(np.uint16)], axis=1)


def _rank_in_group(codes: np.ndarray, codebook_size: int, table: np.ndarray) -> np.ndarray:
    """[N] how many items with the same codes come before each: in `table` [T, n + 1], then among the codes."""
    keys = to_keys(np.concatenate([table[:, :-1], codes]), codebook_size)
    group = np.unique(keys, return_inverse=True)[1]
    order = np.argsort(group, kind="stable")
    rank = np.empty(len(group), np.int64)
    rank[order] = np.arange(len(group)) - np.searchsorted(group[order], group[order])
    return rank[len(table) :]

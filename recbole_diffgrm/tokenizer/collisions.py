"""SIDs as keys that can be sorted and compared; items that share a SID, and numbering them in one more digit."""

import numpy as np

from recbole_diffgrm.errors import UserError


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
    keys = to_keys(np.concatenate([table[:, :-1], codes]), codebook_size)
    distinct, group = np.unique(keys, return_inverse=True)
    next_number = np.zeros(len(distinct), np.int64)
    np.maximum.at(next_number, group[: len(table)], table[:, -1].astype(np.int64) + 1)
    group = group[len(table) :]
    order = np.argsort(group, kind="stable")
    first = np.searchsorted(group[order], group[order])
    number = np.empty(len(codes), np.int64)
    number[order] = np.arange(len(codes)) - first
    number += next_number[group]
    if len(number) and number.max() >= codebook_size:
        raise UserError(
            f"sid_collisions: {number.max() + 1} items share one SID, too many for extra_digit with sid_codebook_size "
            f"{codebook_size}; use reassign, more digits or larger codebooks"
        )
    return np.concatenate([codes, number[:, None].astype(np.uint16)], axis=1)

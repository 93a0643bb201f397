"""IDs as keys that can be sorted and compared; items that share one, and their numbers in a digit more."""

import numpy as np

from recbole_diffgrm.errors import UserError


def keys(codes: np.ndarray, size: int) -> np.ndarray:
    """[..., n] codes below `size` -> [...] keys that are equal, and sorted, as the codes are; integers if they fit."""
    digits, bits = codes.shape[-1], _bits(size)
    if digits * bits > 64:
        return np.ascontiguousarray(codes.astype(">u2")).view(f"S{2 * digits}")[..., 0]
    key = np.zeros(codes.shape[:-1], np.uint64)
    for digit in range(digits):
        key = key << bits | codes[..., digit].astype(np.uint64)
    return key


def decode(key: np.ndarray, digits: int, size: int) -> np.ndarray:
    """[...] keys -> [..., n] uint16 codes"""
    bits = _bits(size)
    if digits * bits > 64:
        return np.ascontiguousarray(key.astype(f"S{2 * digits}"))[..., None].view(">u2").astype(np.uint16)
    shifts = bits * np.arange(digits - 1, -1, -1, dtype=np.uint64)
    return (key[..., None] >> shifts & np.uint64((1 << int(bits)) - 1)).astype(np.uint16)


def _bits(size: int) -> np.uint64:
    return np.uint64((size - 1).bit_length())


def group_sizes(codes: np.ndarray, size: int) -> np.ndarray:
    """[N] how many items have each item's ID, itself among them."""
    _, group, count = np.unique(keys(codes, size), return_inverse=True, return_counts=True)
    return count[group]


def number_members(codes: np.ndarray, size: int, table: np.ndarray) -> np.ndarray:
    """[N, n] -> [N, n + 1]: a digit that counts the items of an ID, after those of `table` [T, n + 1]."""
    distinct, group = np.unique(keys(np.concatenate([table[:, :-1], codes]), size), return_inverse=True)
    next_number = np.zeros(len(distinct), np.int64)
    np.maximum.at(next_number, group[: len(table)], table[:, -1].astype(np.int64) + 1)
    group = group[len(table) :]
    order = np.argsort(group, kind="stable")
    first = np.searchsorted(group[order], group[order])
    number = np.empty(len(codes), np.int64)
    number[order] = np.arange(len(codes)) - first
    number += next_number[group]
    if len(number) and number.max() >= size:
        raise UserError(
            f"sid_collisions: {number.max() + 1} items share one ID, but a digit has {size} codes: extra_digit cannot "
            "number them; use reassign, more digits or more codes"
        )
    return np.concatenate([codes, number[:, None].astype(np.uint16)], axis=1)

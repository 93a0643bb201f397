"""Squared distances to centroids, and the combinations of codes with the smallest sums of them."""

import numpy as np

from recbole_diffgrm.tokenizer.quantizers.base import Nearest


def squared_norms(rows: np.ndarray) -> np.ndarray:
    return np.einsum("bw,bw->b", rows, rows)


def squared_distances(points: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """[B, w], [M, w] -> [B, M]"""
    return squared_norms(points)[:, None] - 2 * (points @ centroids.T) + squared_norms(centroids)


def smallest(values: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Columns and values [B, count] of the smallest of each row, in order; the first columns of equal values."""
    if count < values.shape[1]:
        column = np.argpartition(values, count - 1, axis=1)[:, :count]
        last = np.take_along_axis(values, column, axis=1).max(axis=1, keepdims=True)
        tied = np.flatnonzero((values <= last).sum(axis=1) > count)  # processors differ in which of them they take
        column[tied] = np.argsort(values[tied], axis=1, kind="stable")[:, :count]
        column.sort(axis=1)
    else:
        column = np.broadcast_to(np.arange(values.shape[1]), values.shape)
    chosen = np.take_along_axis(values, column, axis=1)
    order = np.argsort(chosen, axis=1, kind="stable")
    return np.take_along_axis(column, order, axis=1), np.take_along_axis(chosen, order, axis=1)


def cheapest_sums(costs: np.ndarray, count: int) -> Nearest:
    """Costs [B, n, M] of each code of each digit -> the `count` combinations with the smallest sums, in order.

    Digits are added one at a time. Of two sorted lists only sums of the i-th and j-th with (i + 1) (j + 1) <= count can
    be among the `count` smallest: that many sums are no larger.
    """
    num_rows, num_digits, _ = costs.shape
    codes = np.zeros((num_rows, 1, 0), np.uint16)
    total = np.zeros((num_rows, 1))
    for digit in range(num_digits):
        order, added = smallest(costs[:, digit], count)  # [B, T]
        left, right = _pairs(total.shape[1], order.shape[1], count)
        sums = total[:, left] + added[:, right]
        best, total = smallest(sums, count)  # [B, Q]
        chosen = np.take_along_axis(codes, left[best][..., None], axis=1)
        code = np.take_along_axis(order, right[best], axis=1).astype(np.uint16)
        codes = np.concatenate([chosen, code[..., None]], axis=2)
    return Nearest(codes, total)


def _pairs(num_left: int, num_right: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices (i, j) into two sorted lists with (i + 1) (j + 1) <= count."""
    widths = np.minimum(count // np.arange(1, num_left + 1), num_right)
    i = np.repeat(np.arange(num_left), widths)
    j = np.arange(len(i)) - np.repeat(np.cumsum(widths) - widths, widths)
    return i, j

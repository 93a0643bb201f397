"""Arithmetic whose result is the same on every processor, with every number of threads and every BLAS.

Sums of products differ in their last bits with the order of the terms and with fused operations, which processors and
libraries choose. Where all numbers are multiples of a step (a power of two) and sums stay below 2^53 steps, float64
holds every intermediate result exactly, and no order can make a difference. So numbers are rounded to a grid first.
What is rounded must itself be known exactly, or so well that it practically never lies at the border between two grid
points: a float64 off by 1e-15 does so once in 1e10 times on a grid of 2^-16, a float32 off by 1e-7 once in 100.
"""

import numpy as np

STEP = 2.0**-16  # of the grid for vectors of about length 1
MATRIX_STEP = 2.0**-24  # for orthogonal matrices; float32 holds these numbers, too


def to_grid(values: np.ndarray, step: float | np.ndarray = STEP) -> np.ndarray:
    """The nearest multiples of `step`, float64."""
    return np.rint(np.asarray(values, np.float64) / step) * step


def power_of_two(values: np.ndarray) -> np.ndarray:
    """Elementwise, the smallest power of two that is larger (1 for 0)."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(1.0, np.where(mantissa == 0, 0, exponent))


def nearest_orthogonal(matrix: np.ndarray, max_iterations: int = 100) -> np.ndarray:
    """[p, p] the orthogonal factor of the polar decomposition, on the grid of MATRIX_STEP.

    Newton-Schulz: X <- X (3 - X'X) / 2 drives all singular values to 1. The rows of X are at most 1 long, so sums stay
    below 2^52 steps of the products.
    """
    size = np.sqrt(np.abs(matrix).sum(axis=0).max() * np.abs(matrix).sum(axis=1).max())  # no singular value is larger
    factor = to_grid(matrix / power_of_two(size), MATRIX_STEP)
    identity = np.eye(len(matrix))
    for _ in range(max_iterations):
        gram = to_grid(factor.T @ factor, MATRIX_STEP)
        if np.abs(gram - identity).max() <= 8 * MATRIX_STEP:
            break
        factor = to_grid(factor @ (1.5 * identity - gram / 2), MATRIX_STEP)
    return factor


def eigh(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues, ascending, and eigenvectors (columns) of a symmetric matrix, as numpy's eigh.

    Householder's reduction to a tridiagonal matrix by elementwise operations and sums of fixed order, then LAPACK's QL
    iteration, which has no sums in it. numpy's reduction uses BLAS, and eigenvectors of near eigenvalues multiply the
    difference in the last bits by a million.
    """
    from scipy.linalg import eigh_tridiagonal  # takes long to import: a wrong command is answered before

    rest = np.array(matrix, np.float64)
    size = len(rest)
    room = np.empty_like(rest)
    diagonal, beside, mirrors = np.empty(size), np.empty(size - 1), []
    for k in range(size - 1):
        diagonal[k], column, rest, room = rest[0, 0], rest[1:, 0].copy(), rest[1:, 1:], room[1:, 1:]
        beside[k] = np.sqrt((column * column).sum()) * (-1 if column[0] > 0 else 1)
        column[0] -= beside[k]
        length = np.sqrt((column * column).sum())
        mirror = column / length if length > 0 else column  # reflects the column to (beside, 0, ..., 0)
        mirrors.append(mirror)
        image = np.multiply(rest, mirror, out=room).sum(axis=1)
        image = 2 * (image - (image * mirror).sum() * mirror)
        rest -= np.multiply.outer(mirror, image, out=room)
        rest -= np.multiply.outer(image, mirror, out=room)
    diagonal[-1] = rest[0, 0]
    values, vectors = eigh_tridiagonal(diagonal, beside, lapack_driver="stev")
    vectors, room = np.ascontiguousarray(vectors), np.empty_like(vectors)
    for k in reversed(range(size - 1)):
        part, out, mirror = vectors[k + 1 :], room[k + 1 :], mirrors[k]
        image = np.multiply(part, mirror[:, None], out=out).sum(axis=0)
        part -= np.multiply.outer(2 * mirror, image, out=out)
    return values, vectors

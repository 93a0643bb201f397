"""Item factors of the training interactions: truncated SVD of the binary user-item matrix, as RecJPQ uses it."""

import hashlib

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import svds

from recbole_diffgrm.data.splits import Split
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.tokenizer.parallel import one_thread

NOISE = 1e-5  # standard deviation next to a range of 1: items with equal factors are spread over bins at random


def training_matrix(split: Split, number: np.ndarray) -> csr_matrix:
    """[num_users, R] 1 where a user has had an item in training. `number` [R]: the dataset's number of each item."""
    flat, rows = split.dataset.inter_feat.flat, split.training_rows
    column_of = np.full(split.dataset.item_num, -1)
    column_of[number] = np.arange(len(number))
    user, column = flat.user[rows].numpy(), column_of[flat.item[rows].numpy()]
    matrix = csr_matrix((np.ones(len(user)), (user - 1, column)), shape=(split.dataset.user_num - 1, len(number)))
    matrix.sum_duplicates()
    matrix.data[:] = 1  # however often
    return matrix


def hash_matrix(matrix: csr_matrix) -> str:
    digest = hashlib.sha256(repr(matrix.shape).encode())
    for array in (matrix.indptr, matrix.indices):
        digest.update(array.astype(np.int64).tobytes())
    return digest.hexdigest()


def check_rank(matrix: csr_matrix, num_factors: int) -> None:
    if num_factors >= min(matrix.shape):
        users, items = matrix.shape
        raise UserError(
            f"sid_num_digits: the training interactions of {users:,} users and {items:,} items are too few for "
            f"{num_factors} factors; svd needs more of both than digits"
        )


def item_factors(matrix: csr_matrix, num_factors: int, seed: int) -> np.ndarray:
    """[R, k] in 0..1 but for the noise, strongest factor first."""
    random = np.random.default_rng(seed)
    start = random.standard_normal(min(matrix.shape))
    with one_thread():
        _, _, factors = svds(matrix, k=num_factors, v0=start, return_singular_vectors="vh")
    factors = factors[::-1].T  # svds begins with the weakest
    strongest = np.abs(factors).argmax(axis=0)
    # The sign of a singular vector is arbitrary: its largest component is made positive.
    factors = factors * np.sign(factors[strongest, np.arange(num_factors)])
    low, high = factors.min(axis=0), factors.max(axis=0)
    scaled = (factors - low) / np.where(high > low, high - low, 1)
    return scaled + random.normal(0, NOISE, scaled.shape)

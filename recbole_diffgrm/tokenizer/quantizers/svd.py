"""SVD codes (svd): each digit is one factor of the training interactions, cut into bins of equal frequency.

RecJPQ (Petrov & Macdonald, WSDM 2024), SVD assignment. The factors are made by tokenizer/interaction_factors.py.
"""

from collections.abc import Mapping

import numpy as np

from recbole_diffgrm.tokenizer.quantizers.base import Nearest, Quantizer, check_enough_vectors
from recbole_diffgrm.tokenizer.quantizers.distances import cheapest_sums


class BinnedFactors(Quantizer):
    """A point says where a factor lies among the bins: 2.5 is the center of bin 2, so errors are distances in bins."""

    name = "svd"
    summary = "bins of factors of the training interactions, as in RecJPQ; needs no text"
    vectors_from = "interactions"
    packages = ("numpy", "scipy")

    def __init__(self, boundaries: np.ndarray):
        self.boundaries = boundaries  # [n, M + 1] ascending
        self.num_digits, self.codebook_size = len(boundaries), boundaries.shape[1] - 1
        self.input_dim = self.dim = self.num_digits

    @classmethod
    def check(cls, num_vectors: int, codebook_size: int) -> None:
        check_enough_vectors(num_vectors, codebook_size)

    @classmethod
    def fit(
        cls, vectors: np.ndarray, num_digits: int, codebook_size: int, pca_dim: int | None, seed: int
    ) -> "BinnedFactors":
        cls.check(len(vectors), codebook_size)
        ordered = np.sort(vectors.T, axis=1)  # [n, N]
        first = np.arange(1, codebook_size) * ordered.shape[1] // codebook_size  # rank of the first item of a bin
        inner = (ordered[:, first - 1] + ordered[:, first]) / 2  # between two items, so that none lies on a boundary
        return cls(np.concatenate([ordered[:, :1], inner, ordered[:, -1:]], axis=1))

    def transform(self, inputs: np.ndarray) -> np.ndarray:
        """Factors [B, n] -> [B, n] in 0..M"""
        bins = np.arange(self.codebook_size + 1)
        columns = np.asarray(inputs, np.float64).T
        return np.stack([np.interp(factor, edges, bins) for factor, edges in zip(columns, self.boundaries)], axis=1)

    def nearest(self, points: np.ndarray, count: int) -> Nearest:
        centers = np.arange(self.codebook_size) + 0.5
        return cheapest_sums((points[:, :, None] - centers) ** 2, count)

    def errors(self, points: np.ndarray, codes: np.ndarray) -> np.ndarray:
        return ((points - codes - 0.5) ** 2).sum(axis=1)

    def state(self) -> dict[str, np.ndarray]:
        return {"boundaries": self.boundaries}

    @classmethod
    def from_state(cls, state: Mapping[str, np.ndarray]) -> "BinnedFactors":
        return cls(**state)

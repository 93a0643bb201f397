"""Residual quantization: each digit encodes what the digits before it left over. Shared by rq_kmeans and rq_vae."""

import numpy as np

from recbole_diffgrm.tokenizer.quantizers.base import Nearest
from recbole_diffgrm.tokenizer.quantizers.codebook import CodebookQuantizer
from recbole_diffgrm.tokenizer.quantizers.distances import smallest, squared_distances
from recbole_diffgrm.tokenizer.quantizers.kmeans import kmeans, nearest_centroid
from recbole_diffgrm.tokenizer.whitening import Whitening


class ResidualQuantizer(CodebookQuantizer):
    """codebooks [n, M, w], where points have w dimensions"""

    def __init__(self, whitening: Whitening, codebooks: np.ndarray):
        super().__init__(whitening, codebooks)
        self.cells_per_candidate = self.codebook_size  # each candidate is extended by every code

    def assign(self, points: np.ndarray) -> np.ndarray:
        """The nearest centroid of the point, then of what is left of it, and so on."""
        residual, codes = points, []
        for codebook in self.codebooks.astype(np.float64):
            code = squared_distances(residual, codebook).argmin(axis=1)
            residual = residual - codebook[code]
            codes.append(code)
        return np.stack(codes, axis=1).astype(np.uint16)

    def nearest(self, points: np.ndarray, count: int) -> Nearest:
        """Residual codes cannot be ranked digit by digit: a beam search that keeps the `count` best prefixes."""
        rows = np.arange(len(points))[:, None]
        residual = points[:, None, :]  # [B, Q, w]
        codes = np.zeros((len(points), 1, 0), np.uint16)
        for codebook in self.codebooks.astype(np.float64):
            codebook_size, dim = codebook.shape
            errors = squared_distances(residual.reshape(-1, dim), codebook).reshape(len(points), -1)  # [B, Q * M]
            best, errors = smallest(errors, count)
            prefix, code = best // codebook_size, best % codebook_size
            residual = residual[rows, prefix] - codebook[code]
            codes = np.concatenate([codes[rows, prefix], code[..., None].astype(np.uint16)], axis=2)
        return Nearest(codes, errors)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        return np.sum([codebook[codes[:, k]] for k, codebook in enumerate(self.codebooks.astype(np.float64))], axis=0)


def residual_kmeans(points: np.ndarray, num_digits: int, codebook_size: int, step: float, seed: int) -> np.ndarray:
    """Points [N, w] -> codebooks [n, M, w]: k-means of the points, then of what it left over, and so on."""
    residual, codebooks = points, []
    for _ in range(num_digits):
        centroids = kmeans(residual, codebook_size, step, seed)
        codebooks.append(centroids)
        residual = residual - centroids[nearest_centroid(residual, centroids)]
    return np.stack(codebooks)

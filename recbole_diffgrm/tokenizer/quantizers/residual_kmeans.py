"""Residual quantization by k-means (rq_kmeans)."""

import numpy as np

from recbole_diffgrm.tokenizer.quantizers.residual import ResidualQuantizer, residual_kmeans


class ResidualKMeans(ResidualQuantizer):
    """codebooks [n, M, p]"""

    name = "rq_kmeans"
    summary = "residual k-means, a digit for what the digits before it left over"

    @classmethod
    def _train(
        cls, points: np.ndarray, num_digits: int, codebook_size: int, step: float, seed: int
    ) -> dict[str, np.ndarray]:
        return {"codebooks": residual_kmeans(points, num_digits, codebook_size, step, seed)}

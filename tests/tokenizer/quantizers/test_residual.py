"""Residual k-means level by level, against a slow reference."""

import numpy as np

from recbole_diffgrm.tokenizer.exact import STEP, to_grid
from recbole_diffgrm.tokenizer.quantizers.residual import residual_kmeans
from tests.tokenizer.conftest import correlated


def test_each_level_clusters_what_is_left():
    """Every centroid is the mean of the residuals next to it, to the precision that 25 iterations reach."""
    points = to_grid(correlated(400, 6))
    residual = points
    errors = [(residual**2).sum()]
    for codebook in residual_kmeans(points, 3, 8, STEP, seed=0):
        nearest = np.array([np.argmin([((row - centroid) ** 2).sum() for centroid in codebook]) for row in residual])
        means = np.array([residual[nearest == code].mean(axis=0) for code in range(8)])
        assert np.abs(means - codebook).max() < 0.1 * np.abs(codebook).max()
        residual = residual - codebook[nearest]
        errors.append((residual**2).sum())
    assert (np.diff(errors) < 0).all()

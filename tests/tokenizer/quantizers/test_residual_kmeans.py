"""Residual k-means against slow references."""

import numpy as np

from recbole_diffgrm.tokenizer.quantizers.residual_kmeans import ResidualKMeans
from tests.tokenizer.conftest import correlated
from tests.tokenizer.quantizers.test_product import transform_one


def test_each_digit_is_the_nearest_centroid_of_the_residual():
    vectors = correlated(300)
    quantizer = ResidualKMeans.fit(vectors, 3, 16, pca_dim=16, seed=0)
    for vector, code in zip(vectors[:50], quantizer.encode(vectors)):
        residual = transform_one(quantizer, vector)
        for digit in range(3):
            centroids = quantizer.codebooks[digit].astype(float)
            nearest = int(np.argmin([((residual - centroid) ** 2).sum() for centroid in centroids]))
            assert code[digit] == nearest
            residual = residual - centroids[nearest]


def test_raw_vectors():
    vectors = correlated(200, 24)
    quantizer = ResidualKMeans.fit(vectors, 3, 8, pca_dim=None, seed=0)
    assert quantizer.dim == 24
    assert np.allclose(quantizer.transform(vectors), vectors, rtol=0, atol=quantizer.whitening.step / 2)

"""Product quantization against slow, independent references."""

import faiss
import numpy as np
import pytest

from recbole_diffgrm import UserError
from recbole_diffgrm.tokenizer.quantizers.product import OptimizedProductQuantizer, ProductQuantizer
from tests.conftest import run_python
from tests.tokenizer.conftest import correlated


def transform_one(quantizer, vector: np.ndarray) -> np.ndarray:
    """One vector: center, project, scale to length 1, rotate."""
    whitening = quantizer.whitening
    x = np.array([(vector.astype(float) - whitening.mean) @ column for column in whitening.projection.T])
    x = x / np.sqrt(sum(value * value for value in x))
    return x @ quantizer.rotation.astype(float) if quantizer.name == "opq" else x


@pytest.mark.parametrize("kind", [OptimizedProductQuantizer, ProductQuantizer])
def test_codes_are_nearest_centroids(kind):
    vectors = correlated(300)
    quantizer = kind.fit(vectors, 4, 16, pca_dim=16, seed=0)
    codes = quantizer.encode(vectors)
    assert codes.shape == (300, 4)
    for vector, code in zip(vectors[:50], codes):
        x = transform_one(quantizer, vector)
        for digit in range(4):
            piece = x[4 * digit : 4 * digit + 4]
            distances = [((piece - centroid) ** 2).sum() for centroid in quantizer.codebooks[digit].astype(float)]
            assert code[digit] == int(np.argmin(distances))


def test_rotation_is_orthogonal_and_lowers_the_error():
    vectors = correlated(2000, 32)
    errors = {}
    for kind in (OptimizedProductQuantizer, ProductQuantizer):
        quantizer = kind.fit(vectors, 4, 16, pca_dim=32, seed=0)
        points = quantizer.transform(vectors)
        errors[kind.name] = quantizer.errors(points, quantizer.encode(vectors)).mean()
        if kind is OptimizedProductQuantizer:
            assert np.allclose(quantizer.rotation @ quantizer.rotation.T, np.eye(32), atol=1e-5)
    assert errors["opq"] < errors["pq"]


def test_raw_vectors():
    vectors = correlated(200, 24)
    assert ProductQuantizer.fit(vectors, 4, 8, pca_dim=None, seed=0).codebooks.shape == (4, 8, 6)
    for kind in (OptimizedProductQuantizer, ProductQuantizer):
        with pytest.raises(UserError, match=r"sid_pca_dim: .* 24 dimensions .* 5 "):
            kind.fit(vectors, 5, 8, pca_dim=None, seed=0)


def test_opq_of_fewer_items_than_dimensions():
    """They leave the rotation open in some dimensions; it stays orthogonal, and codes are those of the nearest."""
    vectors = np.random.default_rng(0).normal(size=(15, 24)).astype(np.float32)
    quantizer = OptimizedProductQuantizer.fit(vectors, 4, 8, None, 2020)
    assert np.allclose(quantizer.rotation @ quantizer.rotation.T, np.eye(24), atol=1e-5)


@pytest.mark.slow
def test_opq_on_few_items_does_not_kill_the_process():
    """faiss's own did, with SIGSEGV, SIGABRT or SIGBUS, so in a process of its own."""
    code = (
        "import numpy as np\n"
        "from recbole_diffgrm.tokenizer.quantizers.product import OptimizedProductQuantizer\n"
        "vectors = np.random.default_rng(0).normal(size=(383, 384)).astype(np.float32)\n"
        "OptimizedProductQuantizer.fit(vectors, 4, 8, None, 2020)\n"
    )
    assert run_python("-c", code).returncode == 0


def test_error_is_at_most_that_of_faiss():
    vectors = correlated(3000, 32)
    quantizer = OptimizedProductQuantizer.fit(vectors, 4, 32, pca_dim=32, seed=0)
    points = quantizer.whitening.apply(vectors).astype(np.float32)
    error = quantizer.errors(quantizer.transform(vectors), quantizer.encode(vectors)).mean()
    index = faiss.index_factory(32, "OPQ4_32,PQ4x5")
    index.train(points)
    theirs = index.sa_decode(index.sa_encode(points))
    assert error < 1.01 * ((points - theirs) ** 2).sum(axis=1).mean()

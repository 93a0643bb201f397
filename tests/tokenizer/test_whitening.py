"""PCA and whitening against numpy's decompositions."""

import numpy as np
import pytest

from recbole_diffgrm import UserError
from recbole_diffgrm.tokenizer.whitening import Whitening
from tests.tokenizer.conftest import correlated


def test_whitens():
    vectors = correlated(500)
    whitening = Whitening.fit(vectors, 12)
    projected = (vectors - whitening.mean) @ whitening.projection
    assert np.allclose(np.cov(projected.T, bias=True), np.eye(12), atol=1e-4)
    assert np.allclose(np.linalg.norm(whitening.apply(vectors), axis=1), 1, atol=1e-4)
    expected = projected / np.linalg.norm(projected, axis=1, keepdims=True)
    assert np.allclose(whitening.apply(vectors), expected, rtol=0, atol=0.51 * whitening.step)
    # the directions of largest variance, as numpy's decomposition gives them
    _, _, directions = np.linalg.svd(vectors - vectors.mean(axis=0))
    spanned = np.linalg.qr(whitening.projection)[0]
    assert np.allclose(np.abs(np.linalg.svd(spanned.T @ directions[:12].T)[1]), 1, atol=1e-4)
    assert (whitening.input_dim, whitening.dim) == (24, 12)


def test_multiple():
    assert Whitening.fit(correlated(500), 23, multiple_of=5).dim == 20
    assert Whitening.fit(correlated(500), 256, multiple_of=5).dim == 20


def test_none_only_rounds_vectors():
    vectors = correlated(50)
    whitening = Whitening.fit(vectors, None)
    assert np.abs(vectors).max() / 2**17 <= whitening.step <= np.abs(vectors).max() / 2**14
    assert np.abs(whitening.apply(vectors) - vectors).max() <= whitening.step / 2
    assert (whitening.input_dim, whitening.dim) == (24, 24)


def test_too_few_dimensions():
    with pytest.raises(UserError, match=r"sid_num_digits: .* 3 dimensions, .* 4 digits"):
        Whitening.fit(correlated(100, 3), 256, multiple_of=4)


def test_mean_vector_stays_finite():
    whitening = Whitening.fit(correlated(500), 12)
    assert np.isfinite(whitening.apply(whitening.mean[None])).all()

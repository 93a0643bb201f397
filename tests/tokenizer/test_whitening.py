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
    assert np.allclose(np.linalg.norm(whitening.apply(vectors), axis=1), 1)
    assert np.allclose(whitening.apply(vectors), projected / np.linalg.norm(projected, axis=1, keepdims=True))
    # the directions of largest variance, as numpy's decomposition gives them
    _, _, directions = np.linalg.svd(vectors - vectors.mean(axis=0))
    spanned = np.linalg.qr(whitening.projection)[0]
    assert np.allclose(np.abs(np.linalg.svd(spanned.T @ directions[:12].T)[1]), 1, atol=1e-4)
    assert (whitening.input_dim, whitening.dim) == (24, 12)


def test_multiple():
    assert Whitening.fit(correlated(500), 23, multiple_of=5).dim == 20
    assert Whitening.fit(correlated(500), 256, multiple_of=5).dim == 20


def test_none_leaves_vectors_as_they_are():
    vectors = correlated(50)
    whitening = Whitening.fit(vectors, None)
    assert (whitening.apply(vectors) == vectors).all()
    assert (whitening.input_dim, whitening.dim) == (24, 24)


def test_too_few_dimensions():
    with pytest.raises(UserError, match=r"sid_num_digits: .* 3 dimensions, .* 4 digits"):
        Whitening.fit(correlated(100, 3), 256, multiple_of=4)


def test_mean_vector_stays_finite():
    whitening = Whitening.fit(correlated(500), 12)
    assert np.isfinite(whitening.apply(whitening.mean[None])).all()

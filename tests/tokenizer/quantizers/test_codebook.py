"""What all quantizers with codebooks do, against slow references."""

import itertools

import numpy as np
import pytest

from recbole_diffgrm import UserError
from recbole_diffgrm.tokenizer.quantizers import QUANTIZERS, codebook
from recbole_diffgrm.tokenizer.quantizers.product import OptimizedProductQuantizer, ProductQuantizer
from recbole_diffgrm.tokenizer.quantizers.residual_kmeans import ResidualKMeans
from tests.tokenizer.conftest import correlated

KINDS = [OptimizedProductQuantizer, ProductQuantizer, ResidualKMeans]
SIZES = [(1, 2), (32, 2), (3, 8), (7, 4), (32, 16), (48, 4)]


@pytest.mark.parametrize(
    ("kind", "num_digits", "codebook_size"),
    [(kind, *sizes) for kind in KINDS for sizes in SIZES] + [(ProductQuantizer, 1, 4096), (ResidualKMeans, 1, 4096)],
)
def test_sizes(kind, num_digits, codebook_size):
    vectors = correlated(max(200, codebook_size + 100), 56)
    quantizer = kind.fit(vectors, num_digits, codebook_size, pca_dim=55, seed=0)
    codes = quantizer.encode(vectors)
    assert codes.shape == (len(vectors), num_digits)
    assert codes.max() < codebook_size
    assert (quantizer.num_digits, quantizer.codebook_size, quantizer.input_dim) == (num_digits, codebook_size, 56)
    assert quantizer.dim == 55 // num_digits * num_digits
    assert len(np.unique(codes[:, 0])) > codebook_size / 3
    assert quantizer.encode(vectors[:0]).shape == (0, num_digits)


@pytest.mark.parametrize("kind", KINDS)
def test_codes_do_not_depend_on_other_items(kind):
    vectors = correlated(3000)
    quantizer = kind.fit(vectors[:500], 4, 64, pca_dim=16, seed=0)
    together = quantizer.encode(vectors)
    assert (quantizer.encode(vectors[::-1])[::-1] == together).all()
    alone = np.concatenate([quantizer.encode(vectors[i : i + 1]) for i in range(0, 3000, 100)])
    assert (alone == together[::100]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_nearest_codes(kind):
    """Against the distance to what every possible SID stands for."""
    vectors = correlated(100)
    quantizer = kind.fit(vectors, 3, 4, pca_dim=12, seed=0)
    everything = np.array(list(itertools.product(range(4), repeat=3)), np.uint16)
    near = quantizer.nearest(quantizer.transform(vectors[:20]), 64)
    for row in range(20):
        points = np.repeat(quantizer.transform(vectors[row : row + 1]), 64, axis=0)
        errors = quantizer.errors(points, everything)
        assert np.allclose(errors, ((points - quantizer.decode(everything)) ** 2).sum(axis=1))
        order = np.argsort(errors)
        assert (near.codes[row] == everything[order]).all()
        assert np.allclose(near.errors[row], errors[order])


@pytest.mark.parametrize("kind", KINDS)
def test_state(kind):
    vectors = correlated(300)
    quantizer = kind.fit(vectors, 2, 16, pca_dim=8, seed=0)
    restored = QUANTIZERS[kind.name].from_state(quantizer.state())
    assert type(restored) is kind
    assert (restored.encode(vectors) == quantizer.encode(vectors)).all()
    assert all((restored.state()[name] == array).all() for name, array in quantizer.state().items())


@pytest.mark.parametrize("kind", KINDS)
def test_seed(kind):
    vectors = correlated(300)
    first, again, other = (kind.fit(vectors, 2, 16, pca_dim=8, seed=seed) for seed in (1, 1, 2))
    assert all((array == again.state()[name]).all() for name, array in first.state().items())
    assert (first.codebooks != other.codebooks).any()


@pytest.mark.parametrize(("count", "largest"), [(100, 64), (64, 64), (63, 32), (3, 2)])
def test_too_few_vectors(count, largest):
    vectors = correlated(count)
    with pytest.raises(UserError, match=rf"sid_codebook_size: {count} .* codebooks of 128: .* at most {largest}$"):
        ProductQuantizer.fit(vectors, 1, 128, pca_dim=8, seed=0)
    ProductQuantizer.fit(vectors, 1, largest, pca_dim=8, seed=0)


def test_one_vector():
    with pytest.raises(UserError, match=r"sid_codebook_size: 1 .* random"):
        ProductQuantizer.check(1, 2)


def test_equal_vectors_count_once():
    vectors = np.repeat(correlated(20), 10, axis=0)
    with pytest.raises(UserError, match=r"sid_codebook_size: 20 .* 16"):
        OptimizedProductQuantizer.fit(vectors, 2, 32, pca_dim=8, seed=0)


def test_many_vectors_are_sampled(monkeypatch):
    monkeypatch.setattr(codebook, "MAX_TRAINING_VECTORS", 512)
    vectors = correlated(2000)
    quantizer = ProductQuantizer.fit(vectors, 4, 4, pca_dim=8, seed=0)
    chosen = np.sort(np.random.default_rng(0).choice(2000, 512, replace=False))
    assert np.allclose(quantizer.whitening.mean, vectors[chosen].mean(axis=0), atol=1e-5)

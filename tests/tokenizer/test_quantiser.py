"""Codebooks and codes against slow, independent references."""

import itertools

import numpy as np
import pytest

from recbole_diffgrm import UserError
from recbole_diffgrm.tokenizer import drawn, quantiser
from recbole_diffgrm.tokenizer.quantiser import cheapest_sums, fit


def correlated(count: int, dimensions: int = 24, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    mixing = draw.standard_normal((dimensions, dimensions))
    return (draw.standard_normal((count, dimensions)) @ mixing).astype(np.float32)


def reference_preparation(fitted, vector: np.ndarray) -> np.ndarray:
    """One vector: centre, project, scale to length 1, rotate."""
    x = np.array([(vector.astype(float) - fitted.mean) @ column for column in fitted.projection.T])
    x = x / np.sqrt(sum(value * value for value in x))
    return x @ fitted.rotation.astype(float) if len(fitted.rotation) else x


@pytest.mark.parametrize("kind", ["opq", "pq"])
def test_codes_are_nearest_centroids(kind):
    vectors = correlated(300)
    fitted = fit(kind, vectors, 4, 16, 16, 0)
    codes = fitted.codes(vectors)
    assert codes.shape == (300, 4)
    for vector, code in zip(vectors[:50], codes):
        x = reference_preparation(fitted, vector)
        for digit in range(4):
            piece = x[4 * digit : 4 * digit + 4]
            distances = [((piece - centroid) ** 2).sum() for centroid in fitted.codebooks[digit].astype(float)]
            assert code[digit] == int(np.argmin(distances))


def test_residual_codes_are_nearest_one_after_the_other():
    vectors = correlated(300)
    fitted = fit("rq_kmeans", vectors, 3, 16, 16, 0)
    for vector, code in zip(vectors[:50], fitted.codes(vectors)):
        rest = reference_preparation(fitted, vector)
        for digit in range(3):
            book = fitted.codebooks[digit].astype(float)
            nearest = int(np.argmin([((rest - centroid) ** 2).sum() for centroid in book]))
            assert code[digit] == nearest
            rest = rest - book[nearest]


def test_pca_whitens():
    vectors = correlated(500)
    fitted = fit("pq", vectors, 4, 16, 12, 0)
    projected = (vectors - fitted.mean) @ fitted.projection
    assert np.allclose(np.cov(projected.T, bias=True), np.eye(12), atol=1e-4)
    assert np.allclose(np.linalg.norm(fitted.prepare(vectors), axis=1), 1)
    # the directions of largest variance, as numpy's own decomposition finds them
    _, _, directions = np.linalg.svd(vectors - vectors.mean(axis=0))
    spanned = np.linalg.qr(fitted.projection)[0]
    assert np.allclose(np.abs(np.linalg.svd(spanned.T @ directions[:12].T)[1]), 1, atol=1e-4)


def test_rotation_is_one_and_pays():
    vectors = correlated(2000, 32)
    errors = {}
    for kind in ("opq", "pq"):
        fitted = fit(kind, vectors, 4, 16, 32, 0)
        prepared = fitted.prepare(vectors)
        errors[kind] = fitted.errors_of(prepared, fitted.codes(vectors)).mean()
        if kind == "opq":
            assert np.allclose(fitted.rotation @ fitted.rotation.T, np.eye(32), atol=1e-5)
    assert errors["opq"] < errors["pq"]


def test_an_item_has_the_same_codes_in_any_company():
    vectors = correlated(3000)
    for kind in ("opq", "rq_kmeans"):
        fitted = fit(kind, vectors[:500], 4, 64, 16, 0)
        together = fitted.codes(vectors)
        assert (fitted.codes(vectors[::-1])[::-1] == together).all()
        alone = np.concatenate([fitted.codes(vectors[i : i + 1]) for i in range(0, 3000, 100)])
        assert (alone == together[::100]).all()


SIZES = [(1, 2), (32, 2), (3, 8), (7, 4), (32, 16)]


@pytest.mark.parametrize(
    ("kind", "digits", "size"),
    [(kind, *sizes) for kind in ("opq", "pq", "rq_kmeans") for sizes in SIZES]
    + [("pq", 1, 4096), ("rq_kmeans", 1, 4096)],
)
def test_sizes(kind, digits, size):
    vectors = correlated(max(200, size + 100), 40)
    fitted = fit(kind, vectors, digits, size, 39, 0)
    codes = fitted.codes(vectors)
    assert codes.shape == (len(vectors), digits)
    assert codes.max() < size
    assert fitted.dimensions == 39 // digits * digits
    assert len(np.unique(codes[:, 0])) > size / 3


@pytest.mark.parametrize(("count", "largest"), [(100, 64), (64, 64), (63, 32), (3, 2)])
def test_catalogue_too_small(count, largest):
    vectors = correlated(count)
    with pytest.raises(UserError, match=rf"set sid_codes to {largest} at most"):
        fit("pq", vectors, 1, 128, 8, 0)
    fit("pq", vectors, 1, largest, 8, 0)


def test_equal_vectors_count_once():
    vectors = np.repeat(correlated(20), 10, axis=0)
    with pytest.raises(UserError, match=r"20 different training items .* set sid_codes to 16"):
        fit("opq", vectors, 2, 32, 8, 0)


def test_too_few_dimensions():
    flat = correlated(100, 3)
    with pytest.raises(UserError, match=r"vary in 3 dimensions, too few for 4 digits"):
        fit("opq", flat, 4, 8, 256, 0)


def test_raw_input():
    vectors = correlated(200, 24)
    fitted = fit("rq_kmeans", vectors, 3, 8, None, 0)
    assert fitted.dimensions == 24
    assert np.allclose(fitted.prepare(vectors), vectors)
    assert fit("pq", vectors, 4, 8, None, 0).codebooks.shape == (4, 8, 6)
    with pytest.raises(UserError, match="24 dimensions cannot be cut into 5 equal slices"):
        fit("pq", vectors, 5, 8, None, 0)


def test_large_catalogues_are_sampled(monkeypatch):
    monkeypatch.setattr(quantiser, "TRAINING_POINTS", 512)
    vectors = correlated(2000)
    fitted = fit("pq", vectors, 4, 4, 8, 0)
    chosen = np.sort(np.random.default_rng(0).choice(2000, 512, replace=False))
    assert np.allclose(fitted.mean, vectors[chosen].mean(axis=0), atol=1e-5)


def test_seed():
    vectors = correlated(300)
    first, again, other = (fit("opq", vectors, 2, 16, 8, seed) for seed in (1, 1, 2))
    assert all((a == b).all() for a, b in zip(first.arrays().values(), again.arrays().values()))
    assert (first.codebooks != other.codebooks).any()


@pytest.mark.parametrize(("digits", "size", "count"), [(1, 5, 3), (2, 4, 7), (3, 4, 64), (3, 4, 1000), (4, 3, 20)])
def test_cheapest_sums(digits, size, count):
    costs = np.random.default_rng(0).random((5, digits, size))
    near = cheapest_sums(costs, count)
    for row in range(5):
        everything = sorted(
            (sum(costs[row, digit, code] for digit, code in enumerate(codes)), codes)
            for codes in itertools.product(range(size), repeat=digits)
        )[:count]
        assert [tuple(codes) for codes in near.codes[row].tolist()] == [codes for _, codes in everything]
        assert np.allclose(near.error[row], [cost for cost, _ in everything])


@pytest.mark.parametrize("kind", ["opq", "rq_kmeans"])
def test_nearest_codes(kind):
    """Against the distance to what every possible ID stands for."""
    vectors = correlated(100)
    fitted = fit(kind, vectors, 3, 4, 12, 0)
    everything = np.array(list(itertools.product(range(4), repeat=3)), np.uint16)
    near = fitted.nearest(fitted.prepare(vectors[:20]), 64)
    for row in range(20):
        prepared = np.repeat(fitted.prepare(vectors[row : row + 1]), 64, axis=0)
        error = fitted.errors_of(prepared, everything)
        order = np.argsort(error)
        assert (near.codes[row] == everything[order]).all()
        assert np.allclose(near.error[row], error[order])


def test_drawn_codes():
    items = [f"item {i}" for i in range(4000)]
    codes = drawn.codes(items, 3, 16, 0)
    counts = np.stack([np.bincount(column, minlength=16) for column in codes.T])
    assert counts.min() > 250 - 5 * 16
    assert counts.max() < 250 + 5 * 16
    assert (drawn.codes(items[100:110], 3, 16, 0) == codes[100:110]).all()
    assert (drawn.codes(items, 3, 16, 1) != codes).any(axis=1).mean() > 0.9

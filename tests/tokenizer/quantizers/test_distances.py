"""Sums of costs against enumeration."""

import itertools

import numpy as np
import pytest

from recbole_diffgrm.tokenizer.quantizers.distances import cheapest_sums, smallest, squared_distances


@pytest.mark.parametrize(
    ("num_digits", "codebook_size", "count"), [(1, 5, 3), (2, 4, 7), (3, 4, 64), (3, 4, 1000), (4, 3, 20)]
)
def test_cheapest_sums(num_digits, codebook_size, count):
    costs = np.random.default_rng(0).random((5, num_digits, codebook_size))
    near = cheapest_sums(costs, count)
    for row in range(5):
        everything = sorted(
            (sum(costs[row, digit, code] for digit, code in enumerate(codes)), codes)
            for codes in itertools.product(range(codebook_size), repeat=num_digits)
        )[:count]
        assert [tuple(codes) for codes in near.codes[row].tolist()] == [codes for _, codes in everything]
        assert np.allclose(near.errors[row], [cost for cost, _ in everything])


def test_smallest():
    values = np.random.default_rng(0).random((6, 9))
    for count in (1, 4, 9, 20):
        column, value = smallest(values, count)
        assert (column == np.argsort(values, axis=1)[:, :count]).all()
        assert (value == np.sort(values, axis=1)[:, :count]).all()


def test_smallest_of_equal_values_are_the_first():
    values = np.random.default_rng(0).integers(0, 4, (50, 40)).astype(float)
    column, _ = smallest(values, 7)
    assert (column == np.argsort(values, axis=1, kind="stable")[:, :7]).all()


def test_squared_distances():
    random = np.random.default_rng(0)
    points, centroids = random.standard_normal((5, 3)), random.standard_normal((4, 3))
    expected = [[((point - centroid) ** 2).sum() for centroid in centroids] for point in points]
    assert np.allclose(squared_distances(points, centroids), expected)

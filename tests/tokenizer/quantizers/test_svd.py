"""SVD codes: bins of equal frequency, and codes against ranks."""

import numpy as np
import pytest

from recbole_diffgrm import UserError
from recbole_diffgrm.tokenizer.quantizers.svd import BinnedFactors

FACTORS = np.random.default_rng(0).standard_normal((203, 3)) ** 3  # skewed: equal widths would fail


@pytest.mark.parametrize("codebook_size", [2, 16, 128])
def test_codes_are_ranks(codebook_size):
    quantizer = BinnedFactors.fit(FACTORS, 3, codebook_size, None, 0)
    codes = quantizer.encode(FACTORS)
    for digit in range(3):
        counts = np.bincount(codes[:, digit], minlength=codebook_size)
        assert counts.max() - counts.min() <= 1
        by_value = codes[np.argsort(FACTORS[:, digit]), digit]
        assert (np.diff(by_value.astype(int)) >= 0).all()
    points = quantizer.transform(FACTORS)
    assert (codes == np.floor(points).clip(max=codebook_size - 1)).all()
    assert (quantizer.nearest(points, 1).codes[:, 0] == codes).all()
    assert (quantizer.errors(points, codes) <= 3 * 0.25).all()


def test_nearest_codes():
    quantizer = BinnedFactors.fit(FACTORS[:, :2], 2, 4, None, 0)
    points = quantizer.transform(FACTORS[:20, :2])
    near = quantizer.nearest(points, 16)
    for row, (a, b) in enumerate(points):
        errors = {(i, j): (a - i - 0.5) ** 2 + (b - j - 0.5) ** 2 for i in range(4) for j in range(4)}
        assert [tuple(codes) for codes in near.codes[row].tolist()] == sorted(errors, key=errors.get)
        assert np.allclose(near.errors[row], sorted(errors.values()))
        everything = np.array(list(errors))
        assert np.allclose(quantizer.errors(points[[row] * 16], everything), list(errors.values()))


def test_state():
    quantizer = BinnedFactors.fit(FACTORS, 3, 8, None, 0)
    restored = BinnedFactors.from_state(quantizer.state())
    assert (restored.encode(FACTORS) == quantizer.encode(FACTORS)).all()
    assert (restored.num_digits, restored.codebook_size, restored.input_dim) == (3, 8, 3)
    assert (restored.encode(FACTORS[7:8]) == quantizer.encode(FACTORS)[7]).all()


def test_too_few_items():
    with pytest.raises(UserError, match=r"sid_codebook_size: 203 .* 256: .* 128"):
        BinnedFactors.fit(FACTORS, 3, 256, None, 0)

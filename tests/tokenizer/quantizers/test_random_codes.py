"""Random codes: uniform, and a function of item id and seed alone."""

import numpy as np

from recbole_diffgrm.tokenizer.quantizers.random_codes import RandomCodes

ITEMS = [f"item {i}" for i in range(4000)]


def test_uniform():
    codes = RandomCodes(3, 16, seed=0).encode(ITEMS)
    counts = np.stack([np.bincount(column, minlength=16) for column in codes.T])
    assert counts.min() > 250 - 5 * 16
    assert counts.max() < 250 + 5 * 16


def test_depend_on_item_and_seed():
    codes = RandomCodes(3, 16, seed=0).encode(ITEMS)
    assert (RandomCodes(3, 16, seed=0).encode(ITEMS[100:110]) == codes[100:110]).all()
    assert (RandomCodes(3, 16, seed=0).encode(np.array(ITEMS)) == codes).all()
    assert (RandomCodes(3, 16, seed=1).encode(ITEMS) != codes).any(axis=1).mean() > 0.9


def test_nearest_begins_with_the_codes():
    quantizer = RandomCodes(3, 4, seed=0)
    costs = quantizer.transform(ITEMS[:50])
    near = quantizer.nearest(costs, 64)
    assert (near.codes[:, 0] == quantizer.encode(ITEMS[:50])).all()
    for row in range(50):
        assert len(np.unique(near.codes[row], axis=0)) == 64
        sums = costs[row, np.arange(3), near.codes[row]].sum(axis=1)
        assert (np.diff(sums) >= 0).all()


def test_state():
    quantizer = RandomCodes(3, 16, seed=5)
    restored = RandomCodes.from_state(quantizer.state())
    assert (restored.encode(ITEMS) == quantizer.encode(ITEMS)).all()
    assert quantizer.encode([]).shape == (0, 3)

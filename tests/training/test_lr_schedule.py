"""Learning rates step by step."""

import math

import pytest

from recbole_diffgrm.training.lr_schedule import rate_factor


def test_rates():
    assert [rate_factor("constant", step, 0, 10) for step in (0, 5, 10)] == [1, 1, 1]
    assert [rate_factor("constant", step, 4, 10) for step in range(5)] == [0.25, 0.5, 0.75, 1, 1]
    assert [rate_factor("linear", step, 2, 12) for step in (1, 2, 7, 12, 99)] == [1, 1, 0.5, 0, 0]
    assert rate_factor("cosine", 2, 2, 12) == 1
    assert rate_factor("cosine", 7, 2, 12) == pytest.approx(0.5)
    assert rate_factor("cosine", 9, 2, 12) == pytest.approx(0.5 * (1 + math.cos(0.7 * math.pi)))
    assert rate_factor("cosine", 12, 2, 12) == 0
    assert rate_factor("linear", 0, 0, 0) == 1  # nothing to train

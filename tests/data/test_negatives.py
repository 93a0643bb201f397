"""Sampled items that targets are ranked against."""

import numpy as np
import pytest
import torch

from recbole_diffgrm import UserError
from recbole_diffgrm.config.protocol import parse_mode
from recbole_diffgrm.data import negatives
from recbole_diffgrm.data.negatives import sample_negatives
from recbole_diffgrm.data.sequences import Fields, FlatSequences, PrefixSamples

FIELDS = Fields("user_id", "item_id", "item_length", "_list")


def make_samples(num_users: int = 50, num_items: int = 40, length: int = 6) -> PrefixSamples:
    """Each user's last two interactions."""
    draw = np.random.default_rng(0)
    flat = FlatSequences.build(
        np.repeat(np.arange(num_users), length), draw.integers(1, 1 + num_items, num_users * length), {}
    )
    rows = torch.arange(num_users * length, dtype=torch.int32).view(num_users, length)[:, -2:].flatten()
    return PrefixSamples(flat, rows, max_length=2, fields=FIELDS)


def popularity(num_items: int = 40) -> torch.Tensor:
    return torch.arange(num_items + 1) % 7  # some items are not in training


@pytest.mark.parametrize("mode", ["uni20", "uni33", "pop20", "pop27"])
@pytest.mark.parametrize("rounds", [0, 30])
def test_different_items_that_the_user_has_not_had(mode, rounds, monkeypatch):
    monkeypatch.setattr(negatives, "ROUNDS", rounds)  # 0: all rows are completed one by one
    samples, sampling = make_samples(), parse_mode(mode)
    sampled = sample_negatives(samples, popularity(), sampling, seed=3)
    assert sampled.shape == (100, sampling.num_items)
    for number, row in enumerate(samples.rows.tolist()):
        position = int(samples.flat.position[row])
        had = set(samples.flat.item[row - position : row + 1].tolist())  # far beyond what a model sees
        items = sampled[number].tolist()
        assert len(set(items)) == len(items) and not had & set(items) and min(items) > 0 and max(items) <= 40
        if sampling.distribution == "pop":
            assert all(popularity()[item] > 0 for item in items)
    assert torch.equal(sampled, sample_negatives(samples, popularity(), sampling, seed=3))
    assert not torch.equal(sampled, sample_negatives(samples, popularity(), sampling, seed=4))


@pytest.mark.parametrize("mode", ["uni1", "pop1"])
@pytest.mark.parametrize("rounds", [0, 30])
def test_distribution(mode, rounds, monkeypatch):
    monkeypatch.setattr(negatives, "ROUNDS", rounds)
    num_users = 4000
    flat = FlatSequences.build(np.repeat(np.arange(num_users), 2), np.tile([1, 2], num_users), {})
    samples = PrefixSamples(flat, torch.arange(1, 2 * num_users, 2, dtype=torch.int32), 5, FIELDS)
    counts = torch.tensor([0, 9, 9, 1, 2, 3, 4])
    sampled = sample_negatives(samples, counts, parse_mode(mode), seed=1)
    weights = np.array([0, 0, 0, 1, 2, 3, 4] if mode == "pop1" else [0, 0, 0, 1, 1, 1, 1])
    share = np.bincount(sampled.flatten(), minlength=7) / num_users
    assert share == pytest.approx(weights / weights.sum(), abs=0.03)


def test_too_few_items():
    with pytest.raises(UserError, match=r"mode uni100: a user has only \d+ items"):
        sample_negatives(make_samples(), popularity(), parse_mode("uni100"), seed=1)

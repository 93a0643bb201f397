"""The softmax over items: in chunks and over a sample, against the plain one and against enumeration."""

import itertools
import logging

import pytest
import torch
import torch.nn.functional as F

from recbole_diffgrm.nn import item_softmax, losses
from recbole_diffgrm.nn.item_softmax import (
    ItemSample,
    ItemSoftmax,
    Repeats,
    draw_items,
    draw_probabilities,
    weigh_draws,
)

N, T, D = 7, 5, 3
SEEN = torch.tensor([[0, 0, 0], [3, 0, 0], [5, 5, 0], [1, 2, 7], [4, 4, 4]])
TARGET = torch.tensor([2, 3, 1, 7, 6])


@pytest.fixture
def world():
    torch.manual_seed(1)
    shapes = ((T, D), (1 + N, D), ())
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def plain(states, vectors, bias, first_class=1):
    """The definition, target by target and item by item."""
    loss = torch.zeros((), dtype=torch.float64)
    for state, target, seen in zip(states, TARGET.tolist(), SEEN.tolist()):
        items = range(first_class, 1 + N)
        logits = torch.stack([state @ vectors[item] + (bias * seen.count(item) if item else 0) for item in items])
        loss = loss + logits.logsumexp(0) - logits[target - first_class]
    return loss / T


def lookup(vectors):
    return lambda items: vectors if items is None else vectors[items]


def assert_equal(loss, expected, wanted):
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for ours, theirs in zip(torch.autograd.grad(loss, wanted), torch.autograd.grad(expected, wanted)):
        assert torch.allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize("first_class", [0, 1])
@pytest.mark.parametrize("at_once", [1, 16, 10**6])
def test_full(world, at_once, first_class, monkeypatch):
    monkeypatch.setattr(losses, "LOGITS_AT_ONCE", at_once)
    states, vectors, bias = world
    softmax = ItemSoftmax(torch.arange(1 + N), "full", 4, first_class)
    loss = softmax(states, TARGET, lookup(vectors), Repeats(SEEN, bias))
    assert_equal(loss, plain(states, vectors, bias, first_class), [states, vectors, bias])


@pytest.mark.parametrize("at_once", [16, 10**6])
def test_a_sample_of_all_items_is_the_full_softmax(world, at_once, monkeypatch):
    monkeypatch.setattr(losses, "LOGITS_AT_ONCE", at_once)
    states, vectors, bias = world
    every = ItemSample(torch.arange(1, 1 + N), torch.zeros(N))
    loss = item_softmax.sampled_softmax(states, TARGET, every, lookup(vectors), Repeats(SEEN, bias))
    assert_equal(loss, plain(states, vectors, bias), [states, vectors, bias])


def test_without_repeats(world):
    states, vectors, bias = world
    expected = plain(states, vectors, 0 * bias)
    assert ItemSoftmax(torch.arange(1 + N), "full", 4)(states, TARGET, lookup(vectors)).item() == pytest.approx(
        expected.item()
    )


def test_the_correction_makes_the_sum_of_exponentials_unbiased(world):
    """Enumerated: over all ways to draw two items, the mean of what stands for the sum over all items is that sum."""
    states, vectors, bias = (x.detach() for x in world)
    probability = torch.tensor([0.4, 0.05, 0.1, 0.05, 0.2, 0.15, 0.05], dtype=torch.float64)
    repeats = Repeats(SEEN, bias)
    logits = states @ vectors[1:].T + bias * (SEEN[:, :, None] == torch.arange(1, 1 + N)).sum(1)
    own = logits.gather(1, TARGET[:, None] - 1).squeeze(1)
    expected = logits.exp().sum(1)
    mean = torch.zeros(T, dtype=torch.float64)
    for draws in itertools.product(range(1, 1 + N), repeat=2):
        items = torch.tensor(draws).sort().values
        sample = ItemSample(items, weigh_draws(items, probability[items - 1]).double())
        for row in range(T):
            of_row = Repeats(repeats.items[row : row + 1], bias)
            loss = item_softmax.sampled_softmax(
                states[row : row + 1], TARGET[row : row + 1], sample, lookup(vectors), of_row
            )
            mean[row] += probability[torch.tensor(draws) - 1].prod() * (loss + own[row]).exp()
    assert torch.allclose(mean, expected, rtol=1e-6)  # weights are float32


def test_more_draws_come_nearer(world):
    states, vectors, bias = world
    popularity = torch.tensor([0, 50, 1, 0, 3, 9, 0, 2])
    expected = plain(states, vectors, bias).item()
    errors = []
    for num_drawn in (8, 100_000):
        torch.manual_seed(0)
        softmax = ItemSoftmax(popularity, "sampled", num_drawn)
        found = [softmax(states, TARGET, lookup(vectors), Repeats(SEEN, bias)).item() for _ in range(5)]
        errors.append(sum(abs(loss - expected) for loss in found) / 5)
    assert errors[1] < 0.02 * expected and errors[1] < errors[0] / 5


def test_draws_follow_their_probabilities():
    torch.manual_seed(0)
    popularity = torch.tensor([99, 6, 0, 2])  # of padding: never drawn
    items, weight = draw_items(draw_probabilities(popularity), 60_000)
    share = torch.bincount(items, minlength=4) / 60_000
    assert torch.allclose(share, torch.tensor([0, 6 / 8, 0, 2 / 8]) / 2 + torch.tensor([0, 1, 1, 1]) / 6, atol=0.01)
    assert (weight > -torch.inf).sum() == 3  # each item counts once
    assert weight[weight > -torch.inf].abs().max() < 0.05


def test_a_catalogue_without_known_popularity():
    items, _ = draw_items(draw_probabilities(torch.zeros(4)), 100)
    assert set(items.tolist()) == {1, 2, 3}


@pytest.mark.parametrize("kind, is_full", [("auto", False), ("full", True), ("sampled", False)])
def test_the_size_of_the_catalogue_decides(kind, is_full, monkeypatch, caplog):
    monkeypatch.setattr(item_softmax, "FULL_SOFTMAX", N - 1)
    with caplog.at_level(logging.INFO):
        softmax = ItemSoftmax(torch.ones(1 + N), kind, 4)
    assert softmax.is_full == is_full and kind in caplog.text and ("4 drawn" in caplog.text) != is_full
    assert not softmax.state_dict()  # a checkpoint does not grow by it
    assert ItemSoftmax(torch.ones(N), "auto", 4).is_full


def test_the_plain_one_is_torch_s(world):
    states, vectors, bias = world
    assert plain(states, vectors, 0 * bias).item() == pytest.approx(
        F.cross_entropy(states @ vectors[1:].T, TARGET - 1).item()
    )

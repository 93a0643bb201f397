"""Masks and losses against direct transcriptions of the paper."""

import itertools
import math

import pytest
import torch

from recbole_diffgrm.network.network import MASKED, DiffGRMNetwork, Shape
from recbole_diffgrm.network.noising import (
    Noising,
    difficulty,
    digit_losses,
    even_schedule,
    make_views,
    masking_order,
    nested_masks,
    sample_losses,
)

SHAPE = Shape(4, 6, 8, 16, 2, 1, 2, 0.0, 9, True)
FULL = (1, 2, 3, 4)


@pytest.fixture
def sample():
    """A network far from its start, histories and targets of five samples."""
    torch.manual_seed(0)
    network = DiffGRMNetwork(SHAPE).double()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    sids, length = torch.randint(6, (5, 7, 4)), torch.tensor([7, 1, 3, 2, 5])
    return network, network.encode(sids, length), torch.randint(6, (5, 4))


def predictions(network, history, target, masked):
    """Probabilities [B, n, M] for one view."""
    shown = torch.where(masked, MASKED, target)[:, None]
    return network.logits(network.decode(shown, history))[:, 0].softmax(-1)


def paper_masks(network, history, target, schedule=FULL, confidence="msp", select="least"):
    """M^(r) = {sigma(1), ..., sigma(m_r)}, sigma from hardest to easiest by a fully masked pass; ties by digit."""
    everything = torch.ones(5, 4, dtype=torch.bool)
    p = predictions(network, history, target, everything)
    masks = torch.zeros(5, len(schedule), 4, dtype=torch.bool)
    for b in range(5):
        delta = []
        for k in range(4):
            values = p[b, k].tolist()
            delta.append(1 - max(values) if confidence == "msp" else -sum(v * math.log(v) for v in values))
        sigma = sorted(range(4), key=lambda k: ((-1 if select == "least" else 1) * delta[k], k))
        for r, m in enumerate(schedule):
            for k in sigma[:m]:
                masks[b, r, k] = True
    return masks


@pytest.mark.parametrize("confidence", ["msp", "entropy"])
@pytest.mark.parametrize("select", ["least", "most"])
@pytest.mark.parametrize("schedule", [FULL, (2, 4), (1, 3), (4,)])
def test_ocn(sample, confidence, select, schedule):
    network, history, target = sample
    views = make_views(network, history, target, Noising("ocn", schedule, select=select, confidence=confidence))
    assert torch.equal(views.masked, paper_masks(network, history, target, schedule, confidence, select))
    for v in range(len(schedule)):
        masked = views.masked[:, v]
        expected = predictions(network, history, target, masked)
        assert torch.allclose(views.logits[:, v].softmax(-1)[masked], expected[masked], atol=1e-10)


def test_ties_are_broken_by_digit():
    order = masking_order(torch.tensor([[0.5, 0.7, 0.5, 0.7]]), Noising("ocn", FULL))
    assert order.tolist() == [[1, 3, 0, 2]]
    assert nested_masks(order, (1, 3)).int().tolist() == [[[0, 1, 0, 0], [1, 1, 0, 1]]]


@pytest.mark.parametrize("select", ["least", "most"])
def test_refresh(sample, select):
    network, history, target = sample
    views = make_views(network, history, target, Noising("ocn", FULL, select=select, refresh=True))
    masked = torch.ones(5, 4, dtype=torch.bool)
    for m in (4, 3, 2, 1):
        assert torch.equal(views.masked[:, m - 1], masked)
        delta = 1 - predictions(network, history, target, masked).amax(-1)
        for b in range(5):  # show the easiest (least) or the hardest (most) of those still masked
            rest = [k for k in range(4) if masked[b, k]]
            shown = (min if select == "least" else max)(rest, key=lambda k: delta[b, k].item())
            masked[b, shown] = False
    only = make_views(network, history, target, Noising("ocn", (2, 3), select=select, refresh=True))
    assert torch.equal(only.masked, views.masked[:, 1:3])


def test_drawing_by_difficulty():
    """The first digit is drawn in proportion to difficulty, the second so among the rest."""
    hardness = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).repeat(40_000, 1)
    torch.manual_seed(0)
    for select, weight in (("least", hardness[0]), ("most", 1 - hardness[0])):
        order = masking_order(hardness, Noising("ocn", FULL, select=select, sample=True))
        first = torch.bincount(order[:, 0], minlength=4) / len(order)
        assert torch.allclose(first, weight / weight.sum(), atol=0.01)
        second = torch.bincount(order[order[:, 0] == 3][:, 1], minlength=4) / (order[:, 0] == 3).sum()
        rest = weight * torch.tensor([1, 1, 1, 0])
        assert torch.allclose(second, rest / rest.sum(), atol=0.02)


def test_coherent(sample):
    network, history, target = sample
    views = make_views(network, history, target, Noising("coherent", FULL, paths=3))
    assert views.masked.shape == (5, 12, 4)
    paths = views.masked.view(5, 3, 4, 4)
    assert torch.equal(paths.sum(-1), torch.tensor(FULL).expand(5, 3, 4))
    assert (paths[:, :, 1:] >= paths[:, :, :-1]).all()  # nested
    torch.manual_seed(0)
    first = torch.cat([make_views(network, history, target, Noising("coherent", (1,))).masked for _ in range(400)])
    share = first[:, 0].double().mean(0)
    assert torch.allclose(share, torch.full_like(share, 0.25), atol=0.04)


def test_random(sample):
    network, history, target = sample
    torch.manual_seed(0)
    fixed = make_views(network, history, target, Noising("random", FULL, ratio=0.5))
    assert (fixed.masked.sum(-1) == 2).all()
    tiny = make_views(network, history, target, Noising("random", FULL, ratio=0.01))
    assert (tiny.masked.sum(-1) == 1).all()
    drawn = torch.cat([make_views(network, history, target, Noising("random", FULL)).masked for _ in range(300)])
    counts = torch.bincount(drawn.sum(-1).flatten(), minlength=5)[1:] / (len(drawn) * 4)
    assert torch.allclose(counts, torch.full((4,), 0.25), atol=0.03)


@pytest.mark.parametrize("kind", ["view_mean", "token_mean"])
@pytest.mark.parametrize(
    "noising", [Noising("ocn", FULL), Noising("random", FULL), Noising("coherent", (2, 4), paths=2)]
)
def test_loss_equals_a_loop_over_views(sample, kind, noising):
    network, history, target = sample
    views = make_views(network, history, target, noising)
    ours = sample_losses(digit_losses(views, target, 0.1), views.masked, kind)
    for b in range(5):
        of_views, total, count = [], 0.0, 0
        for v in range(views.masked.shape[1]):
            p = predictions(network, history, target, views.masked[:, v])[b]
            smooth = [
                -sum((0.9 * (c == target[b, k]) + 0.1 / 6) * math.log(p[k, c]) for c in range(6))
                for k in range(4)
                if views.masked[b, v, k]
            ]
            of_views.append(sum(smooth) / len(smooth))
            total, count = total + sum(smooth), count + len(smooth)
        expected = sum(of_views) / len(of_views) if kind == "view_mean" else total / count
        assert ours[b].item() == pytest.approx(expected)


def test_loss_of_a_sample_does_not_depend_on_its_batch(sample):
    network, _, target = sample
    sids, length = torch.randint(6, (5, 7, 4)), torch.tensor([7, 1, 3, 2, 5])

    def losses(chosen, width):
        views = make_views(
            network, network.encode(sids[chosen, :width], length[chosen]), target[chosen], Noising("ocn", FULL)
        )
        return sample_losses(digit_losses(views, target[chosen], 0.1), views.masked, "view_mean")

    together = losses(torch.arange(5), 7)
    for b in range(5):
        alone = losses(torch.tensor([b]), int(length[b]))
        assert alone.item() == pytest.approx(together[b].item(), abs=1e-10)


def test_probe_is_a_view(sample):
    """Gradients flow through the fully masked view, and not through a probe that is no view."""
    network, history, target = sample
    calls = []
    network.decode = lambda digits, *rest, original=network.decode: (
        calls.append((digits.shape[1], torch.is_grad_enabled())) or original(digits, *rest)
    )
    make_views(network, history, target, Noising("ocn", FULL))
    assert calls == [(1, True), (3, True)]
    calls.clear()
    make_views(network, history, target, Noising("ocn", (1, 2)))
    assert calls == [(1, False), (2, True)]


@pytest.mark.parametrize("digits", [1, 2, 3, 4, 5])
def test_signals_and_configurations(digits):
    """n 2^(n-1) pairs of target digit and shown digits, from 2^n - 1 masks; a nested path has n (n + 1) / 2 of them."""
    masks = [mask for mask in itertools.product([0, 1], repeat=digits) if any(mask)]
    assert len(masks) == 2**digits - 1
    signals = {(k, mask) for mask in masks for k in range(digits) if mask[k]}
    assert len(signals) == digits * 2 ** (digits - 1)
    covered = set()
    for order in itertools.permutations(range(digits)):
        path = nested_masks(torch.tensor([order]), tuple(range(1, digits + 1)))[0].int().tolist()
        here = {(k, tuple(mask)) for mask in path for k in range(digits) if mask[k]}
        assert len(here) == digits * (digits + 1) // 2
        covered |= here
    assert covered == signals


def test_schedules():
    assert [even_schedule(4, views) for views in (1, 2, 3, 4)] == [(4,), (2, 4), (2, 3, 4), (1, 2, 3, 4)]


def test_entropy_is_scaled():
    even, sure = torch.zeros(1, 1, 8), torch.tensor([[[50.0] + [0.0] * 7]])
    assert difficulty(even, "entropy").item() == pytest.approx(1)
    assert difficulty(sure, "entropy").item() == pytest.approx(0, abs=1e-6)
    assert difficulty(even, "msp").item() == pytest.approx(7 / 8)

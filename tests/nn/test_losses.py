"""Cross-entropy in chunks against the whole."""

from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F

from recbole_diffgrm.nn import losses


def score(states, items, bias):
    return states @ items.T + bias


@pytest.fixture
def inputs():
    torch.manual_seed(0)
    sizes = ((23, 4), (9, 4), ())
    states, items, bias = (torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes)
    return states, items, bias, torch.randint(9, (23,))


@pytest.mark.parametrize("at_once", [1, 7, 50, 10**6])
def test_chunks_give_the_loss_and_gradients_of_the_whole(inputs, at_once, monkeypatch):
    monkeypatch.setattr(losses, "LOGITS_AT_ONCE", at_once)
    states, items, bias, labels = inputs
    loss = losses.cross_entropy_in_chunks([states], labels, score, len(items), [items, bias])
    expected = F.cross_entropy(score(states, items, bias), labels)
    assert loss.dtype == torch.float64 and loss.item() == pytest.approx(expected.item(), rel=1e-12)
    wanted = [states, items, bias]
    # Half of it: what comes after the loss counts in the gradients.
    for ours, theirs in zip(torch.autograd.grad(loss / 2, wanted), torch.autograd.grad(expected / 2, wanted)):
        assert torch.allclose(ours, theirs, rtol=1e-12)


def test_only_what_takes_a_gradient_gets_one(inputs, monkeypatch):
    monkeypatch.setattr(losses, "LOGITS_AT_ONCE", 20)
    states, items, bias, labels = inputs
    loss = losses.cross_entropy_in_chunks([states.detach()], labels, score, 9, [items, bias.detach()])
    loss.backward()
    expected = torch.autograd.grad(F.cross_entropy(score(states.detach(), items, bias), labels), items)[0]
    assert states.grad is None and bias.grad is None and torch.allclose(items.grad, expected)
    with torch.no_grad():
        assert losses.cross_entropy_in_chunks([states], labels, score, 9, [items, bias]).item() == loss.item()


def test_gradients_of_many_chunks_are_added_up_in_single_precision(monkeypatch):
    torch.manual_seed(0)
    states, items, labels = torch.randn(512, 16), torch.randn(40, 16), torch.randint(40, (512,))

    def gradient(dtype, at_once):
        monkeypatch.setattr(losses, "LOGITS_AT_ONCE", at_once)
        leaf = items.to(dtype, copy=True).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            losses.cross_entropy_in_chunks([states.to(dtype)], labels, lambda a, b: a @ b.T, 40, [leaf]).backward()
        assert leaf.grad.dtype == dtype
        return leaf.grad.float()

    exact = gradient(torch.float32, 10**6)
    whole, in_chunks = ((gradient(torch.bfloat16, at_once) - exact).norm() for at_once in (10**6, 40))
    assert 0 < in_chunks < 1.2 * whole


class Kept:
    """A tensor that a graph keeps for its backward pass. Counts those that are logits, or as large."""

    alive: ClassVar[dict[int, int]] = {}
    most = 0

    def __init__(self, tensor):
        self.tensor, self.place = tensor, tensor.data_ptr()
        if tensor.shape[1:] == (9,) and len(tensor) != 4:  # not the items, turned round
            Kept.alive[self.place] = tensor.numel()
            Kept.most = max(Kept.most, sum(Kept.alive.values()))

    def __del__(self):
        Kept.alive.pop(self.place, None)


@pytest.mark.parametrize("at_once, most", [(30, 27), (10**6, 23 * 9)])
def test_no_more_logits_than_allowed_are_kept(inputs, at_once, most, monkeypatch):
    monkeypatch.setattr(losses, "LOGITS_AT_ONCE", at_once)
    states, items, bias, labels = inputs
    Kept.most = 0
    computed = []

    def counted(*args):
        computed.append(len(args[0]) * 9)
        return score(*args)

    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
        losses.cross_entropy_in_chunks([states], labels, counted, 9, [items, bias]).backward()
    assert Kept.most == max(computed) == most and not Kept.alive
    assert sum(computed) == 23 * 9  # none is computed twice


def test_mixed_precision(inputs, monkeypatch):
    states, items, bias, labels = inputs
    states, items, bias = (x.detach().float().requires_grad_() for x in (states, items, bias))
    found = []
    for at_once in (20, 10**6):
        monkeypatch.setattr(losses, "LOGITS_AT_ONCE", at_once)
        with torch.autocast("cpu", torch.bfloat16):
            loss = losses.cross_entropy_in_chunks([states], labels, score, 9, [items, bias])
        assert loss.dtype == torch.float32
        found.append(torch.autograd.grad(loss, [states, items, bias]))
    for in_chunks, whole in zip(*found):
        assert torch.allclose(in_chunks, whole, atol=2e-3)

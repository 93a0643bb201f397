"""Cross-entropy in chunks against the whole."""

import pytest
import torch
import torch.nn.functional as F

from recbole_diffgrm.nn import losses


@pytest.mark.parametrize("at_once", [1, 7, 50, 10**6])
def test_chunks_give_the_loss_and_gradients_of_the_whole(at_once, monkeypatch):
    monkeypatch.setattr(losses, "LOGITS_AT_ONCE", at_once)
    torch.manual_seed(0)
    states, items = (torch.randn(size, 4, dtype=torch.float64, requires_grad=True) for size in (23, 9))
    labels = torch.randint(9, (23,))
    sizes = []

    def logits_of(part):
        sizes.append(len(part))
        return part @ items.T

    loss = losses.cross_entropy_in_chunks(states, labels, logits_of, len(items))
    expected = F.cross_entropy(states @ items.T, labels)
    assert loss.item() == pytest.approx(expected.item())
    for ours, theirs in zip(torch.autograd.grad(loss, [states, items]), torch.autograd.grad(expected, [states, items])):
        assert torch.allclose(ours, theirs)
    assert sum(sizes) == 23 and max(sizes) <= max(1, at_once // 9)

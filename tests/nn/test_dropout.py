import pytest
import torch

from recbole_diffgrm.nn.dropout import dropout


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_dropout(probability):
    torch.manual_seed(0)
    x = torch.rand(1001, 99) + 1
    x.requires_grad_()
    y = dropout(x, probability, training=True)
    kept = y != 0
    assert (~kept).float().mean().item() == pytest.approx(probability, abs=0.01)
    assert (~kept[:, ::7]).float().mean().item() == pytest.approx(probability, abs=0.02)  # whatever bits it uses
    assert torch.allclose(y[kept], x[kept] / (1 - probability), rtol=1e-3)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient != 0, kept)
    again = dropout(x, probability, training=True)
    assert not torch.equal(again, y)
    torch.manual_seed(0)
    torch.rand(1001, 99)
    assert torch.equal(dropout(x, probability, training=True), y)


def test_nothing_is_dropped_in_evaluation():
    x = torch.rand(7, 3)
    assert dropout(x, 0.5, training=False) is x
    assert torch.equal(dropout(x, 0.0, training=True), x)

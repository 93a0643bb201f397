"""oneDNN's products against PyTorch's own."""

import pytest
import torch
import torch.nn.functional as F

from recbole_diffgrm.nn import linear as module
from recbole_diffgrm.nn.linear import Linear, linear, linear_per_digit


def check_same(make, reference, inputs):
    """Values and gradients."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    ours, theirs = make(*inputs), reference(*inputs)
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn_like(theirs)
    for one, other in zip(*(torch.autograd.grad(y, inputs, weight) for y in (ours, theirs))):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(16,), (1, 16), (3, 5, 16), (2, 3, 4, 16), (0, 16), (300, 16)])
@pytest.mark.parametrize("outputs", [1, 7, 200])
@pytest.mark.parametrize("bias", [True, False])
def test_is_a_linear_layer(shape, outputs, bias):
    torch.manual_seed(0)
    parts = [torch.randn(shape), torch.randn(outputs, 16)] + [torch.randn(outputs)] * bias
    check_same(linear, F.linear, parts)
    layer = Linear(16, outputs, bias=bias)
    torch.testing.assert_close(layer(parts[0]), F.linear(parts[0], layer.weight, layer.bias))
    with torch.no_grad():
        torch.testing.assert_close(layer(parts[0]), F.linear(parts[0], layer.weight, layer.bias))


@pytest.mark.parametrize(
    "x",
    [torch.randn(9, 4, 16)[:, 1], torch.randn(16, 9).T, torch.randn(16).expand(9, 16), torch.randn(9, 32)[:, ::2]],
    ids=["rows apart", "transposed", "repeated", "every second"],
)
def test_any_layout(x):
    check_same(linear, F.linear, [x, torch.randn(5, 16)])
    check_same(lambda a, b: linear(b, a), lambda a, b: F.linear(b, a), [x, torch.randn(5, 16)])


def test_gradient_of_a_sum():
    """It is one number repeated, without a place in memory for each."""
    layer, x = Linear(16, 5), torch.randn(9, 16)
    layer(x).sum().backward()
    torch.testing.assert_close(layer.weight.grad, x.sum(0).expand(5, 16))


def test_frozen_weights():
    layer, x = Linear(16, 5).requires_grad_(False), torch.randn(9, 16, requires_grad=True)
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(9, 16))
    assert layer.weight.grad is None


def test_a_product_for_each_digit():
    torch.manual_seed(0)
    parts = [torch.randn(6, 2, 3, 16), torch.randn(3, 10, 16)]
    check_same(linear_per_digit, lambda x, tables: torch.einsum("bvnd,nmd->bvnm", x, tables), parts)


def test_is_used_for_single_precision_alone(monkeypatch):
    used = []
    product = module._product
    monkeypatch.setattr(module, "_product", lambda *parts: used.append(parts[0].dtype) or product(*parts))
    layer, x = Linear(16, 5), torch.randn(9, 16)
    layer(x)
    assert used == [torch.float32]
    with torch.autocast("cpu"):
        assert layer(x).dtype == torch.bfloat16
    assert layer.double()(x.double()).dtype == torch.float64
    monkeypatch.setattr(module, "_multiply", None)  # a build without oneDNN
    torch.testing.assert_close(layer.float()(x), F.linear(x, layer.weight, layer.bias))
    assert len(used) == 1


def test_exports_as_plain_operators():
    program = torch.export.export(Linear(16, 5), (torch.randn(9, 16),))
    assert not any("mkldnn" in str(node.target) for node in program.graph.nodes)

"""Layers are their sub-layers, one after the other."""

import torch
import torch.nn.functional as F

from recbole_diffgrm.nn.transformer import DecoderLayer, EncoderLayer, FeedForward
from tests.nn.test_attention import initialized


@torch.no_grad()
def test_feed_forward():
    layer = initialized(FeedForward(8, 12, 0.1))
    x = torch.randn(3, 8, dtype=torch.double)
    assert torch.allclose(layer(x), x + layer.outer(F.gelu(layer.inner(layer.norm(x)))))


@torch.no_grad()
def test_encoder_layer():
    layer = initialized(EncoderLayer(8, 12, 2, 0.1))
    x = torch.randn(3, 5, 8, dtype=torch.double)
    assert torch.equal(layer(x), layer.feed_forward(layer.self_attention(x)))
    causal = torch.full((5, 5), -torch.inf).triu(1)
    assert torch.allclose(layer(x, causal)[:, :3], layer(x[:, :3], causal[:3, :3]))


@torch.no_grad()
def test_decoder_layer():
    layer = initialized(DecoderLayer(8, 12, 2, 0.1))
    x, states = (torch.randn(*shape, 8, dtype=torch.double) for shape in ((3, 4, 5), (3, 6)))
    key, value = layer.precompute_kv(states)
    bias = torch.zeros(3, 1, 1, 6)
    output = layer(x, key, value, bias)
    for view in range(4):  # views do not attend to each other
        alone = layer.cross_attention(layer.self_attention(x[:, view])[:, None], key, value, bias)
        assert torch.allclose(output[:, view], layer.feed_forward(alone)[:, 0])
    rows = torch.tensor([3, 19, 20, 31, 40, 59])  # two of the 20 digits of each sample
    some = layer(x, key, value, bias, rows)
    assert some.shape == (3, 2, 1, 8)
    assert torch.allclose(some.flatten(0, 2), output.flatten(0, 2)[rows])


def test_dropout_in_training_only():
    layer = EncoderLayer(8, 12, 2, 0.5)
    x = torch.randn(3, 5, 8)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))

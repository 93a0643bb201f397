"""Layers are their sub-layers, one after the other."""

import torch
import torch.nn.functional as F

from recbole_diffgrm.nn.kv_cache import BranchCache
from recbole_diffgrm.nn.transformer import CausalDecoder, DecoderLayer, EncoderLayer, FeedForward
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


@torch.no_grad()
def test_causal_decoder():
    """A first token is that of plain layers; steps over branches equal teacher forcing."""
    torch.manual_seed(0)
    decoder = CausalDecoder(hidden_size=8, inner_size=12, num_heads=2, num_layers=2, dropout=0.5).double().eval()
    states, length = torch.randn(3, 6, 8).double(), torch.tensor([4, 6, 1])
    memory = decoder.precompute_kv(states, length)
    x = torch.randn(3, 4, 8).double()
    expected = x[:, None, :1]
    for layer, key, value in zip(decoder.layers, memory.keys, memory.values):
        expected = layer(expected, key, value, memory.bias)
    output = decoder(x, memory)
    torch.testing.assert_close(output[:, :1], expected[:, 0])
    cache = BranchCache()
    for token in range(4):
        parent = None if token == 0 else torch.zeros(3, 2, dtype=torch.int64)
        branches = x[:, token : token + 1].expand(-1, 1 if token == 0 else 2, -1).clone()
        branches[:, 1:] += 1  # a second branch, which the next step drops
        stepped = decoder.step(branches, memory, cache, parent)
        torch.testing.assert_close(stepped[:, 0], output[:, token])

"""Attention sub-layers against one head and one query at a time."""

import math

import pytest
import torch

from recbole_diffgrm.nn.attention import CrossAttention, SelfAttention, attend, is_before, join_heads, split_heads
from recbole_diffgrm.nn.attention import mask_to_bias as to_bias


def attend_slowly(query, key, value, num_heads, allowed=None):
    """[T, d], [S, d] -> [T, d]; `allowed` [T, S]."""
    outputs = []
    for q, k, v in zip(query.chunk(num_heads, 1), key.chunk(num_heads, 1), value.chunk(num_heads, 1)):
        rows = []
        for t in range(len(q)):
            weights = [math.exp(q[t] @ k[s] / math.sqrt(q.shape[1])) for s in range(len(k))]
            weights = [w if allowed is None or allowed[t, s] else 0.0 for s, w in enumerate(weights)]
            rows.append(sum(w / sum(weights) * v[s] for s, w in enumerate(weights)))
        outputs.append(torch.stack(rows))
    return torch.cat(outputs, 1)


def initialized(module, seed=0):
    torch.manual_seed(seed)
    for parameter in module.double().eval().parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module


def test_heads():
    x = torch.randn(2, 5, 12)
    assert split_heads(x, 3).shape == (2, 3, 5, 4)
    assert torch.equal(split_heads(x, 3)[1, 2, 4], x[1, 4, 8:])
    assert torch.equal(join_heads(split_heads(x, 3)), x)


def test_lengths_as_a_bias():
    mask = is_before(4, torch.tensor([0, 2, 4]))
    assert mask.int().tolist() == [[0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]]
    assert to_bias(mask)[1].tolist() == [0, 0, -math.inf, -math.inf]


@torch.no_grad()
@pytest.mark.parametrize("masked", [False, True])
def test_self_attention(masked):
    layer = initialized(SelfAttention(8, 2, 0.1))
    x = torch.randn(3, 5, 8, dtype=torch.double)
    allowed = torch.ones(5, 5, dtype=torch.bool).tril() if masked else torch.ones(5, 5, dtype=torch.bool)
    output = layer(x, to_bias(allowed)[None, None] if masked else None)
    for b in range(3):
        query, key, value = layer.query_key_value(layer.norm(x[b])).chunk(3, 1)
        expected = x[b] + layer.out(attend_slowly(query, key, value, 2, allowed))
        assert torch.allclose(output[b], expected, atol=1e-10)
    rows = torch.tensor([14, 0, 7])
    assert torch.allclose(layer(x, to_bias(allowed)[None, None], rows), output.flatten(0, 1)[rows])


@torch.no_grad()
def test_cross_attention():
    """All views of a sample attend to the keys of that sample, computed once."""
    layer = initialized(CrossAttention(8, 4, 0.1))
    x, states = (torch.randn(*shape, 8, dtype=torch.double) for shape in ((3, 2, 5), (3, 6)))
    allowed = is_before(6, torch.tensor([6, 1, 4]))
    key, value = layer.precompute_kv(states)
    assert key.shape == value.shape == (3, 4, 6, 2)
    output = layer(x, key, value, to_bias(allowed)[:, None, None])
    for b in range(3):
        k, v = layer.key_value(states[b]).chunk(2, 1)
        for view in range(2):
            query = layer.query(layer.norm(x[b, view]))
            expected = x[b, view] + layer.out(attend_slowly(query, k, v, 4, allowed[b].expand(5, 6)))
            assert torch.allclose(output[b, view], expected, atol=1e-10)


def test_attention_weights_are_dropped_in_training():
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 1, 3, 4)
    value = torch.ones(1, 1, 3, 4)
    assert torch.allclose(attend(query, key, value, None, 0.5, False), value)
    assert not torch.allclose(attend(query, key, value, None, 0.5, True), value)

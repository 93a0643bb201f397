"""Layers of a Transformer, pre-norm and residual. Letters in shapes as in attention.py."""

from collections.abc import Iterator
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recbole_diffgrm.nn.attention import CrossAttention, SelfAttention, is_before, mask_to_bias
from recbole_diffgrm.nn.dropout import dropout
from recbole_diffgrm.nn.kv_cache import BranchCache, Memory
from recbole_diffgrm.nn.linear import Linear


class FeedForward(nn.Module):
    def __init__(self, hidden_size: int, inner_size: int, dropout: float):
        super().__init__()
        self.dropout = dropout
        self.norm = nn.LayerNorm(hidden_size)
        self.inner = Linear(hidden_size, inner_size)
        self.outer = Linear(inner_size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return x + dropout(self.outer(F.gelu(self.inner(self.norm(x)))), self.dropout, self.training)


class EncoderLayer(nn.Module):
    def __init__(self, hidden_size: int, inner_size: int, num_heads: int, dropout: float):
        super().__init__()
        self.self_attention = SelfAttention(hidden_size, num_heads, dropout)
        self.feed_forward = FeedForward(hidden_size, inner_size, dropout)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """[B, T, d]; `bias` broadcasts to the attention's logits [B, h, T, T]."""
        output: Tensor = self.feed_forward(self.self_attention(x, bias))
        return output


class DecoderLayer(nn.Module):
    def __init__(self, hidden_size: int, inner_size: int, num_heads: int, dropout: float):
        super().__init__()
        self.self_attention = SelfAttention(hidden_size, num_heads, dropout)
        self.cross_attention = CrossAttention(hidden_size, num_heads, dropout)
        self.feed_forward = FeedForward(hidden_size, inner_size, dropout)

    def precompute_kv(self, states: Tensor) -> tuple[Tensor, Tensor]:
        return self.cross_attention.precompute_kv(states)

    def forward(self, x: Tensor, key: Tensor, value: Tensor, bias: Tensor, rows: Tensor | None = None) -> Tensor:
        """[B, V, n, d]: digits attend to all digits of their view, then to the keys of their sample.

        With `rows` of [B * V * n], the same number for each sample, the output has only these, [B, K, 1, d].
        """
        shape = x.shape if rows is None else (len(key), -1, 1, x.shape[-1])
        x = self.self_attention(x.flatten(0, 1), rows=rows).view(shape)
        output: Tensor = self.feed_forward(self.cross_attention(x, key, value, bias))
        return output


class CausalDecoder(nn.Module):
    """Decoder layers in which a token attends to itself and those before it, then to the states of its sample. Without
    positions and without a norm at the end."""

    def __init__(self, hidden_size: int, inner_size: int, num_heads: int, num_layers: int, dropout: float):
        super().__init__()
        self.layers = nn.ModuleList(
            DecoderLayer(hidden_size, inner_size, num_heads, dropout) for _ in range(num_layers)
        )

    def precompute_kv(self, states: Tensor, length: Tensor) -> Memory:
        """Keys and values of the first `length` [B] encoder states of each sample [B, S, d]."""
        keys, values = zip(*(layer.precompute_kv(states) for layer in self._layers()))
        return Memory(keys, values, mask_to_bias(is_before(states.shape[1], length))[:, None, None])

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """[B, T, d] -> [B, T, d]"""
        size = x.shape[1]
        causal = mask_to_bias(torch.ones(size, size, dtype=torch.bool, device=x.device).tril())
        for layer, key, value in zip(self._layers(), memory.keys, memory.values):
            x = layer.self_attention(x, causal)[:, None]  # [B, 1, T, d]
            x = layer.feed_forward(layer.cross_attention(x, key, value, memory.bias))[:, 0]
        return x

    def step(self, x: Tensor, memory: Memory, cache: BranchCache, parent: Tensor | None = None) -> Tensor:
        """The next token of every branch [U, W, d] -> [U, W, d]: those that `forward` has at that place.

        Branch w continues branch parent[u, w] [U, W] of the step before. The branches of a user are queries to the
        same keys of its history.
        """
        cache.reorder(parent)
        for number, (layer, key, value) in enumerate(zip(self._layers(), memory.keys, memory.values)):
            x = layer.self_attention.step(x, cache, number)[:, :, None]  # [U, W, 1, d]
            x = layer.feed_forward(layer.cross_attention(x, key, value, memory.bias))[:, :, 0]
        return x

    def _layers(self) -> Iterator[DecoderLayer]:
        return cast(Iterator[DecoderLayer], iter(self.layers))

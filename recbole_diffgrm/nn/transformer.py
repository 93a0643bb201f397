"""Layers of a Transformer, pre-norm and residual. Letters in shapes as in attention.py."""

import torch.nn.functional as F
from torch import Tensor, nn

from recbole_diffgrm.nn.attention import CrossAttention, SelfAttention
from recbole_diffgrm.nn.dropout import dropout


class FeedForward(nn.Module):
    def __init__(self, hidden_size: int, inner_size: int, dropout: float):
        super().__init__()
        self.dropout = dropout
        self.norm = nn.LayerNorm(hidden_size)
        self.inner = nn.Linear(hidden_size, inner_size)
        self.outer = nn.Linear(inner_size, hidden_size)

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

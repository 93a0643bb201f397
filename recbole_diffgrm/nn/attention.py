"""Multi-head attention sub-layers, pre-norm and residual.

Letters in shapes: B samples, T queries, S keys, V views (or branches) of a sample, n digits of a view, d hidden size, h
heads.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recbole_diffgrm.nn.dropout import dropout
from recbole_diffgrm.nn.kv_cache import BranchCache
from recbole_diffgrm.nn.linear import Linear


class SelfAttention(nn.Module):
    def __init__(self, hidden_size: int, num_heads: int, dropout: float):
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.norm = nn.LayerNorm(hidden_size)
        self.query_key_value = Linear(hidden_size, 3 * hidden_size, bias=False)
        self.out = Linear(hidden_size, hidden_size)

    def forward(self, x: Tensor, bias: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        """[B, T, d]; with `rows` of [B * T] the output has only these, [R, d]. `bias` is added to the logits."""
        parts = self.query_key_value(self.norm(x)).chunk(3, dim=-1)
        query, key, value = (split_heads(part, self.num_heads) for part in parts)
        mixed = join_heads(attend(query, key, value, bias, self.dropout, self.training))
        if rows is not None:
            x, mixed = (part.flatten(0, 1).index_select(0, rows) for part in (x, mixed))
        return x + dropout(self.out(mixed), self.dropout, self.training)

    def step(self, x: Tensor, cache: BranchCache, layer: int) -> Tensor:
        """The next token of every branch [U, W, d], which attends to those of its branch."""
        parts = self.query_key_value(self.norm(x)).view(*x.shape[:-1], 3, self.num_heads, -1)
        query, key, value = parts.unbind(2)  # [U, W, h, d / h]
        mixed = cache.attend(layer, query, key, value, scale=1 / math.sqrt(query.shape[-1]))
        return x + dropout(self.out(mixed), self.dropout, self.training)


class CrossAttention(nn.Module):
    """Keys and values are computed separately, once per sample, for all views, branches and steps."""

    def __init__(self, hidden_size: int, num_heads: int, dropout: float):
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.norm = nn.LayerNorm(hidden_size)
        self.query = Linear(hidden_size, hidden_size, bias=False)
        self.key_value = Linear(hidden_size, 2 * hidden_size, bias=False)
        self.out = Linear(hidden_size, hidden_size)

    def precompute_kv(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """[B, S, d] -> keys and values [B, h, S, d / h]"""
        key, value = self.key_value(states).chunk(2, dim=-1)
        return split_heads(key, self.num_heads), split_heads(value, self.num_heads)

    def forward(self, x: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        """[B, V, n, d]: the digits of all views of a sample are queries to the same keys."""
        query = split_heads(self.query(self.norm(x)).flatten(1, 2), self.num_heads)  # [B, h, V * n, d / h]
        mixed = join_heads(attend(query, key, value, bias, self.dropout, self.training)).view_as(x)
        return x + dropout(self.out(mixed), self.dropout, self.training)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    dropout_prob: float,
    training: bool,
    scaled: bool = True,
) -> Tensor:
    """[B, h, T, c], [B, h, S, c] -> [B, h, T, c]; `bias` broadcasts to the logits [B, h, T, S]. T5's are not scaled.

    Written out for CPUs, where our dropout makes up for the operation that GPUs have for it.
    """
    if query.device.type != "cpu":
        probability, scale = dropout_prob if training else 0.0, None if scaled else 1.0
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=probability, scale=scale)
    logits = query @ key.transpose(-1, -2)
    if scaled:
        logits = logits / math.sqrt(query.shape[-1])
    if bias is not None:
        logits = logits + bias
    return dropout(logits.softmax(dim=-1), dropout_prob, training) @ value


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """[B, T, d] -> [B, h, T, d / h]"""
    return x.view(*x.shape[:-1], num_heads, -1).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """[B, h, T, d / h] -> [B, T, d]"""
    return x.transpose(1, 2).flatten(2)


def is_before(size: int, length: Tensor) -> Tensor:
    """[B, size]: is the position below the length [B]?"""
    return torch.arange(size, device=length.device) < length[:, None]


def mask_to_bias(mask: Tensor) -> Tensor:
    """0 where True, -inf where False."""
    return torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -torch.inf)

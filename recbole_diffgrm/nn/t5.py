"""The encoder and decoder stacks of T5 (Raffel et al., JMLR 2020) as Hugging Face's class computes them.

Pre-norm with RMSNorm, linear layers without bias, unscaled attention logits, heads whose joint width may differ from
the hidden size, and relative position biases: one table per stack, added in every layer of it. Embeddings and the
output head belong to the model. Letters in shapes: B samples, T queries, S keys, U users, W branches of a user, d
hidden size, h heads, c head size.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recbole_diffgrm.nn.attention import attend, is_before, join_heads, mask_to_bias, split_heads
from recbole_diffgrm.nn.dropout import dropout
from recbole_diffgrm.nn.kv_cache import BranchCache, Memory
from recbole_diffgrm.nn.linear import Linear

NUM_BUCKETS = 32  # of relative positions
MAX_DISTANCE = 128  # from which on all positions share the last bucket
EPSILON = 1e-6  # of RMSNorm


@dataclass(frozen=True)
class T5Config:
    hidden_size: int  # d
    inner_size: int  # of the feed-forward layers
    num_heads: int
    head_size: int
    encoder_layers: int
    decoder_layers: int
    dropout: float


class T5Encoder(nn.Module):
    def __init__(self, config: T5Config):
        super().__init__()
        self.dropout = config.dropout
        self.position_bias = PositionBias(config, bidirectional=True)
        self.layers = nn.ModuleList(T5EncoderLayer(config) for _ in range(config.encoder_layers))
        self.norm = nn.RMSNorm(config.hidden_size, EPSILON)

    def forward(self, x: Tensor, length: Tensor) -> Tensor:
        """Embedded tokens [B, S, d], padded on the right, and lengths [B] >= 1 -> states [B, S, d]"""
        padding = mask_to_bias(is_before(x.shape[1], length))[:, None, None]  # [B, 1, 1, S]
        bias = self.position_bias(x.shape[1]) + padding  # [B, h, S, S]
        x = dropout(x, self.dropout, self.training)
        for layer in self.layers:
            x = layer(x, bias)
        return dropout(self.norm(x), self.dropout, self.training)


class T5Decoder(nn.Module):
    def __init__(self, config: T5Config):
        super().__init__()
        self.dropout = config.dropout
        self.position_bias = PositionBias(config, bidirectional=False)
        self.layers = nn.ModuleList(T5DecoderLayer(config) for _ in range(config.decoder_layers))
        self.norm = nn.RMSNorm(config.hidden_size, EPSILON)

    def precompute_kv(self, states: Tensor, length: Tensor) -> Memory:
        """Keys and values of the first `length` [B] encoder states of each sample [B, S, d]."""
        keys, values = zip(*(layer.cross_attention.precompute_kv(states) for layer in self._layers()))
        return Memory(keys, values, mask_to_bias(is_before(states.shape[1], length))[:, None, None])

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """Embedded tokens, the start token first [B, T, d] -> states [B, T, d]; each sees those before it."""
        size = x.shape[1]
        is_visible = torch.ones(size, size, dtype=torch.bool, device=x.device).tril()
        bias = self.position_bias(size) + mask_to_bias(is_visible)  # [h, T, T]
        x = dropout(x, self.dropout, self.training)
        for layer, key, value in zip(self._layers(), memory.keys, memory.values):
            x = layer.self_attention(x, bias)
            x = layer.feed_forward(layer.cross_attention(x, key, value, memory.bias))
        return dropout(self.norm(x), self.dropout, self.training)

    def step(self, x: Tensor, memory: Memory, cache: BranchCache, parent: Tensor | None = None) -> Tensor:
        """The next token of every branch [U, W, d] -> states [U, W, d]: those that `forward` has at that place.

        Branch w continues branch parent[u, w] [U, W] of the step before. The branches of a user are queries to the
        same keys of its history.
        """
        cache.reorder(parent)
        bias = self.position_bias(cache.num_tokens + 1)[:, -1].T  # [t, h]
        x = dropout(x, self.dropout, self.training)
        for number, (layer, key, value) in enumerate(zip(self._layers(), memory.keys, memory.values)):
            x = layer.self_attention.step(x, bias, cache, number)
            x = layer.feed_forward(layer.cross_attention(x, key, value, memory.bias))
        return dropout(self.norm(x), self.dropout, self.training)

    def _layers(self) -> Iterator["T5DecoderLayer"]:
        return cast(Iterator[T5DecoderLayer], iter(self.layers))


class T5EncoderLayer(nn.Module):
    def __init__(self, config: T5Config):
        super().__init__()
        self.self_attention = T5SelfAttention(config)
        self.feed_forward = T5FeedForward(config)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        output: Tensor = self.feed_forward(self.self_attention(x, bias))
        return output


class T5DecoderLayer(nn.Module):
    """Its sub-layers are called by the decoder, which attends differently in training and in generation."""

    def __init__(self, config: T5Config):
        super().__init__()
        self.self_attention = T5SelfAttention(config)
        self.cross_attention = T5CrossAttention(config)
        self.feed_forward = T5FeedForward(config)


class T5SelfAttention(nn.Module):
    def __init__(self, config: T5Config):
        super().__init__()
        d, width = config.hidden_size, config.num_heads * config.head_size
        self.num_heads, self.dropout = config.num_heads, config.dropout
        self.norm = nn.RMSNorm(d, EPSILON)
        self.query_key_value = Linear(d, 3 * width, bias=False)
        self.out = Linear(width, d, bias=False)
        nn.init.normal_(self.query_key_value.weight[:width], std=(d * config.head_size) ** -0.5)
        nn.init.normal_(self.query_key_value.weight[width:], std=d**-0.5)
        nn.init.normal_(self.out.weight, std=width**-0.5)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """[B, T, d]; `bias` broadcasts to the logits [B, h, T, T]."""
        parts = self.query_key_value(self.norm(x)).chunk(3, dim=-1)
        query, key, value = (split_heads(part, self.num_heads) for part in parts)
        mixed = join_heads(attend(query, key, value, bias, self.dropout, self.training, scaled=False))
        return x + dropout(self.out(mixed), self.dropout, self.training)

    def step(self, x: Tensor, bias: Tensor, cache: BranchCache, layer: int) -> Tensor:
        """The next token of each branch [U, W, d], which attends to those of its branch; `bias` [t, h]."""
        parts = self.query_key_value(self.norm(x)).view(*x.shape[:-1], 3, self.num_heads, -1)
        query, key, value = parts.unbind(2)  # [U, W, h, c]
        mixed = cache.attend(layer, query, key, value, bias)
        return x + dropout(self.out(mixed), self.dropout, self.training)


class T5CrossAttention(nn.Module):
    """No position bias."""

    def __init__(self, config: T5Config):
        super().__init__()
        d, width = config.hidden_size, config.num_heads * config.head_size
        self.num_heads, self.dropout = config.num_heads, config.dropout
        self.norm = nn.RMSNorm(d, EPSILON)
        self.query = Linear(d, width, bias=False)
        self.key_value = Linear(d, 2 * width, bias=False)
        self.out = Linear(width, d, bias=False)
        nn.init.normal_(self.query.weight, std=(d * config.head_size) ** -0.5)
        nn.init.normal_(self.key_value.weight, std=d**-0.5)
        nn.init.normal_(self.out.weight, std=width**-0.5)

    def precompute_kv(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """[B, S, d] -> keys and values [B, h, S, c]"""
        key, value = self.key_value(states).chunk(2, dim=-1)
        return split_heads(key, self.num_heads), split_heads(value, self.num_heads)

    def forward(self, x: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        """[B, T, d]: the tokens of a sample, or those of all branches of a user."""
        query = split_heads(self.query(self.norm(x)), self.num_heads)
        mixed = join_heads(attend(query, key, value, bias, self.dropout, self.training, scaled=False))
        return x + dropout(self.out(mixed), self.dropout, self.training)


class T5FeedForward(nn.Module):
    def __init__(self, config: T5Config):
        super().__init__()
        self.dropout = config.dropout
        self.norm = nn.RMSNorm(config.hidden_size, EPSILON)
        self.inner = Linear(config.hidden_size, config.inner_size, bias=False)
        self.outer = Linear(config.inner_size, config.hidden_size, bias=False)
        nn.init.normal_(self.inner.weight, std=config.hidden_size**-0.5)
        nn.init.normal_(self.outer.weight, std=config.inner_size**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        inner = dropout(F.relu(self.inner(self.norm(x))), self.dropout, self.training)
        return x + dropout(self.outer(inner), self.dropout, self.training)


class PositionBias(nn.Module):
    """Of a query and a key, by the bucket of their distance; one number per head."""

    def __init__(self, config: T5Config, bidirectional: bool):
        super().__init__()
        self.bidirectional = bidirectional
        self.table = nn.Parameter(torch.empty(NUM_BUCKETS, config.num_heads))
        nn.init.normal_(self.table, std=config.hidden_size**-0.5)

    def forward(self, size: int) -> Tensor:
        """[h, size, size], rows are queries"""
        position = torch.arange(size, device=self.table.device)
        bucket = position_buckets(position - position[:, None], self.bidirectional)
        return F.embedding(bucket, self.table).permute(2, 0, 1)


def position_buckets(offset: Tensor, bidirectional: bool) -> Tensor:
    """Buckets of positions of keys relative to their queries.

    Half of the buckets are exact distances, the others grow logarithmically up to MAX_DISTANCE. Bidirectional: the
    upper half of all buckets is for keys after the query; else those have no distance.
    """
    if bidirectional:
        num_buckets, base, distance = NUM_BUCKETS // 2, NUM_BUCKETS // 2 * (offset > 0), offset.abs()
    else:
        num_buckets, base, distance = NUM_BUCKETS, torch.zeros_like(offset), (-offset).clamp(min=0)
    exact = num_buckets // 2
    growth = (distance.clamp(min=1) / exact).log() / math.log(MAX_DISTANCE / exact)
    far = (exact + (growth * (num_buckets - exact)).long()).clamp(max=num_buckets - 1)
    return base + torch.where(distance < exact, distance, far)

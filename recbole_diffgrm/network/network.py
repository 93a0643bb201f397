"""DiffGRM's network: an encoder over the items of a history, a masked-diffusion decoder over the digits of one ID.

Knows nothing of RecBole. An ID has n digits of M codes. One table of code embeddings serves the history, the decoder's
input and the output head. Letters in shapes: B samples, L items of a history, V views (or beams) of one target, n
digits, M codes, d model width, h heads.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MASKED = -1  # in place of a code: the digit is to be predicted
TEXT_SCALE = 4.0  # length of a text vector: with weights as small as all others are at first, its part is not lost
REPEAT_SCALE = 20.0  # logits for each unit of the weight: it has to go far in as many steps as the others take


@dataclass(frozen=True)
class Shape:
    digits: int  # n
    codes: int  # M
    width: int  # d
    inner_width: int  # of the feed-forward layers
    heads: int
    encoder_layers: int
    decoder_layers: int
    dropout: float
    max_length: int  # items of a history
    sink: bool  # unused places of a history take part of the decoder's attention
    encoder_dropout: float | None = None  # None: as `dropout`
    causal: bool = False  # an item of a history sees those before it only
    text: int = 0  # dimensions of the items' text vectors, where these are part of the embeddings
    items: int = 0  # of the catalogue and one for padding, where items have embeddings of their own beside their digits


class History(NamedTuple):
    """What the decoder looks at, projected once per sample for all views, beams and steps."""

    keys: list[Tensor]  # per decoder layer [B, h, L', d / h]; L' is L, and one more with the sink
    values: list[Tensor]
    bias: Tensor  # [B, 1, 1, L'] added to the attention's logits


class DiffGRMNetwork(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        if shape.encoder_dropout is None:
            shape = replace(shape, encoder_dropout=shape.dropout)
        self.shape = shape
        d = shape.width
        self.code_embedding = nn.Parameter(torch.empty(shape.digits, shape.codes, d))
        self.mask_embedding = nn.Parameter(torch.empty(shape.digits, d))
        self.position_embedding = nn.Parameter(torch.empty(shape.max_length, d))
        if shape.items:
            self.item_embedding = nn.Parameter(torch.empty(shape.items, d))
            self.item_norm = nn.LayerNorm(d)
            self.repeat_weight = nn.Parameter(torch.empty(()))
            if shape.text:
                self.text_projection = nn.Linear(shape.text, d, bias=False)
        else:
            self.item_inner = nn.Linear(shape.digits * d, d)
            self.item_outer = nn.Linear(d, d)
        in_encoder = replace(shape, dropout=shape.encoder_dropout)
        self.encoder = nn.ModuleList(EncoderLayer(in_encoder) for _ in range(shape.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(shape) for _ in range(shape.decoder_layers))
        self.norm = nn.LayerNorm(d)  # of both outputs
        self._initialise()

    def _initialise(self) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith("bias") or name == "repeat_weight":
                nn.init.zeros_(parameter)
            elif "norm" not in name:
                nn.init.normal_(parameter, std=0.02)

    def encode(self, sids: Tensor, length: Tensor) -> History:
        """Histories [B, L, n] of codes, padded on the right, and their lengths [B]."""
        return self.project(self.read(self.joined_digits(sids), length), length)

    def joined_digits(self, sids: Tensor) -> Tensor:
        """[B, L, n] -> [B, L, d]: an MLP on the joined digit embeddings.

        The first layer is linear in each digit's embedding, so it is applied to the n * M codes once, not to every
        item of every history.
        """
        n, m, d = self.code_embedding.shape
        weight = self.item_inner.weight.view(d, n, d).permute(1, 2, 0)  # [n, d in, d out]
        parts = torch.bmm(self.code_embedding, weight).view(n * m, d)
        return self.item_outer(F.relu(self._sum_of_digits(sids, parts) + self.item_inner.bias))

    def item_vectors(self, items: Tensor, sids: Tensor, text: Tensor | None = None) -> Tensor:
        """Items [...], their IDs [..., n] and vectors of their text [..., t] -> [..., d]: an embedding of its own for
        each, those of its digits, and its text."""
        vectors = F.embedding(items, self.item_embedding) + self._sum_of_digits(sids, self.code_embedding.flatten(0, 1))
        return vectors if text is None else vectors + self.text_projection(TEXT_SCALE * text)

    def _sum_of_digits(self, sids: Tensor, parts: Tensor) -> Tensor:
        """[..., n], and what each of the n * M codes adds [n * M, d] -> [..., d]"""
        n, m, d = self.code_embedding.shape
        place = sids + torch.arange(n, device=sids.device) * m
        return F.embedding_bag(place.view(-1, n), parts, mode="sum").view(*sids.shape[:-1], d)

    def read(self, x: Tensor, length: Tensor) -> Tensor:
        """Vectors of the items of histories [B, L, d], padded on the right, and lengths [B] -> states [B, L, d]"""
        x = x + self.position_embedding[: x.shape[1]]
        if self.shape.items:
            x = self.item_norm(x)
        x = dropout(x, self.shape.encoder_dropout, self.training)
        is_seen = _before(x.shape[1], length)[:, None]  # [B, 1, L]
        if self.shape.causal:
            is_seen = is_seen & torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        for layer in self.encoder:
            x = layer(x, _log(is_seen)[:, None])
        return self.norm(x)

    def project(self, states: Tensor, length: Tensor, row: Tensor | None = None) -> History:
        """The first `length` [B] states of each history [B, L, d], for the decoder. With `row` [T]: histories row[t]
        up to length[t], and states are projected once for all of them."""
        keys, values = zip(*(layer.project(states) for layer in self.decoder))
        if row is not None:
            keys, values = ([part.index_select(0, row) for part in parts] for parts in (keys, values))
        no_padding = _log(_before(states.shape[1], length))[:, None, None]  # [B, 1, 1, L]
        if not self.shape.sink:
            return History(list(keys), list(values), no_padding)
        # The release pads to max_length with zero states: each padded place has logit 0 and value 0. All of them
        # together are one place of value 0 whose logit is the log of their number.
        unused = (self.shape.max_length - length).to(states.dtype).log()[:, None, None, None]  # -inf for none
        bias = torch.cat([no_padding, unused], dim=-1)
        return History([F.pad(k, (0, 0, 0, 1)) for k in keys], [F.pad(v, (0, 0, 0, 1)) for v in values], bias)

    def item_logits(self, states: Tensor, vectors: Tensor, seen: Tensor) -> Tensor:
        """States [T, d], vectors of all items [items, d], items of their histories [T, L], 0 for none -> [T, items].

        Items of the history have a bias, for each time they occur, learned like all else: data without repeats say so.
        """
        logits = states @ vectors.T
        bias = torch.where(seen > 0, REPEAT_SCALE * self.repeat_weight, 0.0)
        return logits.scatter_add(1, seen, bias.to(logits.dtype))

    def decode(self, digits: Tensor, history: History, wanted: Tensor | None = None) -> Tensor:
        """Partial IDs [B, V, n], MASKED where a digit is to be predicted -> states [B, V, n, d].

        `wanted` [B, K], places among the V * n digits of a sample: the last layer works for these only, and the states
        of the others are 0.
        """
        n, m, _ = self.code_embedding.shape
        table = torch.cat([self.code_embedding.flatten(0, 1), self.mask_embedding])  # [n * M + n, d]
        digit = torch.arange(n, device=digits.device)
        place = torch.where(digits == MASKED, n * m + digit, digits + digit * m)
        x = dropout(F.embedding(place, table), self.shape.dropout, self.training)
        layers = list(zip(self.decoder, history.keys, history.values))
        for layer, key, value in layers[:-1]:
            x = layer(x, key, value, history.bias)
        layer, key, value = layers[-1]
        if wanted is None:
            return self.norm(layer(x, key, value, history.bias))
        rows = (wanted + torch.arange(len(digits), device=wanted.device)[:, None] * digits[0].numel()).flatten()
        states = self.norm(layer(x, key, value, history.bias, rows)).flatten(0, 2)  # [B * K, d]
        return x.new_zeros(digits.numel(), x.shape[-1]).index_copy(0, rows, states).view_as(x)

    def logits(self, states: Tensor) -> Tensor:
        """States of all digits [..., n, d] -> [..., n, M]"""
        flat = states.reshape(-1, *states.shape[-2:]).transpose(0, 1)  # [n, *, d]
        scores = torch.bmm(flat, self.code_embedding.transpose(1, 2))  # [n, *, M]
        return scores.transpose(0, 1).reshape(*states.shape[:-1], -1)


class EncoderLayer(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.attention = SelfAttention(shape)
        self.feed_forward = FeedForward(shape)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        return self.feed_forward(self.attention(x, bias))


class DecoderLayer(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.attention = SelfAttention(shape)
        self.look = CrossAttention(shape)
        self.feed_forward = FeedForward(shape)

    def project(self, states: Tensor) -> tuple[Tensor, Tensor]:
        return self.look.project(states)

    def forward(self, x: Tensor, key: Tensor, value: Tensor, bias: Tensor, rows: Tensor | None = None) -> Tensor:
        """[B, V, n, d]: digits see the digits of their own view, and the history.

        With `rows` of [B * V * n], as many of each sample: only these go on, as [B, K, 1, d].
        """
        views = x.shape[:2]
        x = self.attention(x.flatten(0, 1), rows=rows)
        x = x.unflatten(0, views) if rows is None else x.view(len(key), -1, 1, x.shape[-1])
        return self.feed_forward(self.look(x, key, value, bias))


class SelfAttention(nn.Module):
    """Pre-norm and residual."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.heads, self.dropout = shape.heads, shape.dropout
        self.norm = nn.LayerNorm(shape.width)
        self.query_key_value = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width)

    def forward(self, x: Tensor, bias: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        """[B, T, d]; with `rows` of [B * T] only these, [R, d]."""
        query, key, value = (_split(part, self.heads) for part in self.query_key_value(self.norm(x)).chunk(3, dim=-1))
        mixed = _join(attend(query, key, value, bias, self.dropout, self.training))
        if rows is not None:
            x, mixed = (part.flatten(0, 1).index_select(0, rows) for part in (x, mixed))
        return x + dropout(self.out(mixed), self.dropout, self.training)


class CrossAttention(nn.Module):
    """Pre-norm and residual; keys and values are projected apart, once per sample."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.heads, self.dropout = shape.heads, shape.dropout
        self.norm = nn.LayerNorm(shape.width)
        self.query = nn.Linear(shape.width, shape.width, bias=False)
        self.key_value = nn.Linear(shape.width, 2 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width)

    def project(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """[B, L, d] -> keys and values [B, h, L, d / h]"""
        key, value = self.key_value(states).chunk(2, dim=-1)
        return _split(key, self.heads), _split(value, self.heads)

    def forward(self, x: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        """[B, V, n, d]: the digits of all views are queries to the same keys."""
        query = _split(self.query(self.norm(x)).flatten(1, 2), self.heads)  # [B, h, V * n, d / h]
        mixed = _join(attend(query, key, value, bias, self.dropout, self.training)).view_as(x)
        return x + dropout(self.out(mixed), self.dropout, self.training)


class FeedForward(nn.Module):
    """Pre-norm and residual."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.dropout = shape.dropout
        self.norm = nn.LayerNorm(shape.width)
        self.inner = nn.Linear(shape.width, shape.inner_width)
        self.outer = nn.Linear(shape.inner_width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        return x + dropout(self.outer(F.gelu(self.inner(self.norm(x)))), self.dropout, self.training)


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, drop: float, training: bool) -> Tensor:
    """[B, h, T, c], [B, h, S, c] -> [B, h, T, c]"""
    logits = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    if bias is not None:
        logits = logits + bias
    return dropout(logits.softmax(dim=-1), drop, training) @ value


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """F.dropout. On a CPU, where drawing the mask takes longer than all else in it, with 16 random bits an element."""
    if not training or probability == 0 or x.device.type != "cpu":
        return F.dropout(x, probability, training)
    steps = 2**16
    dropped = min(round(probability * steps), steps - 1)
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    keep = bits.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - steps // 2
    return x * keep.to(x.dtype).mul_(steps / (steps - dropped))


def _split(x: Tensor, heads: int) -> Tensor:
    """[B, T, d] -> [B, h, T, d / h]"""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _join(x: Tensor) -> Tensor:
    """[B, h, T, d / h] -> [B, T, d]"""
    return x.transpose(1, 2).flatten(2)


def _before(size: int, length: Tensor) -> Tensor:
    """[B, size]: is the place below the length [B]?"""
    return torch.arange(size, device=length.device) < length[:, None]


def _log(mask: Tensor) -> Tensor:
    """0 where True, -inf where False."""
    return torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -torch.inf)

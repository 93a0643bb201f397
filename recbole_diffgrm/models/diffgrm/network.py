"""DiffGRM's network (Sec. 3.1 of the paper): an encoder over the items of a history, and a masked-diffusion decoder
over the digits of one semantic ID.

One table of code embeddings serves the history, the decoder's input and the output head. Letters in shapes: B samples,
L items of a history, V views (or branches) of one target, n digits, M codes per digit, d hidden size, h heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recbole_diffgrm.generation.semantic_ids import MASKED
from recbole_diffgrm.nn.attention import is_before, mask_to_bias
from recbole_diffgrm.nn.dropout import dropout
from recbole_diffgrm.nn.item_embeddings import ConcatenatedCodes, SummedEmbeddings
from recbole_diffgrm.nn.linear import linear, linear_per_digit
from recbole_diffgrm.nn.transformer import DecoderLayer, EncoderLayer

REPEAT_SCALE = 20.0  # logits per unit of repeat_weight, which has to change by far more than other weights do


@dataclass(frozen=True)
class DiffGRMConfig:
    num_digits: int  # n
    codebook_size: int  # M
    hidden_size: int  # d
    inner_size: int  # of the feed-forward layers
    num_heads: int
    encoder_layers: int
    decoder_layers: int
    dropout: float
    max_length: int  # items of a history
    attention_sink: bool  # padding of a history takes part in the decoder's attention
    encoder_dropout: float | None = None  # None: the same as `dropout`
    causal: bool = False  # an item of a history attends to earlier ones only
    text_dim: int = 0  # dimensions of the items' text vectors, if these are part of the item embeddings
    num_items: int = 0  # with padding, if items have id embeddings: the item head


class EncodedHistory(NamedTuple):
    """What the decoder attends to, computed once per sample for all views, branches and steps."""

    keys: Sequence[Tensor]  # per decoder layer [B, h, L', d / h]; L' is L, or L + 1 with the sink
    values: Sequence[Tensor]
    bias: Tensor  # [B, 1, 1, L'] added to the attention's logits
    prior: Tensor | None = None  # [B, n, M] logits that the decoder's are added to


class DiffGRMNetwork(nn.Module):
    code_pairs: Tensor | None

    def __init__(self, config: DiffGRMConfig):
        super().__init__()
        self.config = config
        d, layer_sizes = config.hidden_size, (config.hidden_size, config.inner_size, config.num_heads)
        self.encoder_dropout = config.dropout if config.encoder_dropout is None else config.encoder_dropout
        self.code_embedding = nn.Parameter(torch.empty(config.num_digits, config.codebook_size, d))
        self.mask_embedding = nn.Parameter(torch.empty(config.num_digits, d))
        self.position_embedding = nn.Parameter(torch.empty(config.max_length, d))
        self.item_embedding: SummedEmbeddings | ConcatenatedCodes
        if config.num_items:
            self.id_embedding = nn.Parameter(torch.empty(config.num_items, d))
            self.repeat_weight = nn.Parameter(torch.empty(()))
            self.input_norm = nn.LayerNorm(d)
            self.item_embedding = SummedEmbeddings(d, config.text_dim)
        else:
            self.item_embedding = ConcatenatedCodes(config.num_digits, d)
        self.encoder = nn.ModuleList(
            EncoderLayer(*layer_sizes, self.encoder_dropout) for _ in range(config.encoder_layers)
        )
        self.decoder = nn.ModuleList(DecoderLayer(*layer_sizes, config.dropout) for _ in range(config.decoder_layers))
        self.norm = nn.LayerNorm(d)  # of the encoder's and the decoder's output
        self.register_buffer("code_pairs", None, persistent=False)  # lattice.find_code_pairs
        self._initialize()

    def _initialize(self) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith("bias") or name == "repeat_weight":
                nn.init.zeros_(parameter)
            elif "norm" not in name:
                nn.init.normal_(parameter, std=0.02)

    def embed_items(self, items: Tensor, sids: Tensor, text: Tensor | None = None) -> Tensor:
        """Items [...], their SIDs [..., n] and text vectors [..., t] -> [..., d]. `items` are used with the item head
        only."""
        x: Tensor
        if self.config.num_items:
            x = self.item_embedding(items, sids, self.id_embedding, self.code_embedding, text)
        else:
            x = self.item_embedding(sids, self.code_embedding)
        return x

    def encode_history(self, x: Tensor, length: Tensor) -> Tensor:
        """Embedded items of histories [B, L, d], padded on the right, and lengths [B] -> states [B, L, d]"""
        x = x + self.position_embedding[: x.shape[1]]
        if self.config.num_items:
            x = self.input_norm(x)
        x = dropout(x, self.encoder_dropout, self.training)
        is_visible = is_before(x.shape[1], length)[:, None]  # [B, 1, L]
        if self.config.causal:
            is_visible = is_visible & torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        bias = mask_to_bias(is_visible)[:, None]  # [B, 1, 1 or L, L]
        for layer in self.encoder:
            x = layer(x, bias)
        states: Tensor = self.norm(x)
        return states

    def precompute_kv(self, states: Tensor, length: Tensor, row: Tensor | None = None) -> EncodedHistory:
        """Keys and values of the first `length` [B] states of each history [B, L, d], for the decoder.

        With `row` [T]: of the histories row[t] up to length[t]; states are projected once for all of them.
        """
        layers = cast(list[DecoderLayer], list(self.decoder))
        keys, values = (list(parts) for parts in zip(*(layer.precompute_kv(states) for layer in layers)))
        if row is not None:
            keys, values = ([part.index_select(0, row) for part in parts] for parts in (keys, values))
        bias = mask_to_bias(is_before(states.shape[1], length))[:, None, None]  # [B, 1, 1, L]
        if not self.config.attention_sink:
            return EncodedHistory(keys, values, bias)
        # The release pads to max_length with zero states: each padded position has logit 0 and value 0. All of them
        # together equal one position with value 0 whose logit is the log of their number.
        num_unused = (self.config.max_length - length).to(states.dtype)
        bias = torch.cat([bias, num_unused.log()[:, None, None, None]], dim=-1)  # -inf if there are none
        keys, values = ([F.pad(part, (0, 0, 0, 1)) for part in parts] for parts in (keys, values))
        return EncodedHistory(keys, values, bias)

    def decode(self, digits: Tensor, history: EncodedHistory, query_positions: Tensor | None = None) -> Tensor:
        """Partial SIDs [B, V, n], MASKED where a digit is to be predicted -> states [B, V, n, d]. Input: Eq. 4.

        `query_positions` [B, K], indices into the V * n digits of a sample: the last layer computes only these, and the
        states of the others are 0.
        """
        n, m, _ = self.code_embedding.shape
        table = torch.cat([self.code_embedding.flatten(0, 1), self.mask_embedding])  # [n * M + n, d]
        digit = torch.arange(n, device=digits.device)
        index = torch.where(digits == MASKED, n * m + digit, digits + digit * m)
        x = dropout(F.embedding(index, table), self.config.dropout, self.training)
        layers = list(zip(self.decoder, history.keys, history.values))
        for layer, key, value in layers[:-1]:
            x = layer(x, key, value, history.bias)
        layer, key, value = layers[-1]
        states: Tensor
        if query_positions is None:
            states = self.norm(layer(x, key, value, history.bias))
            return states
        offset = torch.arange(len(digits), device=digits.device)[:, None] * digits[0].numel()
        rows = (query_positions + offset).flatten()  # of [B * V * n]
        states = self.norm(layer(x, key, value, history.bias, rows)).flatten(0, 2)  # [B * K, d]
        return x.new_zeros(digits.numel(), x.shape[-1]).index_copy(0, rows, states).view_as(x)

    def digit_logits(self, digits: Tensor, history: EncodedHistory, query_positions: Tensor | None = None) -> Tensor:
        """Partial SIDs [B, V, n] -> [B, V, n, M]"""
        logits = self.logits(self.decode(digits, history, query_positions))
        return logits if history.prior is None else logits + history.prior[:, None]

    def predict(self, digits: Tensor, history: EncodedHistory, query_positions: Tensor | None = None) -> Tensor:
        """`digit_logits`; with `code_pairs`, -inf for codes that no item has together
        with one of the known digits."""
        logits = self.digit_logits(digits, history, query_positions)
        if self.code_pairs is None:
            return logits
        n, m, _ = self.code_embedding.shape
        index = torch.where(digits == MASKED, n * m, digits + torch.arange(n, device=digits.device) * m)  # [B, V, n]
        exists = self.code_pairs[index[..., 0]]
        for digit in range(1, n):
            exists = exists & self.code_pairs[index[..., digit]]
        return logits.masked_fill(~exists, -torch.inf)

    def logits(self, states: Tensor) -> Tensor:
        """States of all digits [..., n, d] -> [..., n, M]"""
        return linear_per_digit(states, self.code_embedding)

    @property
    def repeat_bias(self) -> Tensor:
        """[] what an item's logit has more for each time it occurs in the history."""
        return REPEAT_SCALE * self.repeat_weight

    def item_logits(self, states: Tensor, vectors: Tensor, seen: Tensor) -> Tensor:
        """States [T, d], vectors of all items [items, d], items of the histories [T, L] (0 for none) -> [T, items].

        Items of the history get a learned bias per occurrence: on data without repeats it becomes negative.
        """
        logits = linear(states, vectors)
        bias = torch.where(seen > 0, self.repeat_bias, 0.0)
        return logits.scatter_add(1, seen, bias.to(logits.dtype))

    def pair_logits(self, states: Tensor, vectors: Tensor, items: Tensor, seen: Tensor) -> Tensor:
        """The same of one item for each state: [P, d], its vector [P, d], its number [P], histories [P, L] -> [P]"""
        repeats = (seen == items[:, None]).sum(dim=1)
        return (states * vectors).sum(dim=1) + self.repeat_bias * repeats

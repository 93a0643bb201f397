"""HSTU (Zhai et al., ICML 2024): a recommender of item ids whose attention adds up instead of averaging.

Attention weights are SiLU(query . key + bias) divided by a constant, so how much a history holds of something is not
normalized away. The bias depends on the distance in positions and, where timestamps are clocks, in time. Items are
scored by their cosine with the state at a position.

Letters in shapes: B samples, L items of a history, T targets, K negatives, N items, d hidden size, n digits.
"""

import logging
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recbole_diffgrm.errors import UserError
from recbole_diffgrm.models.base import LossOutput, Model
from recbole_diffgrm.models.candidates import ItemScores, SidItemScores
from recbole_diffgrm.models.hstu_options import HSTUOptions
from recbole_diffgrm.nn.dropout import dropout
from recbole_diffgrm.nn.hstu import NUM_TIME_BUCKETS, HSTULayer, bucket_differences, relative_index
from recbole_diffgrm.nn.item_embeddings import sum_codes
from recbole_diffgrm.nn.item_softmax import ItemSoftmax
from recbole_diffgrm.nn.linear import linear

RESERVED = 11  # positions that the release keeps behind the longest history; they count in its constants
MIN_NORM = 1e-6

logger = logging.getLogger(__name__)


class HSTU(Model):
    Options = HSTUOptions
    family = "generative"
    variable_length = True
    sample_units = ("sequence", "prefix")

    def __init__(self, config, dataset):
        super().__init__(config, dataset)
        d, num_layers = config["hidden_size"], config["n_layers"]
        self.embedding_dropout, self.temperature = config["embedding_dropout_prob"], config["temperature"]
        self.num_negatives = config["num_negatives"]
        if self.num_negatives is None:
            self.item_softmax = ItemSoftmax(dataset.popularity, config["item_softmax"], config["softmax_items"])
        self.time_list = config["TIME_FIELD"] + config["LIST_SUFFIX"]
        self.semantic_ids = dataset.semantic_ids if self.needs_sids(config) else None
        shape: tuple[int, ...] = (self.n_items, d)
        if self.semantic_ids is not None:
            shape = (self.semantic_ids.num_digits, self.semantic_ids.codebook_size, d)
        self.embedding = nn.Parameter(torch.empty(shape))
        # Longer than a history can be, as in the release: half of the relative positions, those of later items, and
        # those beyond the longest history are never read.
        self.longest = config["MAX_ITEM_LIST_LENGTH"] + RESERVED
        self.position_embedding = nn.Parameter(torch.empty(self.longest, d))
        self.position_bias = nn.Parameter(torch.empty(2 * self.longest - 1, num_layers))
        self.time_bias = nn.Parameter(torch.empty(NUM_TIME_BUCKETS, num_layers)) if dataset.time_bias else None
        self.layers = nn.ModuleList(
            HSTULayer(d, config["n_heads"], config["hidden_dropout_prob"], self.longest) for _ in range(num_layers)
        )
        if config["time_bias"] == "auto":
            found = "on: timestamps are" if dataset.time_bias else "off: timestamps are no"
            logger.info(f"time bias {found} clocks")
        _init_truncated(self.embedding, 0.02)
        _init_truncated(self.position_embedding, math.sqrt(1 / d))
        for bias in (self.position_bias, self.time_bias):
            if bias is not None:
                nn.init.normal_(bias, std=0.02)

    @classmethod
    def needs_sids(cls, config) -> bool:
        return config["item_input"] == "codes"

    @classmethod
    def prepare(cls, config, split, semantic_ids) -> dict[str, Any]:
        if config["time_bias"] is False:
            return {"time_bias": False}
        flat, rows = split.dataset.inter_feat.flat, split.training_rows
        found = are_clocks(flat.user[rows], flat.features[config["TIME_FIELD"]][rows])
        if config["time_bias"] is True and not found:
            raise UserError(
                f"time_bias: timestamps of {config.dataset} are no clocks (positions in a sequence?); set it to False"
            )
        return {"time_bias": found}

    @classmethod
    def restore(cls, state) -> dict[str, Any]:
        return {"time_bias": "time_bias" in state}

    # Training

    def losses(self, batch) -> LossOutput:
        targets = self.targets(batch)
        states = _normalize(self._encode(batch)[targets.row, targets.position])  # [T, d]
        if self.num_negatives is None:
            loss = self.item_softmax(states, targets.item, self._scored_vectors)
        else:
            loss = self._sampled_loss(states, targets.item)
        return LossOutput({"item": loss}, len(targets.item))

    def _sampled_loss(self, states: Tensor, target: Tensor) -> Tensor:
        """Negatives are shared by all positions of the batch. Where one is the target, it is left out."""
        negatives = torch.randint(1, self.n_items, (self.num_negatives,), device=target.device)
        logits = linear(states, self._scored_vectors(negatives))  # [T, K]
        logits = logits.masked_fill(negatives == target[:, None], -torch.inf)
        of_target = (states * self._scored_vectors(target)).sum(dim=-1, keepdim=True)
        logits = torch.cat([of_target, logits], dim=1)
        return F.cross_entropy(logits, torch.zeros_like(target))

    def _encode(self, batch) -> Tensor:
        """States of the history's items [B, L, d], not normalized."""
        items = batch[self.ITEM_SEQ]
        x = self._item_vectors(items) * math.sqrt(self.position_embedding.shape[1])
        x = dropout(x + self.position_embedding[: items.shape[1]], self.embedding_dropout, self.training)
        for layer, bias in zip(self.layers, self._biases(batch)):
            x = layer(x, bias)
        return x

    def _biases(self, batch) -> list[Tensor]:
        """One [1 or B, L, L] for each layer."""
        items, length = batch[self.ITEM_SEQ], batch[self.ITEM_SEQ_LEN]
        index = relative_index(items.shape[1], self.longest, items.device)[None]
        bias = F.embedding(index, self.position_bias)  # [1, L, L, layers]
        if self.time_bias is not None:
            # The time of a query is that of the item it predicts; the last item's own, as its successor's is unknown.
            # A history without times, as in serving, counts as one moment.
            time = batch[self.time_list] if self.time_list in batch.interaction else torch.zeros_like(items)
            last = length[:, None] - 1
            next_time = time.roll(-1, dims=1).scatter(1, last, time.gather(1, last))
            bias = bias + F.embedding(bucket_differences(next_time, time), self.time_bias)
        return list(bias.unbind(-1))

    # Items

    def _item_vectors(self, items: Tensor) -> Tensor:
        """[...] -> [..., d]"""
        if self.semantic_ids is None:
            return F.embedding(items, self.embedding)
        return sum_codes(self.semantic_ids.lookup(items), self.embedding) / self.semantic_ids.num_digits

    def _all_items(self) -> Tensor:
        """[N + 1, d]"""
        if self.semantic_ids is None:
            return self.embedding
        return self._item_vectors(torch.arange(self.n_items, device=self.embedding.device))

    def _scored_vectors(self, items: Tensor | None) -> Tensor:
        """What normalized states are multiplied with: [K] -> [K, d], None -> [N + 1, d]"""
        return _normalize(self._all_items() if items is None else self._item_vectors(items)) / self.temperature

    # Ranking

    def candidates(self, batch, depth: int, validation: bool = False) -> ItemScores:
        states = self.gather_indexes(self._encode(batch), batch[self.ITEM_SEQ_LEN] - 1)  # [B, d]
        vectors = self.keep("vectors", lambda: self._scored_vectors(None))
        scores = linear(_normalize(states), vectors)  # [B, N + 1]
        return ItemScores(scores) if self.semantic_ids is None else SidItemScores(scores, self.semantic_ids)


def are_clocks(user: Tensor, time: Tensor) -> bool:
    """Do timestamps [R] of rows sorted by user and time tell when something happened?

    Not if no user's time ever advances by more than 1: positions in a sequence, line numbers, times scaled to 0..1,
    constants. Nor if most users start at the same time: positions of which filters have removed some.
    """
    is_same_user = user[1:] == user[:-1]
    steps = torch.diff(time)[is_same_user]
    if len(steps) == 0 or steps.max() <= 1:
        return False
    starts = torch.cat([time[:1], time[1:][~is_same_user]])
    _, count = torch.unique(starts, return_counts=True)
    return len(starts) == 1 or int(count.max()) <= len(starts) / 2


def _normalize(x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1, eps=MIN_NORM)


def _init_truncated(parameter: Tensor, std: float) -> None:
    nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std)

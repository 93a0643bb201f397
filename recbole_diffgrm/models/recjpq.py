"""RecJPQ (Petrov & Macdonald, WSDM 2024): SASRec whose item embeddings are concatenations of shared code embeddings.

Codes come from the interactions (`sid_quantizer: svd`), from text or at random; a catalogue takes n * M short vectors
instead of one long vector for each item. Items are scored exactly, through the scores of codes (nn.jpq).

Letters in shapes: B samples, L items of a history, T targets, n digits with M codes each, N items, d hidden size.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recbole_diffgrm.errors import UserError
from recbole_diffgrm.generation.item_ranking import SeenPairs
from recbole_diffgrm.models.base import LossOutput, Model
from recbole_diffgrm.models.candidates import Candidates, SidItemScores, TopK
from recbole_diffgrm.models.recjpq_options import RecJPQOptions
from recbole_diffgrm.nn.dropout import dropout
from recbole_diffgrm.nn.gpt2 import causal_bias
from recbole_diffgrm.nn.item_softmax import ItemSoftmax
from recbole_diffgrm.nn.jpq import (
    InvertedLists,
    JPQEmbedding,
    build_inverted_lists,
    score_codes,
    score_items,
    search_pruned,
)
from recbole_diffgrm.nn.losses import cross_entropy_in_chunks
from recbole_diffgrm.nn.sasrec import SASRecLayer


class RecJPQ(Model):
    Options = RecJPQOptions
    family = "semantic-enhanced"
    variable_length = True
    sample_units = ("sequence", "prefix")

    def __init__(self, config, dataset):
        super().__init__(config, dataset)
        ids = self.semantic_ids = dataset.semantic_ids
        d = config["hidden_size"]
        self.dropout, self.loss_type, self.scoring = config["dropout_prob"], config["loss_type"], config["scoring"]
        self.item_embedding = JPQEmbedding(ids.num_digits, ids.codebook_size, d)
        self.position_embedding = nn.Parameter(torch.empty(config["MAX_ITEM_LIST_LENGTH"], d))
        self.layers = nn.ModuleList(SASRecLayer(d, config["n_heads"], self.dropout) for _ in range(config["n_layers"]))
        self.norm = nn.LayerNorm(d)
        if self.loss_type == "CE":
            self.item_softmax = ItemSoftmax(dataset.popularity, config["item_softmax"], config["softmax_items"])
        nn.init.uniform_(self.position_embedding, -0.05, 0.05)

    @classmethod
    def needs_sids(cls, config) -> bool:
        return True

    @classmethod
    def prepare(cls, config, split, semantic_ids) -> dict[str, Any]:
        if config["hidden_size"] % semantic_ids.num_digits:
            raise UserError(
                f"hidden_size ({config['hidden_size']}) must be a multiple of the {semantic_ids.num_digits} digits"
            )
        return {}

    @classmethod
    def add_items(cls, config, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(state)

    # Training

    def losses(self, batch) -> LossOutput:
        targets = self.targets(batch)
        states = self._encode(batch)[targets.row, targets.position]  # [T, d]
        loss = self._binary_loss if self.loss_type == "BCE" else self._softmax_loss
        return LossOutput({"item": loss(states, targets.item)}, len(targets.item))

    def _binary_loss(self, states: Tensor, target: Tensor) -> Tensor:
        """The negative may be an item that the user has had, as published."""
        negative = torch.randint_like(target, 1, self.n_items)
        items = self.item_embedding(self.semantic_ids.lookup(torch.stack([target, negative])))  # [2, T, d]
        positive_score, negative_score = (items * states).sum(dim=-1)
        return (F.softplus(-positive_score) + F.softplus(negative_score)).mean() / 2

    def _softmax_loss(self, states: Tensor, target: Tensor) -> Tensor:
        if not self.item_softmax.is_full:
            return self.item_softmax(states, target, lambda items: self.item_embedding(self.semantic_ids.lookup(items)))
        sids = self._all_sids()

        def score_all(of_chunk: Tensor, weight: Tensor) -> Tensor:
            return score_items(score_codes(of_chunk, weight), sids).T  # [T, N]

        return cross_entropy_in_chunks([states], target - 1, score_all, len(sids), [self.item_embedding.weight])

    def _encode(self, batch) -> Tensor:
        """States of the history's items [B, L, d]."""
        items, length = batch[self.ITEM_SEQ], batch[self.ITEM_SEQ_LEN]
        # Positions count from the end, as in the release, which pads on the left.
        before = len(self.position_embedding) - length[:, None]
        position = (before + torch.arange(items.shape[1], device=items.device)).clamp(
            max=len(self.position_embedding) - 1
        )
        x = self.item_embedding(self.semantic_ids.lookup(items)) + F.embedding(position, self.position_embedding)
        x = dropout(x, self.dropout, self.training)
        bias = causal_bias(items.shape[1], items.device)
        for layer in self.layers:
            x = layer(x, bias)
        return self.norm(x)

    def _all_sids(self) -> Tensor:
        """[N, n]"""
        return self.semantic_ids.lookup(torch.arange(1, self.n_items, device=self.position_embedding.device))

    # Ranking

    def candidates(self, batch, depth: int, validation: bool = False) -> Candidates:
        states = self.gather_indexes(self._encode(batch), batch[self.ITEM_SEQ_LEN] - 1)  # [B, d]
        code_scores = score_codes(states, self.item_embedding.weight)  # [n, M, B]
        if self.scoring == "pqtopk" or validation:
            return self._score_all(code_scores)
        sids = self.keep("sids", self._all_sids)
        lists = self.keep("lists", lambda: build_inverted_lists(sids, self.semantic_ids.codebook_size))
        return PrunedItems(code_scores, sids, lists, self._score_all)

    def _score_all(self, code_scores: Tensor) -> SidItemScores:
        ids = self.semantic_ids
        scores = score_items(code_scores, ids.sids.long())  # [D, B]: of distinct SIDs
        return SidItemScores(scores.T[:, ids.sid_index.long()], ids)


class PrunedItems(Candidates):
    """The best items by a pruned search for each user. What depends on the scores of all items computes these."""

    def __init__(
        self,
        code_scores: Tensor,  # [n, M, B]
        sids: Tensor,  # [N, n]
        lists: InvertedLists,
        score_all: Callable[[Tensor], SidItemScores],
    ):
        self.code_scores, self.sids, self.lists, self._score_all = code_scores, sids, lists, score_all

    @cached_property
    def _all(self) -> SidItemScores:
        return self._score_all(self.code_scores)

    def top_k(self, k: int, exclude: SeenPairs | None = None) -> TopK:
        num_users, device = self.code_scores.shape[2], self.sids.device
        items = torch.zeros(num_users, k, dtype=torch.int64, device=device)
        scores = torch.full((num_users, k), -torch.inf, dtype=self.code_scores.dtype, device=device)
        for user in range(num_users):
            is_hidden = None
            if exclude is not None:
                is_hidden = torch.zeros(len(self.sids), dtype=torch.bool, device=device)
                is_hidden[exclude[1][exclude[0] == user] - 1] = True
            rows, found = search_pruned(self.code_scores[:, :, user], self.sids, self.lists, k, is_hidden)
            items[user, : len(rows)], scores[user, : len(rows)] = rows + 1, found
        return TopK(items, scores)

    def target_rank(self, target: Tensor, exclude: SeenPairs | None = None) -> Tensor:
        return self._all.target_rank(target, exclude)

    def sid_target_rank(self, target: Tensor, exclude: SeenPairs | None = None) -> Tensor:
        return self._all.sid_target_rank(target, exclude)

    def count_sids(self, target: Tensor, k: int, exclude: SeenPairs | None = None) -> dict[str, int]:
        return self._all.count_sids(target, k, exclude)

    def dense_scores(self) -> Tensor:
        return self._all.dense_scores()

    def is_finite(self) -> bool:
        return bool(self.code_scores.isfinite().all())

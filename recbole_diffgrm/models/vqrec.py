"""VQ-Rec (Hou et al., WWW 2023): items are their text's codes alone, the mean of one embedding for each.

RecBole's Transformer reads the history; items are scored by their cosine with its state. Here it is trained from
scratch, on the data it is tested on, with all its weights; the pre-training on other domains that the paper is about is
left out, and with it the permutation of codes that adapts it.

Letters in shapes: B samples, L items of a history, T targets, n digits with M codes each, N items, d hidden size.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recbole_diffgrm import recbole_compat
from recbole_diffgrm.models.base import LossOutput, Model
from recbole_diffgrm.models.candidates import SidItemScores
from recbole_diffgrm.models.vqrec_options import VQRecOptions
from recbole_diffgrm.nn.dropout import dropout
from recbole_diffgrm.nn.gpt2 import causal_bias
from recbole_diffgrm.nn.item_embeddings import sum_codes
from recbole_diffgrm.nn.item_softmax import ItemSoftmax
from recbole_diffgrm.nn.linear import linear

EPS = 1e-12


class VQRec(Model):
    Options = VQRecOptions
    family = "semantic-enhanced"
    variable_length = True
    sample_units = ("sequence", "prefix")

    def __init__(self, config, dataset):
        super().__init__(config, dataset)
        ids = self.semantic_ids = dataset.semantic_ids
        d = config["hidden_size"]
        self.dropout, self.temperature = config["hidden_dropout_prob"], config["temperature"]
        self.code_embedding = nn.Parameter(torch.empty(ids.num_digits, ids.codebook_size, d))
        self.position_embedding = nn.Parameter(torch.empty(config["MAX_ITEM_LIST_LENGTH"], d))
        self.norm = nn.LayerNorm(d, eps=EPS)
        self.item_softmax = ItemSoftmax(dataset.popularity, config["item_softmax"], config["softmax_items"])
        self.encoder = recbole_compat.load_layers().TransformerEncoder(
            n_layers=config["n_layers"],
            n_heads=config["n_heads"],
            hidden_size=d,
            inner_size=config["inner_size"],
            hidden_dropout_prob=self.dropout,
            attn_dropout_prob=config["attn_dropout_prob"],
            hidden_act="gelu",
            layer_norm_eps=EPS,
        )
        for embedding in (self.code_embedding, self.position_embedding):
            nn.init.normal_(embedding, std=0.02)
        for module in self.encoder.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    @classmethod
    def needs_sids(cls, config) -> bool:
        return True

    @classmethod
    def add_items(cls, config, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(state)

    def losses(self, batch) -> LossOutput:
        targets = self.targets(batch)
        states = self._encode(batch)[targets.row, targets.position]  # [T, d]
        loss = self.item_softmax(F.normalize(states, dim=-1), targets.item, self._scored_vectors)
        return LossOutput({"item": loss}, len(targets.item))

    def candidates(self, batch, depth: int, validation: bool = False) -> SidItemScores:
        states = self.gather_indexes(self._encode(batch), batch[self.ITEM_SEQ_LEN] - 1)  # [B, d]
        vectors = self.keep("vectors", lambda: self._scored_vectors(None))
        scores = linear(F.normalize(states, dim=-1), vectors)  # [B, N + 1]
        return SidItemScores(scores, self.semantic_ids)

    def _encode(self, batch) -> Tensor:
        """States of the history's items [B, L, d]."""
        items = batch[self.ITEM_SEQ]
        x = self._embed(self.semantic_ids.lookup(items)) + self.position_embedding[: items.shape[1]]
        x = dropout(self.norm(x), self.dropout, self.training)
        return self.encoder(x, causal_bias(items.shape[1], items.device))[-1]

    def _embed(self, sids: Tensor) -> Tensor:
        """[..., n] -> [..., d]"""
        return sum_codes(sids, self.code_embedding) / sids.shape[-1]

    def _scored_vectors(self, items: Tensor | None) -> Tensor:
        """What normalized states are multiplied with: [K] -> [K, d]; None -> [N + 1, d], all items (that of
        padding has no meaning)."""
        ids = self.semantic_ids
        if items is None:
            vectors = self._embed(ids.sids.long())[ids.sid_index.long()]
        else:
            vectors = self._embed(ids.lookup(items))
        return F.normalize(vectors, dim=-1) / self.temperature

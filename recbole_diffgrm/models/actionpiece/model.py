"""ActionPiece (Hou et al., ICML 2025) as a model of the bench: segmented histories in, labels of items out.

A T5 reads BOS, the tokens of a random segmentation of the history and EOS, and predicts the tokens of the next item's
label and EOS. A sample is segmented anew in every epoch. Items are ranked by the ensemble of the rankings that several
segmentations lead to. Letters in shapes: B samples, L items, n features of an item, S tokens, d hidden size, K outputs,
k outputs of a label, U users, q segmentations, W branches.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recbole_diffgrm.data.splits import Split
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.generation.beam_search import Step, beam_search
from recbole_diffgrm.generation.constraints import TrieConstraint
from recbole_diffgrm.generation.item_ranking import GeneratedSids, concat
from recbole_diffgrm.generation.semantic_ids import SemanticIds
from recbole_diffgrm.models.actionpiece.decoding import PAD_OUTPUT, Labels, combine_rankings
from recbole_diffgrm.models.actionpiece.options import ActionPieceOptions
from recbole_diffgrm.models.actionpiece.segmentation import (
    MergeRules,
    hash_keys,
    label_tokens,
    merge_neighbours,
    permute_features,
)
from recbole_diffgrm.models.actionpiece.vocabulary import PAD, Vocabulary, cached_vocabulary
from recbole_diffgrm.models.autoregressive import Sizes, numbers_per_user
from recbole_diffgrm.models.base import LossOutput
from recbole_diffgrm.models.candidates import GeneratedItems
from recbole_diffgrm.models.search import SearchModel
from recbole_diffgrm.models.t5_options import t5_config
from recbole_diffgrm.nn.kv_cache import BranchCache, Memory
from recbole_diffgrm.nn.linear import linear
from recbole_diffgrm.nn.losses import cross_entropy_in_chunks
from recbole_diffgrm.nn.t5 import T5Decoder, T5Encoder

VOCABULARY = "vocabulary_"  # prefix of the buffers that hold it


class ActionPiece(SearchModel):
    """ActionPiece (Hou et al., ICML 2025): tokens that depend on their context, made by merging features of items."""

    Options = ActionPieceOptions
    family = "generative"
    variable_length = True

    def __init__(self, config, dataset):
        super().__init__(config, dataset)
        self.semantic_ids, vocabulary = dataset.semantic_ids, dataset.vocabulary
        for name, array in vocabulary._asdict().items():
            self.register_buffer(VOCABULARY + name, torch.tensor(array))
        sids = self.semantic_ids.sids.cpu().numpy()
        self.rules = MergeRules(vocabulary)
        self.bos, self.eos = vocabulary.bos, vocabulary.eos
        self.features = vocabulary.tokens_of(sids)[self.semantic_ids.sid_index.cpu().numpy()]  # [items, n]
        self.features[0] = PAD
        self.labels = Labels(vocabulary, label_tokens(vocabulary, self.rules, sids))
        t5 = t5_config(config)
        self.embedding = nn.Embedding(vocabulary.size + 2, t5.hidden_size)  # N(0, 1), as in T5
        self.encoder, self.decoder = T5Encoder(t5), T5Decoder(t5)
        attention_size = t5.num_heads * t5.head_size
        self.sizes = Sizes(t5.hidden_size, t5.inner_size, attention_size, t5.num_heads, t5.decoder_layers)
        self.num_segmentations = config["num_segmentations"]
        self.valid_num_segmentations = config["valid_num_segmentations"]
        self.segmentation_seed = config["seed"]

    @classmethod
    def prepare(cls, config, split: Split, semantic_ids: SemanticIds | None) -> dict[str, Any]:
        """The vocabulary, from the sequences of training."""
        assert semantic_ids is not None
        flat, rows = split.dataset.inter_feat.flat, split.training_rows
        vocabulary = cached_vocabulary(
            Path(config["cache_dir"]) / config.dataset,
            semantic_ids.sids.numpy(),
            semantic_ids.codebook_size,
            semantic_ids.sid_index[flat.item[rows].long()].numpy(),
            flat.user[rows].numpy(),
            config["vocabulary_size"],
            config["show_progress"],
        )
        return {"vocabulary": vocabulary}

    @classmethod
    def restore(cls, state: Mapping[str, Tensor]) -> dict[str, Any]:
        return {"vocabulary": Vocabulary(*(state[VOCABULARY + name].cpu().numpy() for name in Vocabulary._fields))}

    @classmethod
    def add_items(cls, config, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        sids, tokens = state["semantic_ids.sids"].long(), state[VOCABULARY + "tokens"]
        if bool((tokens.gather(1, sids.T.to(tokens.device)) == PAD).any()):
            raise UserError("add_items: a new item has a code that no item had in training: ActionPiece has no token")
        return super().add_items(config, state)

    # Training

    def losses(self, batch) -> LossOutput:
        """Mean cross-entropy of the label's tokens and EOS."""
        items = batch[self.ITEM_SEQ].cpu().numpy()
        keys = torch.rand(*items.shape, self.features.shape[1]).numpy()  # on the CPU: its generator is saved
        memory = self._encode(permute_features(self.features[items], keys))
        codes = self.labels.codes[self.semantic_ids.sid_index[batch[self.ITEM_ID]].long()]  # [B, k]
        codes = codes[:, : int((codes != PAD_OUTPUT).sum(1).max())]
        before = F.pad(codes[:, :-1], (1, 0), value=PAD_OUTPUT)  # padding is the start token
        states = self.decoder(self.embedding(self.labels.outputs[before]), memory)  # [B, k, d]
        is_label = codes != PAD_OUTPUT
        heads = self.embedding(self.labels.outputs)[1:]  # padding is never predicted
        loss = cross_entropy_in_chunks([states[is_label]], codes[is_label] - 1, _score, len(heads), [heads])
        return LossOutput({"label": loss}, len(batch))

    # Tokens

    def _encode(self, features: np.ndarray) -> Memory:
        """Of histories as features in some order [B, L * n]: what the decoder attends to."""
        tokens, length = merge_neighbours(features, self.rules)
        tokens = np.pad(tokens, ((0, 0), (1, 1)), constant_values=PAD)  # [B, S]
        tokens[:, 0] = self.bos
        tokens[np.arange(len(tokens)), 1 + length] = self.eos
        device = self.embedding.weight.device
        num_tokens = torch.from_numpy(length + 2).to(device)
        states = self.encoder(self.embedding(torch.from_numpy(tokens).to(device)), num_tokens)
        return self.decoder.precompute_kv(states, num_tokens)

    def _logits(self, states: Tensor) -> Tensor:
        """[..., d] -> [..., K]: the embeddings of the outputs are the head (T5: tied and scaled)."""
        return _score(states, self.embedding(self.labels.outputs))

    # Ranking

    def candidates(self, batch, depth: int, validation: bool = False) -> GeneratedItems:
        count = self.valid_num_segmentations if validation else self.num_segmentations
        widths = self.valid_beam_widths if validation else self.beam_widths
        items = batch[self.ITEM_SEQ].cpu().numpy()
        num_states = 2 + items.shape[1] * self.features.shape[1]  # at most
        num_outputs, label_length = len(self.labels.outputs), self.labels.codes.shape[1]
        numbers = numbers_per_user(self.sizes, num_states, max(widths), label_length, num_outputs)
        chunk = max(1, int(self.decoding_memory * 2**20 / (4 * count * numbers)))
        parts = [self._rank(items[start : start + chunk], count, widths) for start in range(0, len(items), chunk)]
        return GeneratedItems(concat(parts), self.semantic_ids, depth)

    def _rank(self, items: np.ndarray, count: int, widths: Sequence[int]) -> GeneratedSids:
        """Histories [U, L] -> SIDs, by `count` segmentations of each."""
        keys = hash_keys(items, self.features.shape[1], count, self.segmentation_seed)
        features = np.repeat(self.features[items], count, axis=0)  # [U * q, L, n]
        memory = self._encode(permute_features(features, keys))
        constraint = TrieConstraint(self.labels.trie, self.labels.ordered, self.normalize_codes)
        beams = beam_search(
            self._make_step(memory), constraint, widths, len(features), memory.bias.device, int(self.normalize_codes)
        )
        rows = self.labels.find(beams.sids.flatten(0, 1)).view(len(items), count, -1)  # [U, q, W]
        return combine_rankings(rows)

    def _make_step(self, memory: Memory) -> Step:
        cache = BranchCache()

        def step(known: Tensor, parent: Tensor | None) -> Tensor:
            """Partial labels [U, W, k] -> log-probabilities of their next outputs, for every place [U, W, k, K]."""
            num_known = cache.num_tokens
            last = known[:, :, num_known - 1].clamp(min=0) if num_known else torch.full_like(known[:, :, 0], PAD_OUTPUT)
            states = self.decoder.step(self.embedding(self.labels.outputs[last]), memory, cache, parent)
            log_probs = self._logits(states)
            log_probs -= log_probs[..., 1:].logsumexp(dim=-1, keepdim=True)
            log_probs[..., PAD_OUTPUT] = 0  # the trie allows it only after EOS, where it is certain
            return log_probs[:, :, None].expand(-1, -1, known.shape[2], -1)

        return step


def _score(states: Tensor, heads: Tensor) -> Tensor:
    """[..., d], [K, d] -> [..., K]"""
    return linear(states * states.shape[-1] ** -0.5, heads)

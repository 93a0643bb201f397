"""DiffGRM as a model of the bench: items become SIDs on the way in, generated SIDs become items on the way out.

With `item_head` items have embeddings of their own as well, and a softmax over all items is trained beside the decoder;
items are then ranked by both. With `sample_unit: sequence` the encoder is causal, and every item a target.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from recbole_diffgrm.generation.beam_search import Beams, beam_search
from recbole_diffgrm.generation.item_ranking import GeneratedSids, concat, keep_existing, scores_of_sids
from recbole_diffgrm.models.base import LossOutput, Targets
from recbole_diffgrm.models.candidates import Candidates, FusedScores, GeneratedItems
from recbole_diffgrm.models.diffgrm.decoding import make_constraint, make_step, users_per_chunk
from recbole_diffgrm.models.diffgrm.network import DiffGRMConfig, DiffGRMNetwork
from recbole_diffgrm.models.diffgrm.noising import digit_losses, sample_losses
from recbole_diffgrm.models.diffgrm.options import DiffGRMOptions, make_noising
from recbole_diffgrm.models.diffgrm.statistics import digit_means, digit_sums
from recbole_diffgrm.models.search import SearchModel


class DiffGRM(SearchModel):
    """DiffGRM (Liu et al., WWW 2026): masked diffusion fills the digits of a semantic ID in any order."""

    Options = DiffGRMOptions
    family = "generative"
    variable_length = True
    sample_units = ("prefix", "sequence")

    def __init__(self, config, dataset):
        super().__init__(config, dataset)
        self.semantic_ids = dataset.semantic_ids.with_lattice()
        self.has_item_head, self.sid_score_weight = config["item_head"], config["sid_score_weight"]
        self.register_buffer("text_vectors", dataset.text_vectors if config["item_text"] else None)  # [items, t]
        self.decoder_targets = config["decoder_targets"]
        self.network = DiffGRMNetwork(
            DiffGRMConfig(
                num_digits=self.semantic_ids.num_digits,
                codebook_size=self.semantic_ids.codebook_size,
                hidden_size=config["hidden_size"],
                inner_size=config["inner_size"],
                num_heads=config["n_heads"],
                encoder_layers=config["encoder_layers"],
                decoder_layers=config["decoder_layers"],
                dropout=config["dropout_prob"],
                max_length=config["MAX_ITEM_LIST_LENGTH"],
                attention_sink=config["cross_attention_sink"],
                encoder_dropout=config["encoder_dropout_prob"],
                causal=self.sample_unit == "sequence",
                text_dim=0 if self.text_vectors is None else self.text_vectors.shape[1],
                num_items=self.n_items if self.has_item_head else 0,
            )
        )
        self.noising = make_noising(config)
        self.noising.check(self.semantic_ids.num_digits)
        self.loss_weighting, self.label_smoothing = config["loss_weighting"], config["label_smoothing"]
        self.decoding, self.path_merge, self.order_seed = config["decoding"], config["path_merge"], config["seed"]

    @classmethod
    def needs_text_vectors(cls, config) -> bool:
        return config["item_text"]

    @classmethod
    def scores_every_item(cls, config) -> bool:
        return config["item_head"]

    # Training

    def losses(self, batch) -> LossOutput:
        """Of the SIDs' digits and, with the item head, of the items."""
        states, targets = self._encode(batch), self.targets(batch)
        sid_loss, statistics = self._sid_loss(states, targets.sample(self.decoder_targets))
        parts = {"sid": sid_loss}
        if self.has_item_head:
            logits = self._item_logits(states, targets, batch[self.ITEM_SEQ])
            parts["item"] = F.cross_entropy(logits, targets.item)
        return LossOutput(parts, len(targets.item), statistics)

    def _sid_loss(self, states: Tensor, targets: Targets) -> tuple[Tensor, dict[str, Tensor]]:
        sids = self.semantic_ids.lookup(targets.item)  # [T, n]
        row = targets.row if self.sample_unit == "sequence" else None
        history = self.network.precompute_kv(states, targets.position + 1, row)
        views = self.noising.make_views(self.network, history, sids)
        losses = digit_losses(views, sids, self.label_smoothing)
        statistics = digit_sums(views, losses, sids, self.noising)
        return sample_losses(losses, views.masked, self.loss_weighting).mean(), statistics

    def summarize_statistics(self, sums: Mapping[str, list[float]], epoch: int) -> dict[str, Any]:
        """ESP, effective sample passes: epochs times views (paper, Sec. 4; there for the best epoch)."""
        return {"esp": epoch * self.noising.num_views(self.semantic_ids.num_digits), **digit_means(sums)}

    # Histories and items

    def _encode(self, batch) -> Tensor:
        """States of the history's items [B, L, d]."""
        return self.network.encode_history(self._embed(batch[self.ITEM_SEQ]), batch[self.ITEM_SEQ_LEN])

    def _embed(self, items: Tensor) -> Tensor:
        """[...] -> [..., d]"""
        text = None if self.text_vectors is None else self.text_vectors[items]
        return self.network.embed_items(items, self.semantic_ids.lookup(items), text)

    def _item_logits(self, states: Tensor, targets: Targets, items: Tensor) -> Tensor:
        """[T, num_items]"""
        vectors = self._embed(torch.arange(self.n_items, device=items.device))
        is_later = torch.arange(items.shape[1], device=items.device) > targets.position[:, None]
        seen = items[targets.row].masked_fill(is_later, 0)  # [T, L]
        return self.network.item_logits(states[targets.row, targets.position], vectors, seen)

    # Ranking

    def candidates(self, batch, depth: int, validation: bool = False) -> Candidates:
        generated = self.generate(batch, self.valid_beam_widths if validation else self.beam_widths)
        if not self.has_item_head:
            return GeneratedItems(generated, self.semantic_ids, depth)
        return FusedScores(self._fuse(batch, generated), generated, self.semantic_ids)

    def _fuse(self, batch, generated: GeneratedSids) -> Tensor:
        """[B, num_items] log-probability of the item plus sid_score_weight times that of its SID."""
        length = batch[self.ITEM_SEQ_LEN]
        last = Targets(torch.arange(len(length), device=length.device), length - 1, length)
        scores = self._item_logits(self._encode(batch), last, batch[self.ITEM_SEQ]).float().log_softmax(dim=-1)
        of_sids = scores_of_sids(generated.rows, generated.scores, self.semantic_ids.num_sids)
        scores[:, 1:] += self.sid_score_weight * of_sids[:, self.semantic_ids.sid_index[1:].long()]
        return scores

    def generate(self, batch, widths: Sequence[int]) -> GeneratedSids:
        """By beam search, in chunks of as many users as the memory for it allows."""
        length = batch[self.ITEM_SEQ].shape[1]
        chunk = users_per_chunk(self.network.config, max(widths), length, self.decoding_memory)
        parts = [batch[start : start + chunk] for start in range(0, len(batch), chunk)]
        return concat([keep_existing(self._search(part, widths), self.semantic_ids) for part in parts])

    def generate_beams(self, batch) -> Beams:
        return self._search(batch, self.beam_widths)

    def _search(self, batch, widths: Sequence[int]) -> Beams:
        """Confidence-guided Parallel Denoising (CPD; paper, Sec. 3.4)."""
        history = self.network.precompute_kv(self._encode(batch), batch[self.ITEM_SEQ_LEN])
        normalize = self.normalize_codes
        constraint = make_constraint(self.decoding, self.path_merge, normalize, self.semantic_ids, self.order_seed)
        step = make_step(self.network, history)
        return beam_search(step, constraint, widths, len(batch), history.bias.device, int(normalize))

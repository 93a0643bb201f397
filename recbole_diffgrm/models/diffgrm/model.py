"""DiffGRM as a model of the bench: items become SIDs on the way in, generated SIDs become items on the way out.

With `item_head` items have embeddings of their own as well, and a softmax over items is trained beside the decoder.
Items are then ranked by it: all of them, or those that the decoder finds (generate, then rank). With `sample_unit:
sequence` the encoder is causal, and every item a target.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from recbole_diffgrm.generation.beam_search import Beams, Step, beam_search
from recbole_diffgrm.generation.constraints import Constraint, normalize
from recbole_diffgrm.generation.item_ranking import (
    GeneratedSids,
    RankedPairs,
    concat,
    keep_existing,
    score_leaves,
    sort_pairs,
)
from recbole_diffgrm.generation.lattice import find_code_pairs
from recbole_diffgrm.models.base import LossOutput, Targets
from recbole_diffgrm.models.candidates import Candidates, GeneratedItems, RankedItems, SidItemScores
from recbole_diffgrm.models.diffgrm.decoding import make_constraint, make_step, users_per_chunk
from recbole_diffgrm.models.diffgrm.network import DiffGRMConfig, DiffGRMNetwork, EncodedHistory
from recbole_diffgrm.models.diffgrm.noising import digit_losses, sample_losses
from recbole_diffgrm.models.diffgrm.options import DiffGRMOptions, make_noising
from recbole_diffgrm.models.diffgrm.prior import CodePrior
from recbole_diffgrm.models.diffgrm.programs import make_programs
from recbole_diffgrm.models.diffgrm.statistics import digit_means, digit_sums
from recbole_diffgrm.models.programs import Programs
from recbole_diffgrm.models.search import SearchModel
from recbole_diffgrm.nn.item_softmax import ItemSoftmax, Repeats

logger = logging.getLogger(__name__)

FULL_SCORING = 100_000  # items up to which item_scoring: auto scores all of them
PAIRS_AT_ONCE = 2**17  # users and items whose vectors are held at once


class DiffGRM(SearchModel):
    """DiffGRM (Liu et al., WWW 2026): masked diffusion fills the digits of a semantic ID in any order."""

    Options = DiffGRMOptions
    family = "generative"
    variable_length = True
    generates_stepwise = True
    sample_units = ("prefix", "sequence")

    def __init__(self, config, dataset):
        super().__init__(config, dataset)
        self.semantic_ids = dataset.semantic_ids.with_lattice()
        self.has_item_head, self.leaf_size = config["item_head"], config["leaf_size"]
        self.item_scoring = self.choose_scoring(config, self.n_items)
        if self.has_item_head:
            below = f"those below branches of at most {self.leaf_size} SIDs"
            which = {"full": "all", "generated": below, "none": "none"}[self.item_scoring]
            logger.info(f"item_scoring {config['item_scoring']}: of {self.n_items - 1:,} items, {which} are scored")
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
        if config["mask_absent_codes"]:
            pairs = find_code_pairs(self.semantic_ids.sids.cpu(), self.semantic_ids.codebook_size)
            self.network.code_pairs = pairs.to(self.semantic_ids.sids.device)
        self.code_prior = CodePrior(self.semantic_ids) if config["code_prior"] else None
        if self.has_item_head:
            # Padding is a class of this softmax, as in the first version of the item head.
            kind, num_drawn = config["item_softmax"], config["softmax_items"]
            self.item_softmax = ItemSoftmax(dataset.popularity, kind, num_drawn, first_class=0)
        self.noising = make_noising(config)
        self.noising.check(self.semantic_ids.num_digits)
        self.loss_weighting, self.label_smoothing = config["loss_weighting"], config["label_smoothing"]
        self.decoding, self.path_merge, self.order_seed = config["decoding"], config["path_merge"], config["seed"]

    @classmethod
    def needs_text_vectors(cls, config) -> bool:
        return config["item_text"]

    @classmethod
    def scores_every_item(cls, config, num_items: int) -> bool:
        return cls.choose_scoring(config, num_items) == "full"

    @classmethod
    def choose_scoring(cls, config, num_items: int) -> str:
        """Which items the item head scores: full, generated, none."""
        if not config["item_head"]:
            return "none"
        if config["item_scoring"] == "auto":
            return "full" if num_items <= FULL_SCORING else "generated"
        scoring: str = config["item_scoring"]
        return scoring

    @classmethod
    def add_items(cls, config, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The item head knows a new item by its digits and its text alone: its own embedding is zero. The mean of the
        learned ones would rank it lower: most items are unpopular, and their embeddings have learned that."""
        if not config["item_head"]:
            return dict(state)
        name = "network.id_embedding"
        learned, num_items = state[name], len(state["semantic_ids.sid_index"])
        return {**state, name: F.pad(learned, (0, 0, 0, num_items - len(learned)))}

    # Training

    def losses(self, batch) -> LossOutput:
        """Of the SIDs' digits and, with the item head, of the items."""
        states, targets = self._encode(batch), self.targets(batch)
        sid_loss, statistics = self._sid_loss(states, targets.sample(self.decoder_targets))
        parts = {"sid": sid_loss}
        if self.has_item_head:
            repeats = Repeats(_items_before(targets, batch[self.ITEM_SEQ]), self.network.repeat_bias)
            last = states[targets.row, targets.position]  # [T, d]
            parts["item"] = self.item_softmax(last, targets.item, self._item_vectors, repeats)
        return LossOutput(parts, len(targets.item), statistics)

    def _sid_loss(self, states: Tensor, targets: Targets) -> tuple[Tensor, dict[str, Tensor]]:
        sids = self.semantic_ids.lookup(targets.item)  # [T, n]
        row = targets.row if self.sample_unit == "sequence" else None
        history = self.network.precompute_kv(states, targets.position + 1, row)
        history = history._replace(prior=self._prior(states[targets.row, targets.position]))
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

    @torch.no_grad()
    def _prior(self, state: Tensor) -> Tensor | None:
        """[B, d] last states of histories -> [B, n, M]. The item head does not learn from it."""
        if self.code_prior is None:
            return None
        prior = self.code_prior
        means = self.keep("code_means", lambda: prior.mean_vectors(self._embed(prior.items)))
        return prior(state, means)

    def _item_logits(self, states: Tensor, targets: Targets, items: Tensor) -> Tensor:
        """[T, num_items]"""
        seen = _items_before(targets, items)
        vectors = self.keep("vectors", lambda: self._item_vectors(None))
        return self.network.item_logits(states[targets.row, targets.position], vectors, seen)

    def _item_vectors(self, items: Tensor | None) -> Tensor:
        """[K] -> [K, d]; None -> [num_items, d] of all, padding among them."""
        return self._embed(
            torch.arange(self.n_items, device=self.network.id_embedding.device) if items is None else items
        )

    # Ranking

    def candidates(self, batch, depth: int, validation: bool = False) -> Candidates:
        widths = self.valid_beam_widths if validation else self.beam_widths
        if self.item_scoring == "full":
            return SidItemScores(self._score_all(batch), self.semantic_ids)
        if self.item_scoring == "none":
            return GeneratedItems(self.generate(batch, widths), self.semantic_ids, depth)
        pairs = [self._score_leaves(part, start, widths) for start, part in self._chunks(batch, widths)]
        joined = RankedPairs(*(torch.cat(parts) for parts in zip(*pairs)))
        return RankedItems(joined, len(batch), self.semantic_ids, depth)

    def _score_all(self, batch) -> Tensor:
        """[B, num_items] log-probabilities"""
        length = batch[self.ITEM_SEQ_LEN]
        last = Targets(torch.arange(len(length), device=length.device), length - 1, length)
        return self._item_logits(self._encode(batch), last, batch[self.ITEM_SEQ]).float().log_softmax(dim=-1)

    def _score_leaves(self, batch, first_user: int, widths: Sequence[int]) -> RankedPairs:
        """Generate, then rank: items below the branches at which the search ends, by their log-probability among these.
        Nothing here grows with the catalogue."""
        states, length = self._encode(batch), batch[self.ITEM_SEQ_LEN]
        beams = self._search(states, length, widths, self.leaf_size)
        pairs = score_leaves(beams, self.semantic_ids.groups)
        last = states[torch.arange(len(length), device=length.device), length - 1]  # [U, d]
        logits = [
            self.network.pair_logits(last[user], self._embed(item), item, batch[self.ITEM_SEQ][user])
            for user, item in zip(pairs.user.split(PAIRS_AT_ONCE), pairs.item.split(PAIRS_AT_ONCE))
        ]
        of_items = torch.cat(logits).float()
        log_prob = normalize(of_items - of_items.max(), pairs.user)
        ranked = sort_pairs(pairs._replace(scores=log_prob))
        return ranked._replace(user=ranked.user + first_user)

    def generate(self, batch, widths: Sequence[int]) -> GeneratedSids:
        """By beam search, in chunks of as many users as the memory for it allows."""
        parts = [self._search_batch(part, widths) for _, part in self._chunks(batch, widths)]
        return concat([keep_existing(beams, self.semantic_ids) for beams in parts])

    def generate_beams(self, batch) -> Beams:
        return self._search_batch(batch, self.beam_widths, self.leaf_size if self.item_scoring == "generated" else 0)

    def search_parts(self, batch) -> tuple[Step, Constraint]:
        return self._search_parts(self._history(self._encode(batch), batch[self.ITEM_SEQ_LEN]))

    def programs(self) -> Programs:
        return make_programs(self)

    def _chunks(self, batch, widths: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """(number of the first user, batch)"""
        length = batch[self.ITEM_SEQ].shape[1]
        size = users_per_chunk(self.network.config, max(widths), length, self.decoding_memory)
        for start in range(0, len(batch), size):
            yield start, batch[start : start + size]

    def _search_batch(self, batch, widths: Sequence[int], leaf_size: int = 0) -> Beams:
        return self._search(self._encode(batch), batch[self.ITEM_SEQ_LEN], widths, leaf_size)

    def _search(self, states: Tensor, length: Tensor, widths: Sequence[int], leaf_size: int) -> Beams:
        """Confidence-guided Parallel Denoising (CPD; paper, Sec. 3.4)."""
        history = self._history(states, length)
        step, constraint = self._search_parts(history)
        leaf_size = max(leaf_size, int(self.normalize_codes))
        return beam_search(step, constraint, widths, len(length), history.bias.device, leaf_size)

    def _history(self, states: Tensor, length: Tensor) -> EncodedHistory:
        last = states[torch.arange(len(length), device=length.device), length - 1]  # [U, d]
        return self.network.precompute_kv(states, length)._replace(prior=self._prior(last))

    def _search_parts(self, history: EncodedHistory) -> tuple[Step, Constraint]:
        constraint = make_constraint(
            self.decoding, self.path_merge, self.normalize_codes, self.semantic_ids, self.order_seed
        )
        return make_step(self.network, history), constraint


def _items_before(targets: Targets, items: Tensor) -> Tensor:
    """Of the histories [B, L], what each target's has: [T, L], 0 for none."""
    is_later = torch.arange(items.shape[1], device=items.device) > targets.position[:, None]
    return items[targets.row].masked_fill(is_later, 0)

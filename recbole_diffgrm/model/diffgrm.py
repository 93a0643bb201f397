"""DiffGRM as a RecBole model: items become IDs on the way in, generated IDs become items on the way out.

With `item_head` items have vectors of their own as well, and a softmax over all items stands beside the decoder: then
items are ranked by both. With `every_position` a sample is a user's whole sequence, and every item of it is a target.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from recbole_diffgrm.decoding.beam import Ranked
from recbole_diffgrm.decoding.decoder import GeneratedIds, Policy, existing, search, users_at_once
from recbole_diffgrm.decoding.items import Seen
from recbole_diffgrm.decoding.scores import best_ids, mask_scores, scores_of_ids, top_items
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.model.sid_recommender import Lists, SidRecommender, joined
from recbole_diffgrm.network.network import DiffGRMNetwork, History, Shape
from recbole_diffgrm.network.noising import Noising, digit_losses, even_schedule, make_views, sample_losses
from recbole_diffgrm.network.statistics import digit_means, digit_sums


class Targets(NamedTuple):
    """What is to be predicted, and from where."""

    row: Tensor  # [T] sample of the batch
    place: Tensor  # [T] last item of its history that is known
    item: Tensor  # [T]

    def some(self, count: int | None) -> "Targets":
        """At most `count` of each sample, drawn at random; None: all."""
        if count is None:
            return self
        order = torch.rand(len(self.row), device=self.row.device).argsort()
        order = order[self.row[order].argsort(stable=True)]  # by sample, in random order within each
        number = torch.arange(len(order), device=order.device) - torch.searchsorted(self.row, self.row)
        kept = order[number < count]
        return Targets(self.row[kept], self.place[kept], self.item[kept])


class Scored(NamedTuple):
    ids: GeneratedIds
    scores: Tensor  # [B, items], of every item


class DiffGRM(SidRecommender):
    def __init__(self, config, dataset):
        super().__init__(config, dataset)
        digits = self.catalogue.digits
        self.has_item_head, self.id_weight = config["item_head"], config["id_weight"]
        self.register_buffer("text_vectors", dataset.text_vectors if config["item_text"] else None)  # [items, t]
        self.every_position, self.id_targets = config["every_position"], config["id_targets"]
        self.network = DiffGRMNetwork(
            Shape(
                digits=digits,
                codes=self.catalogue.codes,
                width=config["hidden_size"],
                inner_width=config["inner_size"],
                heads=config["n_heads"],
                encoder_layers=config["encoder_layers"],
                decoder_layers=config["decoder_layers"],
                dropout=config["dropout_prob"],
                max_length=config["MAX_ITEM_LIST_LENGTH"],
                sink=config["cross_attention_sink"],
                encoder_dropout=config["encoder_dropout_prob"],
                causal=self.every_position,
                text=0 if self.text_vectors is None else self.text_vectors.shape[1],
                items=self.n_items if self.has_item_head else 0,
            )
        )
        self.noising = noising_of(config, digits)
        self.loss_weighting = config["loss_weighting"]
        self.label_smoothing = config["label_smoothing"]
        self.policy = Policy(config["decoding"], config["merge"], config["seed"])
        self.beam, self.valid_beam = _widths(config["beam_size"]), _widths(config["valid_beam_size"])
        self.decoding_memory = config["decoding_memory"]

    def calculate_loss(self, interaction) -> Tensor | tuple[Tensor, Tensor]:
        """Of the IDs and, with the item head, of the items."""
        states, targets = self._read(interaction), self._targets(interaction)
        losses = [self._id_loss(states, targets.some(self.id_targets))]
        if self.has_item_head:
            logits = self._item_logits(states, targets, interaction[self.ITEM_SEQ])
            losses.append(F.cross_entropy(logits, targets.item))
        return tuple(losses) if len(losses) > 1 else losses[0]

    def _id_loss(self, states: Tensor, targets: Targets) -> Tensor:
        sids = self.catalogue.sids(targets.item)  # [T, n]
        history = self.network.project(states, targets.place + 1, targets.row if self.every_position else None)
        views = make_views(self.network, history, sids, self.noising)
        losses = digit_losses(views, sids, self.label_smoothing)
        self.step_sums = digit_sums(views, losses, sids, self.noising.confidence)
        return sample_losses(losses, views.masked, self.loss_weighting).mean()

    def _targets(self, interaction) -> Targets:
        items, length, target = (interaction[name] for name in (self.ITEM_SEQ, self.ITEM_SEQ_LEN, self.ITEM_ID))
        if not self.every_position:
            return Targets(torch.arange(len(target), device=target.device), length - 1, target)
        following = F.pad(items[:, 1:], (0, 1)).scatter(1, length[:, None] - 1, target[:, None])  # [B, L]
        row, place = torch.nonzero(following, as_tuple=True)
        return Targets(row, place, following[row, place])

    def _item_logits(self, states: Tensor, targets: Targets, items: Tensor) -> Tensor:
        """[T, items]"""
        everything = torch.arange(self.n_items, device=items.device)
        vectors = self._vectors(everything)
        is_later = torch.arange(items.shape[1], device=items.device) > targets.place[:, None]
        seen = items[targets.row].masked_fill(is_later, 0)  # [T, L]
        return self.network.item_logits(states[targets.row, targets.place], vectors, seen)

    def _read(self, interaction) -> Tensor:
        """States of the history's items [B, L, d]."""
        return self.network.read(self._vectors(interaction[self.ITEM_SEQ]), interaction[self.ITEM_SEQ_LEN])

    def _vectors(self, items: Tensor) -> Tensor:
        """[...] -> [..., d]"""
        sids = self.catalogue.sids(items)
        if not self.has_item_head:
            return self.network.joined_digits(sids)
        return self.network.item_vectors(items, sids, None if self.text_vectors is None else self.text_vectors[items])

    def epoch_statistics(self, sums: Mapping[str, list[float]], epochs: int) -> dict[str, Any]:
        """What the trainer shows after each epoch. ESP, effective sample passes: epochs times views; the paper gives it
        for the best epoch."""
        return {"esp": epochs * self.noising.views, **digit_means(sums)}

    def find(self, interaction, validation: bool) -> GeneratedIds | Scored:
        ids = self.generate(interaction, validation)
        if not self.has_item_head:
            return ids
        length = interaction[self.ITEM_SEQ_LEN]
        last = Targets(torch.arange(len(length), device=length.device), length - 1, length)
        scores = self._item_logits(self._read(interaction), last, interaction[self.ITEM_SEQ])
        scores = scores.float().log_softmax(dim=-1)
        of_ids = scores_of_ids(ids.rows, ids.score, len(self.catalogue.lattice_ids))
        scores[:, 1:] += self.id_weight * of_ids[:, self.catalogue.row[1:].long()]
        return Scored(ids, scores)

    def lists(self, found: GeneratedIds | Scored, count: int, seen: Seen | None = None) -> Lists:
        if not self.has_item_head:
            return super().lists(found, count, seen)
        scores = mask_scores(found.scores.clone(), seen)
        items = top_items(scores, count)
        ids = len(self.catalogue.lattice_ids)
        rows = best_ids(scores, self.catalogue.row, ids, max(count, found.ids.rows.shape[1]))
        existing = (found.ids.rows >= 0).sum(1)
        return Lists(
            items, scores.gather(1, items), (items > 0).sum(1), rows, found.ids.generated, found.ids.distinct, existing
        )

    def full_sort_predict(self, interaction) -> Tensor:
        if not self.has_item_head:
            return super().full_sort_predict(interaction)
        return self.find(interaction, validation=False).scores

    def generate(self, interaction, validation: bool) -> GeneratedIds:
        """By beam search, as many users at once as the memory for it allows."""
        widths = self.valid_beam if validation else self.beam
        length = interaction[self.ITEM_SEQ].shape[1]
        chunk = users_at_once(self.network.shape, max(widths), length, self.decoding_memory)
        parts = [interaction[start : start + chunk] for start in range(0, len(interaction), chunk)]
        return joined([existing(self.search(part, widths), self.catalogue) for part in parts])

    def search(self, interaction, widths: Sequence[int]) -> Ranked:
        return search(self.network, self._encode(interaction), self.catalogue, widths, self.policy)

    def _encode(self, interaction) -> History:
        return self.network.project(self._read(interaction), interaction[self.ITEM_SEQ_LEN])


def _widths(beam: int | Sequence[int]) -> tuple[int, ...]:
    return (beam,) if isinstance(beam, int) else tuple(beam)


def noising_of(config, digits: int) -> Noising:
    kind, views = config["noising"], config["n_views"] or digits
    if kind == "random":
        schedule = (digits,) * views  # only their number counts
    else:
        if max(config["mask_schedule"] or [views]) > digits:
            raise UserError(f"n_views, mask_schedule: an ID has {digits} digits, so at most {digits} can be masked")
        schedule = tuple(config["mask_schedule"] or even_schedule(digits, views))
    return Noising(
        kind=kind,
        schedule=schedule,
        select=config["ocn_select"],
        refresh=config["ocn_refresh"],
        sample=config["ocn_sample"],
        confidence=config["ocn_confidence"],
        paths=config["coherent_paths"],
        ratio=config["random_ratio"],
    )

"""DiffGRM as a RecBole model: items become IDs on the way in, generated IDs become items on the way out."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from recbole_diffgrm.decoding.beam import Ranked
from recbole_diffgrm.decoding.decoder import GeneratedIds, Policy, existing, search, users_at_once
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.model.sid_recommender import SidRecommender, joined
from recbole_diffgrm.network.network import DiffGRMNetwork, History, Shape
from recbole_diffgrm.network.noising import Noising, digit_losses, even_schedule, make_views, sample_losses
from recbole_diffgrm.network.statistics import digit_means, digit_sums


class DiffGRM(SidRecommender):
    def __init__(self, config, dataset):
        super().__init__(config, dataset)
        digits = self.catalogue.digits
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
            )
        )
        self.noising = noising_of(config, digits)
        self.loss_weighting = config["loss_weighting"]
        self.label_smoothing = config["label_smoothing"]
        self.policy = Policy(config["decoding"], config["merge"], config["seed"])
        self.beam, self.valid_beam = _widths(config["beam_size"]), _widths(config["valid_beam_size"])
        self.decoding_memory = config["decoding_memory"]

    def calculate_loss(self, interaction) -> Tensor:
        target = self.catalogue.sids(interaction[self.ITEM_ID])  # [B, n]
        views = make_views(self.network, self._encode(interaction), target, self.noising)
        losses = digit_losses(views, target, self.label_smoothing)
        self.step_sums = digit_sums(views, losses, target, self.noising.confidence)
        return sample_losses(losses, views.masked, self.loss_weighting).mean()

    def epoch_statistics(self, sums: Mapping[str, list[float]], epochs: int) -> dict[str, Any]:
        """What the trainer shows after each epoch. ESP, effective sample passes: epochs times views; the paper gives it
        for the best epoch."""
        return {"esp": epochs * self.noising.views, **digit_means(sums)}

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
        return self.network.encode(self.catalogue.sids(interaction[self.ITEM_SEQ]), interaction[self.ITEM_SEQ_LEN])


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

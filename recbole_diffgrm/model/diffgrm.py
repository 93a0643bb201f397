"""DiffGRM as a RecBole model: items become IDs on the way in, scores of IDs become scores of items on the way out."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from recbole.model.abstract_recommender import SequentialRecommender
from recbole.utils import InputType
from torch import Tensor

from recbole_diffgrm.errors import UserError
from recbole_diffgrm.model.network import MASKED, DiffGRMNetwork, History, Shape
from recbole_diffgrm.model.noising import Noising, digit_losses, even_schedule, make_views, sample_losses
from recbole_diffgrm.model.statistics import digit_means, digit_sums


class DiffGRM(SequentialRecommender):
    input_type = InputType.POINTWISE
    uses_sids = True
    variable_length = True

    def __init__(self, config, dataset):
        super().__init__(config, dataset)
        names = dataset.id2token(dataset.iid_field, np.arange(1, self.n_items))
        table = dataset.tokenizer.table(names).astype(np.int64)  # [items, n]
        digits = table.shape[1]
        padding = np.zeros((1, digits), dtype=np.int64)  # item 0
        self.register_buffer("sids", torch.from_numpy(np.concatenate([padding, table])))
        self.network = DiffGRMNetwork(
            Shape(
                digits=digits,
                codes=dataset.tokenizer.size,
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

    def calculate_loss(self, interaction) -> Tensor:
        target = self.sids[interaction[self.ITEM_ID]]  # [B, n]
        views = make_views(self.network, self._encode(interaction), target, self.noising)
        losses = digit_losses(views, target, self.label_smoothing)
        self.step_sums = digit_sums(views, losses, target, self.noising.confidence)
        return sample_losses(losses, views.masked, self.loss_weighting).mean()

    def epoch_statistics(self, sums: Mapping[str, list[float]], epochs: int) -> dict[str, Any]:
        """What the trainer shows after each epoch. ESP, effective sample passes: epochs times views; the paper gives it
        for the best epoch."""
        return {"esp": epochs * self.noising.views, **digit_means(sums)}

    def full_sort_predict(self, interaction) -> Tensor:
        """[B, items]: the log-probability of each item's digits, predicted at once and taken as independent."""
        history, digits = self._encode(interaction), self.sids.shape[1]
        masked = torch.full((len(history.bias), 1, digits), MASKED, device=self.sids.device)
        states = self.network.decode(masked, history)
        scores = self.network.logits(states)[:, 0].log_softmax(dim=-1)  # [B, n, M]
        return sum(scores[:, digit, self.sids[:, digit]] for digit in range(digits))

    def predict(self, interaction) -> Tensor:
        """[B]: the score of one item a row."""
        return self.full_sort_predict(interaction).gather(1, interaction[self.ITEM_ID][:, None]).squeeze(1)

    def _encode(self, interaction) -> History:
        return self.network.encode(self.sids[interaction[self.ITEM_SEQ]], interaction[self.ITEM_SEQ_LEN])


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

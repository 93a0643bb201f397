"""A scoring model as someone who extends the project would write it (docs/extending.md)."""

import torch
import torch.nn.functional as F

from recbole_diffgrm.config.options import GeneralOptions, PositiveInt, option
from recbole_diffgrm.models.base import LossOutput, Model
from recbole_diffgrm.models.candidates import ItemScores


class LastItemOptions(GeneralOptions):
    """LastItem"""

    toy_width: PositiveInt = option("Width of the item embeddings.")


class LastItem(Model):
    """Scores items by the last one of the history."""

    Options = LastItemOptions
    variable_length = True

    def __init__(self, config, dataset):
        super().__init__(config, dataset)
        self.items = torch.nn.Embedding(self.n_items, config["toy_width"])
        self.next_items = torch.nn.Embedding(self.n_items, config["toy_width"])

    def losses(self, batch) -> LossOutput:
        return LossOutput({"item": F.cross_entropy(self._score(batch), batch[self.ITEM_ID])}, len(batch))

    def candidates(self, batch, depth: int, validation: bool = False) -> ItemScores:
        return ItemScores(self._score(batch))

    def _score(self, batch) -> torch.Tensor:
        last = batch[self.ITEM_SEQ].gather(1, batch[self.ITEM_SEQ_LEN][:, None] - 1).squeeze(1)
        return self.items(last) @ self.next_items.weight.T

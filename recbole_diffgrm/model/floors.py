"""Floors that a model has to beat, which learn nothing: the user's own history, and what is popular."""

import torch
import torch.nn.functional as F
from recbole.model.abstract_recommender import SequentialRecommender
from recbole.utils import InputType
from torch import Tensor

from recbole_diffgrm.decoding.decoder import GeneratedIds
from recbole_diffgrm.decoding.items import moved_up
from recbole_diffgrm.model.sid_recommender import SidRecommender


class HistoryCopy(SidRecommender):
    """The IDs of the user's history, the most recent first. Items may share them."""

    learns = False

    def generate(self, interaction, validation: bool) -> GeneratedIds:
        items, length = interaction[self.ITEM_SEQ], interaction[self.ITEM_SEQ_LEN]
        place = torch.arange(items.shape[1], device=items.device)
        is_item = place < length[:, None]  # [B, L]
        back = torch.where(is_item, length[:, None] - 1 - place, place)  # the most recent first, padding stays behind
        rows = self.catalogue.row[items.gather(1, back)].long().masked_fill(~is_item, -1)
        ordered, order = rows.sort(dim=1, stable=True)
        is_repeated = F.pad(ordered[:, 1:] == ordered[:, :-1], (1, 0))  # the first of equal ones is the most recent
        kept = is_item & ~torch.zeros_like(is_repeated).scatter(1, order, is_repeated)
        score = moved_up(-place.float().expand(rows.shape), kept, -torch.inf)
        return GeneratedIds(moved_up(rows, kept, -1), score, is_item.sum(1), kept.sum(1))


class Pop(SequentialRecommender):
    """Every user gets the items with the most interactions in training."""

    input_type = InputType.POINTWISE
    learns = False

    def __init__(self, config, dataset):
        super().__init__(config, dataset)
        self.register_buffer("popularity", dataset.popularity.float())  # [items]

    def full_sort_predict(self, interaction) -> Tensor:
        return self.popularity.repeat(len(interaction), 1)

    def predict(self, interaction) -> Tensor:
        return self.popularity[interaction[self.ITEM_ID]]

"""Non-learned baselines that a model has to beat: the user's own history, and what is popular."""

import torch
import torch.nn.functional as F

from recbole_diffgrm.generation.item_ranking import GeneratedSids, compact_left
from recbole_diffgrm.models.base import Model
from recbole_diffgrm.models.baselines_options import HistoryCopyOptions, PopOptions
from recbole_diffgrm.models.candidates import GeneratedItems, ItemScores


class HistoryCopy(Model):
    """The SIDs of the user's history, the most recent first. Items may share them."""

    Options = HistoryCopyOptions
    family = "baseline"
    trainable = False
    variable_length = True

    def __init__(self, config, dataset):
        super().__init__(config, dataset)
        self.semantic_ids = dataset.semantic_ids

    @classmethod
    def needs_sids(cls, config) -> bool:
        return True

    @classmethod
    def scores_every_item(cls, config, num_items: int) -> bool:
        return False

    def candidates(self, batch, depth: int, validation: bool = False) -> GeneratedItems:
        items, length = batch[self.ITEM_SEQ], batch[self.ITEM_SEQ_LEN]
        position = torch.arange(items.shape[1], device=items.device)
        is_item = position < length[:, None]  # [B, L]
        # The most recent first; padding stays at the end.
        source = torch.where(is_item, length[:, None] - 1 - position, position)
        rows = self.semantic_ids.sid_index[items.gather(1, source)].long().masked_fill(~is_item, -1)
        ordered, order = rows.sort(dim=1, stable=True)
        is_repeated = F.pad(ordered[:, 1:] == ordered[:, :-1], (1, 0))  # the first of equal ones is the most recent
        kept = is_item & ~torch.zeros_like(is_repeated).scatter(1, order, is_repeated)
        scores = compact_left(-position.float().expand(rows.shape), kept, -torch.inf)
        generated = GeneratedSids(compact_left(rows, kept, -1), scores, is_item.sum(1), kept.sum(1))
        return GeneratedItems(generated, self.semantic_ids, depth)


class Pop(Model):
    """Every user gets the items with the most interactions in training."""

    Options = PopOptions
    family = "baseline"
    trainable = False

    def __init__(self, config, dataset):
        super().__init__(config, dataset)
        self.register_buffer("popularity", dataset.popularity.float())  # [num_items]

    def candidates(self, batch, depth: int, validation: bool = False) -> ItemScores:
        return ItemScores(self.popularity.repeat(len(batch), 1))

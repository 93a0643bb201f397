"""What models that recommend by semantic IDs have in common: ranked IDs become ranked items, as lists and as scores."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from recbole.model.abstract_recommender import SequentialRecommender
from recbole.utils import InputType
from torch import Tensor

from recbole_diffgrm.decoding.decoder import GeneratedIds
from recbole_diffgrm.decoding.items import Seen, dense_scores, has_new_item, moved_up, rank_items


class Lists(NamedTuple):
    """What is recommended to each user, at both levels."""

    items: Tensor  # [B, count] best first, 0 for none
    item_score: Tensor  # [B, count] of each item, -inf for one that fills the list
    own: Tensor  # [B] how many of them have the IDs below; those behind them are popular ones that fill the list
    rows: Tensor  # [B, W] IDs as rows of the catalogue's, best first, -1 for none
    generated: Tensor  # [B] how many IDs the model gave
    distinct: Tensor  # [B] how many of them differ
    existing: Tensor  # [B] how many of those are in the catalogue


class SidRecommender(SequentialRecommender):
    """A subclass has `generate(interaction, validation) -> GeneratedIds`; `dataset.catalogue` says whose they are."""

    input_type = InputType.POINTWISE
    uses_sids = True
    variable_length = True

    def __init__(self, config, dataset):
        super().__init__(config, dataset)
        self.catalogue = dataset.catalogue

    def rank(self, interaction, count: int, seen: Seen | None = None, validation: bool = False) -> Lists:
        """The `count` best items of each user without those of `seen`, and the IDs that they come from."""
        return self.lists(self.find(interaction, validation), count, seen)

    def find(self, interaction, validation: bool) -> GeneratedIds:
        """The part of `rank` that does not depend on what is left out."""
        return self.generate(interaction, validation)

    def lists(self, found: GeneratedIds, count: int, seen: Seen | None = None) -> Lists:
        """An ID all of whose items are left out is left out too."""
        groups = self.catalogue.groups
        items, own = rank_items(found.rows, groups, self.catalogue.popular, count, seen)
        is_its = self.catalogue.row[items][:, :, None] == found.rows[:, None, :]  # [B, count, W]
        score = torch.where(is_its, found.score[:, None, :], -torch.inf).amax(-1)
        rows = found.rows
        if seen is not None:
            rows = moved_up(rows, has_new_item(rows, groups, seen), -1)
        return Lists(items, score, own, rows, found.generated, found.distinct, (found.rows >= 0).sum(1))

    def full_sort_predict(self, interaction) -> Tensor:
        """[B, items]: scores that order all items as `rank` does, without ties. Minus the rank: the log-probability of
        an ID would be the same for all items that share it."""
        found = self.generate(interaction, validation=False)
        return dense_scores(found.rows, self.catalogue.groups, self.catalogue.popular)

    def predict(self, interaction) -> Tensor:
        """[B]: the score of one item a row."""
        return self.full_sort_predict(interaction).gather(1, interaction[self.ITEM_ID][:, None]).squeeze(1)


def joined(parts: list[GeneratedIds]) -> GeneratedIds:
    """Those of several chunks of users."""
    widest = max(part.rows.shape[1] for part in parts)
    empty = {"rows": -1, "score": -torch.inf}

    def column(name: str) -> Tensor:
        values = [getattr(part, name) for part in parts]
        if name in empty:
            values = [F.pad(value, (0, widest - value.shape[1]), value=empty[name]) for value in values]
        return torch.cat(values)

    return GeneratedIds(*map(column, GeneratedIds._fields))

"""The items of a split as tokenization sees them: sorted by item id, so that SIDs do not depend on item numbers."""

from dataclasses import dataclass

import numpy as np

from recbole_diffgrm.data.columns import sort_order
from recbole_diffgrm.data.splits import Split


@dataclass(frozen=True)
class SplitItems:
    item_ids: np.ndarray  # [N] objects: str, sorted
    number: np.ndarray  # [N] item number in the dataset, from 1
    in_training: np.ndarray  # [N] bool: occurs in training; only these may shape vectors and codebooks
    test_targets: np.ndarray  # [test users] item id of each target

    @classmethod
    def from_split(cls, split: Split) -> "SplitItems":
        order = sort_order(split.item_ids)
        targets = split.test.inter_feat[split.dataset.iid_field].numpy()
        return cls(
            split.item_ids[order],
            1 + order,
            split.popularity.numpy()[1:][order] > 0,
            split.item_ids[targets - 1],
        )

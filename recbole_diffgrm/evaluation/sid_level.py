"""The paper's level: a hit is the target's ID, whichever of the items that share it is the target.

These metrics have names of their own (sid_recall@10, sid_ndcg@10) and are never put in the place of RecBole's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from recbole_diffgrm.config.config import sid_metric_names
from recbole_diffgrm.evaluation.significance import ndcg_at


def is_sid_metric(name: str) -> bool:
    return name.startswith("sid_")


# What is said of the IDs and lists themselves.
SHARES = {
    "existing": "of the different IDs generated exist",
    "duplicates": "of the IDs generated repeat an earlier one",
    "filled": "of the places in item lists are filled with popular items",
    "shared_targets": "of the targets share their ID with other items",
}


def describe_shares(shares: dict[str, float]) -> str:
    return "\n".join(f"{shares[name]:6.1%} {words}" for name, words in SHARES.items())


def sid_metrics(ranks: Tensor, topk: Sequence[int]) -> dict[str, float]:
    """Out of the ranks of the targets' IDs, from 1."""
    ranks = ranks.numpy()
    values = [(ranks <= k).mean() for k in topk] + [ndcg_at(ranks, k).mean() for k in topk]
    return dict(zip(sid_metric_names(topk), map(float, values)))


@dataclass
class IdCounts:
    """Of all users that were evaluated."""

    longest: int  # items of a list that count
    users: int = 0
    generated: int = 0
    distinct: int = 0
    existing: int = 0
    own_items: int = 0
    shared_targets: int = 0

    def add(self, lists, group_size: Tensor) -> None:
        """`lists` of a model, and how many items [B] have the ID of each target."""
        self.users += len(group_size)
        self.generated += int(lists.generated.sum())
        self.distinct += int(lists.distinct.sum())
        self.existing += int(lists.existing.sum())
        self.own_items += int(lists.own.clamp(max=self.longest).sum())
        self.shared_targets += int((group_size > 1).sum())

    def shares(self) -> dict[str, float]:
        """As in SHARES."""
        return {
            "existing": self.existing / max(1, self.distinct),
            "duplicates": 1 - self.distinct / max(1, self.generated),
            "filled": 1 - self.own_items / max(1, self.users * self.longest),
            "shared_targets": self.shared_targets / max(1, self.users),
        }

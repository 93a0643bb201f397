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


def describe_shares(shares: dict[str, float]) -> str:
    return (
        "{existing:.1%} of the generated IDs exist, {duplicates:.1%} are duplicates; {shared_targets:.1%} of the "
        "targets share their ID with other items"
    ).format(**shares)


def sid_metrics(ranks: Tensor, topk: Sequence[int]) -> dict[str, float]:
    """Out of the ranks of the targets' IDs, from 1."""
    ranks = ranks.numpy()
    values = [(ranks <= k).mean() for k in topk] + [ndcg_at(ranks, k).mean() for k in topk]
    return dict(zip(sid_metric_names(topk), map(float, values)))


@dataclass
class IdCounts:
    """Of all users that were evaluated."""

    users: int = 0
    generated: int = 0
    distinct: int = 0
    existing: int = 0
    shared_targets: int = 0

    def add(self, lists, group_size: Tensor) -> None:
        """`lists` of a model, and how many items [B] have the ID of each target."""
        self.users += len(group_size)
        for name in ("generated", "distinct", "existing"):
            setattr(self, name, getattr(self, name) + int(getattr(lists, name).sum()))
        self.shared_targets += int((group_size > 1).sum())

    def shares(self) -> dict[str, float]:
        return {
            "existing": self.existing / max(1, self.distinct),  # of the different IDs that were generated
            "duplicates": 1 - self.distinct / max(1, self.generated),
            "shared_targets": self.shared_targets / max(1, self.users),
        }

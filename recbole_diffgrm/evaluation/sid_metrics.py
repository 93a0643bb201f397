"""The paper's level: a hit is the target's semantic ID, whichever of the items that share it is the target.

These metrics have names of their own (sid_recall@10, sid_ndcg@10) and never take the place of RecBole's.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor

from recbole_diffgrm.config.build import sid_metric_names
from recbole_diffgrm.evaluation.significance import ndcg_at

# Shares that say how far to trust the metrics: name, what it is a share of.
SID_SHARES = {
    "existing": "of the distinct generated SIDs exist",
    "duplicates": "of the generated SIDs repeat an earlier one",
    "filled": "of the list positions are filled with popular items",
    "scored": "of the items are scored",
    "shared_targets": "of the targets share their SID with other items",
}


def is_sid_metric(name: str) -> bool:
    return name.startswith("sid_")


def sid_metrics(ranks: Tensor, topk: Sequence[int]) -> dict[str, float]:
    """From the ranks of the targets' SIDs."""
    values = ranks.numpy()
    metrics = [(values <= k).mean() for k in topk] + [ndcg_at(values, k).mean() for k in topk]
    return dict(zip(sid_metric_names(topk), map(float, metrics)))


def sid_shares(counts: Mapping[str, int], list_length: int) -> dict[str, float]:
    """SID_SHARES, from the counts of all users (Candidates.count_sids), lists cut at `list_length`. Models that score
    every item generate nothing: only the share of shared targets is theirs."""
    shared = {"shared_targets": counts["shared_targets"] / max(1, counts["users"])}
    if "generated" not in counts:
        return shared
    shares = {
        "existing": counts["existing"] / max(1, counts["distinct"]),
        "duplicates": 1 - counts["distinct"] / max(1, counts["generated"]),
        "filled": 1 - counts["generated_items"] / max(1, counts["users"] * list_length),
    }
    if "scored" in counts:  # generate, then rank
        shares["scored"] = counts["scored"] / max(1, counts["scored_at_most"])
    return shares | shared


def describe_shares(shares: Mapping[str, float]) -> str:
    return "\n".join(f"{shares[name]:6.1%} {words}" for name, words in SID_SHARES.items() if name in shares)

"""What a model recommends to a batch of users, ready to be ranked with or without the items they have seen.

Computed once per batch; evaluation and serving ask it for the best items and for the ranks of targets. Higher scores
come first, then smaller item numbers. Letters in shapes: B users, N items numbered from 1 (0 is padding), W generated
SIDs, D distinct SIDs.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from recbole_diffgrm.generation.item_ranking import (
    GeneratedSids,
    RankedPairs,
    SeenPairs,
    best_score_per_sid,
    compact_left,
    dense_ranks,
    dense_scores,
    has_unseen_item,
    list_items,
    mask_scores,
    rank_items,
    rank_sids,
    top_items,
)
from recbole_diffgrm.generation.semantic_ids import SemanticIds

NOT_RANKED = torch.iinfo(torch.int32).max  # rank of a target that is filtered out, or beyond the end of the list


class TopK(NamedTuple):
    items: Tensor  # [B, k] best first, 0 for none
    scores: Tensor  # [B, k] -inf for an item that only fills the list


class Candidates(ABC):
    @abstractmethod
    def top_k(self, k: int, exclude: SeenPairs | None = None) -> TopK:
        """The best items of each user without those of `exclude`."""

    @abstractmethod
    def target_rank(self, target: Tensor, exclude: SeenPairs | None = None) -> Tensor:
        """[B] int32 rank of each user's target item, from 1; NOT_RANKED where it is not in the ranking."""

    @abstractmethod
    def dense_scores(self) -> Tensor:
        """[B, N + 1]: scores that order all items as `top_k` does."""

    def is_finite(self) -> bool:
        """Are the scores numbers? -inf is one for what cannot be recommended; NaN and +inf come from weights that have
        diverged, and rank nothing."""
        # The best of each user: the largest value of a row with NaN is NaN, and that of a row of -inf ranks nothing.
        return bool(self.dense_scores().amax(1).isfinite().all())

    def full_target_rank(self, target: Tensor, exclude: SeenPairs | None = None) -> Tensor:
        """[B] int32 like `target_rank`, but in a ranking of all items."""
        return ItemScores(self.dense_scores()).target_rank(target, exclude)

    def sampled_target_rank(self, target: Tensor, negatives: Tensor, exclude: SeenPairs | None = None) -> Tensor:
        """[B] int32 rank of each user's target among it and `negatives` [B, n], in the order of a ranking of all items;
        NOT_RANKED where that has no place for the target."""
        scores = self.dense_scores()
        own, theirs = scores.gather(1, target[:, None]), scores.gather(1, negatives)
        is_before = (theirs > own) | ((theirs == own) & (negatives < target[:, None]))  # [B, n]
        rank = torch.where(own.squeeze(1) > -torch.inf, is_before.sum(1) + 1, NOT_RANKED).int()  # NaN neither
        if exclude is not None:
            row, seen = exclude
            rank[row[seen == target[row]]] = NOT_RANKED
        return rank

    def sid_target_rank(self, target: Tensor, exclude: SeenPairs | None = None) -> Tensor | None:
        """[B] int32 rank of the target's SID; None for models without SIDs."""
        return None

    def count_sids(self, target: Tensor, k: int, exclude: SeenPairs | None = None) -> dict[str, int]:
        """Counts for the shares reported beside SID metrics (evaluation.sid_metrics); empty for models without SIDs."""
        return {}


class ItemScores(Candidates):
    """A score for every item."""

    def __init__(self, scores: Tensor):
        self.scores = mask_scores(scores, None)  # [B, N + 1]

    def top_k(self, k: int, exclude: SeenPairs | None = None) -> TopK:
        scores = self._without(exclude)
        items = top_items(scores, k)
        return TopK(items, scores.gather(1, items))

    def target_rank(self, target: Tensor, exclude: SeenPairs | None = None) -> Tensor:
        score = self.scores.gather(1, target[:, None])  # [B, 1]
        item = torch.arange(self.scores.shape[1], device=target.device)
        is_before = (self.scores > score) | ((self.scores == score) & (item < target[:, None]))  # [B, N + 1]
        before = is_before.sum(1)
        is_ranked = score.squeeze(1) > -torch.inf  # not NaN either
        if exclude is not None:
            row, seen = unique_pairs(exclude, self.scores.shape[1])
            before -= torch.bincount(row[is_before[row, seen]], minlength=len(target))
            is_ranked[row[seen == target[row]]] = False
        return torch.where(is_ranked, before + 1, NOT_RANKED).int()

    def dense_scores(self) -> Tensor:
        return self.scores

    def _without(self, exclude: SeenPairs | None) -> Tensor:
        return self.scores if exclude is None else mask_scores(self.scores.clone(), exclude)


class SidItemScores(ItemScores):
    """A score for every item, of items that have SIDs. A SID ranks where its best item does."""

    def __init__(self, scores: Tensor, semantic_ids: SemanticIds):
        super().__init__(scores)
        self.semantic_ids = semantic_ids

    def sid_target_rank(self, target: Tensor, exclude: SeenPairs | None = None) -> Tensor:
        sid_index = self.semantic_ids.sid_index
        best = best_score_per_sid(self._without(exclude), sid_index, self.semantic_ids.num_sids)  # [B, 1 + D]
        return ItemScores(best).target_rank(1 + sid_index[target].long())

    def count_sids(self, target: Tensor, k: int, exclude: SeenPairs | None = None) -> dict[str, int]:
        return _count_targets(self.semantic_ids.group_size(target))


class GeneratedItems(Candidates):
    """Items of generated SIDs, then the most popular other items, down to `depth`."""

    def __init__(self, generated: GeneratedSids, semantic_ids: SemanticIds, depth: int):
        self.generated, self.semantic_ids, self.depth = generated, semantic_ids, depth
        self._ranked: tuple[SeenPairs | None, Tensor, Tensor] | None = None

    def top_k(self, k: int, exclude: SeenPairs | None = None) -> TopK:
        items = self._rank(exclude)[0][:, :k] if k <= self.depth else self._rank_items(k, exclude)[0]
        is_of_sid = self.semantic_ids.sid_index[items][:, :, None] == self.generated.rows[:, None, :]  # [B, k, W]
        return TopK(items, torch.where(is_of_sid, self.generated.scores[:, None, :], -torch.inf).amax(-1))

    def target_rank(self, target: Tensor, exclude: SeenPairs | None = None) -> Tensor:
        return rank_in_list(self._rank(exclude)[0], target)

    def sid_target_rank(self, target: Tensor, exclude: SeenPairs | None = None) -> Tensor:
        """A SID all of whose items are filtered is filtered too."""
        rows = self.generated.rows
        if exclude is not None:
            rows = compact_left(rows, has_unseen_item(rows, self.semantic_ids.groups, exclude), -1)
        return rank_in_list(rows, self.semantic_ids.sid_index[target])

    def count_sids(self, target: Tensor, k: int, exclude: SeenPairs | None = None) -> dict[str, int]:
        return _count(self.generated, self._rank(exclude)[1], self.semantic_ids.group_size(target), k)

    def dense_scores(self) -> Tensor:
        """Minus the rank: the log-probability of a SID would be the same for all items that share it."""
        return dense_scores(self.generated.rows, self.semantic_ids.groups, self.semantic_ids.popular)

    def is_finite(self) -> bool:
        return bool((self.generated.scores < torch.inf).all())  # NaN neither

    def _rank(self, exclude: SeenPairs | None) -> tuple[Tensor, Tensor]:
        """Items [B, depth] and how many of them [B] were generated; kept for the next call with the same `exclude`."""
        if self._ranked is None or self._ranked[0] is not exclude:
            self._ranked = (exclude, *self._rank_items(self.depth, exclude))
        return self._ranked[1:]

    def _rank_items(self, k: int, exclude: SeenPairs | None) -> tuple[Tensor, Tensor]:
        return rank_items(self.generated.rows, self.semantic_ids.groups, self.semantic_ids.popular, k, exclude)


class RankedItems(Candidates):
    """Some items of every user with their scores, best first; then the most popular others, down to `depth`."""

    def __init__(self, pairs: RankedPairs, num_users: int, semantic_ids: SemanticIds, depth: int):
        self.pairs, self.num_users, self.semantic_ids, self.depth = pairs, num_users, semantic_ids, depth

    def top_k(self, k: int, exclude: SeenPairs | None = None) -> TopK:
        items, _ = self._list(k, exclude)
        row = torch.arange(self.num_users, device=items.device)[:, None]
        base = len(self.semantic_ids.popular) + 1
        key, order = (self.pairs.user * base + self.pairs.item).sort()
        wanted = row * base + items
        index = torch.searchsorted(key, wanted).clamp(max=len(key) - 1)
        scores = torch.where(key[index] == wanted, self.pairs.scores[order[index]], -torch.inf)
        return TopK(items, scores)

    def target_rank(self, target: Tensor, exclude: SeenPairs | None = None) -> Tensor:
        return rank_in_list(self._list(self.depth, exclude)[0], target)

    def sid_target_rank(self, target: Tensor, exclude: SeenPairs | None = None) -> Tensor:
        pairs = self.pairs.without(exclude, len(self.semantic_ids.popular))
        rows = rank_sids(pairs, self.semantic_ids.sid_index, self.num_users)
        return rank_in_list(rows, self.semantic_ids.sid_index[target])

    def count_sids(self, target: Tensor, k: int, exclude: SeenPairs | None = None) -> dict[str, int]:
        num_sids = int((rank_sids(self.pairs, self.semantic_ids.sid_index, self.num_users) >= 0).sum())
        return {
            **_count_targets(self.semantic_ids.group_size(target)),
            "generated": num_sids,
            "distinct": num_sids,
            "existing": num_sids,
            "generated_items": int(self._list(k, exclude)[1].sum()),
            "scored": len(self.pairs.item),
            "scored_at_most": self.num_users * len(self.semantic_ids.popular),
        }

    def dense_scores(self) -> Tensor:
        """Minus the rank: items that were not scored have only a rank."""
        return dense_ranks(self.pairs.user, self.pairs.item, self.num_users, self.semantic_ids.popular)

    def is_finite(self) -> bool:
        return bool((self.pairs.scores < torch.inf).all())  # NaN neither

    def _list(self, k: int, exclude: SeenPairs | None) -> tuple[Tensor, Tensor]:
        return list_items(self.pairs, self.num_users, self.semantic_ids.popular, k, exclude)


def _count(generated: GeneratedSids, num_generated_items: Tensor, group_size: Tensor, k: int) -> dict[str, int]:
    return {
        **_count_targets(group_size),
        "generated": int(generated.num_generated.sum()),
        "distinct": int(generated.num_distinct.sum()),
        "existing": int((generated.rows >= 0).sum()),
        "generated_items": int(num_generated_items.clamp(max=k).sum()),
    }


def _count_targets(group_size: Tensor) -> dict[str, int]:
    return {"users": len(group_size), "shared_targets": int((group_size > 1).sum())}


def rank_in_list(lists: Tensor, target: Tensor) -> Tensor:
    """[B] int32 rank from 1 of each row's target in its list [B, K]; NOT_RANKED where it is not there."""
    is_target = lists == target[:, None]
    return torch.where(is_target.any(1), is_target.int().argmax(1) + 1, NOT_RANKED).int()


def unique_pairs(pairs: SeenPairs, num_items: int) -> SeenPairs:
    """(row, item) pairs, each once: a history may hold an item several times."""
    key = torch.unique(pairs[0] * num_items + pairs[1])
    return key // num_items, key % num_items

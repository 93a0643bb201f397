"""The softmax over items that a model is trained with: over all of them, in chunks, or over a sample.

An item's logit is the product of a state with the item's vector; items of the history may have a bias. Letters in
shapes: T targets, L items of a history, K drawn items, N items numbered from 1 (0 is padding), d hidden size.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from recbole_diffgrm.nn.linear import linear
from recbole_diffgrm.nn.losses import cross_entropy_in_chunks

FULL_SOFTMAX = 100_000  # items up to which `auto` is the softmax over all of them

logger = logging.getLogger(__name__)

# Vectors [K, d] of items [K]; [1 + N, d] of padding and all items for None.
VectorsOf = Callable[[Tensor | None], Tensor]


class Repeats(NamedTuple):
    """What is added to the logits of items of the history, for each time they occur in it."""

    items: Tensor  # [T, L], 0 for none
    bias: Tensor  # []


class ItemSample(NamedTuple):
    items: Tensor  # [K] ascending; one that was drawn several times is there as often
    log_weight: Tensor  # [K] added to the logits, so that the sum of exponentials is that of all items on average


class ItemSoftmax(nn.Module):
    """The mean cross-entropy of targets. Draws are for one batch, and the same for all its targets."""

    cumulative: Tensor | None

    def __init__(self, popularity: Tensor, kind: str, num_drawn: int, first_class: int = 1):
        """`popularity` [1 + N]: of padding and the items, in training. `kind`: auto, full, sampled. `first_class`: 0
        makes padding a class of the full softmax."""
        super().__init__()
        num_items = len(popularity) - 1
        self.is_full = kind == "full" or (kind == "auto" and num_items <= FULL_SOFTMAX)
        self.num_drawn, self.first_class = num_drawn, first_class
        which = "over all" if self.is_full else f"over the target and {num_drawn:,} drawn"
        logger.info(f"item softmax {kind}: of {num_items:,} items, {which}")
        self.register_buffer("cumulative", None if self.is_full else draw_probabilities(popularity), persistent=False)

    def forward(self, states: Tensor, target: Tensor, vectors_of: VectorsOf, repeats: Repeats | None = None) -> Tensor:
        """From states [T, d] and target items [T]"""
        if repeats is None:
            repeats = Repeats(target.new_zeros(len(target), 0), states.new_zeros(()))
        if self.is_full:
            return full_softmax(states, target, vectors_of(None), repeats, self.first_class)
        assert self.cumulative is not None
        return sampled_softmax(states, target, draw_items(self.cumulative, self.num_drawn), vectors_of, repeats)


def full_softmax(states: Tensor, target: Tensor, vectors: Tensor, repeats: Repeats, first_class: int = 1) -> Tensor:
    """With the vectors of padding and all items [1 + N, d]."""

    def logits_of(states: Tensor, seen: Tensor, vectors: Tensor, bias: Tensor) -> Tensor:
        logits = linear(states, vectors)
        return _add_bias(logits, (seen - first_class).clamp(min=0), seen > 0, bias)

    return cross_entropy_in_chunks(
        [states, repeats.items],
        target - first_class,
        logits_of,
        len(vectors) - first_class,
        [vectors[first_class:], repeats.bias],
    )


def sampled_softmax(
    states: Tensor, target: Tensor, sample: ItemSample, vectors_of: VectorsOf, repeats: Repeats
) -> Tensor:
    """Over the target and the drawn items. A drawn item's logit has its log-Q correction; the target, which is there
    whatever is drawn, needs none, and is left out where it was drawn as well."""

    def logits_of(
        states: Tensor, seen: Tensor, target: Tensor, own_vector: Tensor, vectors: Tensor, bias: Tensor
    ) -> Tensor:
        own = (states * own_vector).sum(dim=1) + bias * (seen == target[:, None]).sum(dim=1)  # [T]
        logits = linear(states, vectors)  # [T, K]
        column = torch.searchsorted(sample.items, seen).clamp(max=len(sample.items) - 1)  # of the first draw
        logits = _add_bias(logits, column, (seen > 0) & (sample.items[column] == seen), bias)
        logits = (logits + sample.log_weight).masked_fill(sample.items == target[:, None], -torch.inf)
        return torch.cat([own[:, None].to(logits.dtype), logits], dim=1)

    return cross_entropy_in_chunks(
        [states, repeats.items, target, vectors_of(target)],
        torch.zeros_like(target),
        logits_of,
        1 + len(sample.items),
        [vectors_of(sample.items), repeats.bias],
    )


def _add_bias(logits: Tensor, column: Tensor, is_there: Tensor, bias: Tensor) -> Tensor:
    """To columns [T, L] of logits [T, K], those of items that are there, once for each time."""
    if column.shape[1] == 0:
        return logits
    return logits.scatter_add(1, column, torch.where(is_there, bias, 0.0).to(logits.dtype))


def draw_probabilities(popularity: Tensor) -> Tensor:
    """[1 + N] cumulative: half by how often an item occurs in training, half the same for all items. What is popular is
    the hardest to tell from the target; what is not must be possible."""
    count = popularity.double()
    count[0] = 0
    uniform = torch.ones_like(count) / (len(count) - 1)
    uniform[0] = 0
    return (count / count.sum().clamp(min=1) + uniform).cumsum(0)


def draw_items(cumulative: Tensor, count: int) -> ItemSample:
    """With replacement. All shapes are known beforehand, so nothing waits for a GPU."""
    total = cumulative[-1]
    where = torch.rand(count, dtype=cumulative.dtype, device=cumulative.device) * total
    items = torch.searchsorted(cumulative, where, right=True).clamp(1, len(cumulative) - 1).sort().values
    probability = (cumulative[items] - cumulative[items - 1]) / total
    return ItemSample(items, weigh_draws(items, probability))


def weigh_draws(items: Tensor, probability: Tensor) -> Tensor:
    """[K] of ascending items and the probability of each: the log of how often it was drawn over how often that is to
    be expected. All draws of an item count in its first; the others have no weight."""
    index = torch.searchsorted(items, items)  # of the first draw
    times = torch.searchsorted(items, items, right=True) - index
    weight = times.double().log() - (len(items) * probability.double()).log()
    is_first = index == torch.arange(len(items), device=items.device)
    return torch.where(is_first, weight, -torch.inf).float()

"""What training looks like digit by digit. Knows nothing of RecBole."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from recbole_diffgrm.model.noising import Views


@torch.no_grad()
def digit_sums(views: Views, losses: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Sums over a batch, each [n]: of many batches they add up to the statistics of an epoch."""
    best, guess = views.logits.max(dim=-1)  # [B, V, n]
    confidence = (best - views.logits.logsumexp(dim=-1)).exp()
    # Of the last view, which is the fully masked one wherever there is one.
    hardest = confidence[:, -1].masked_fill(~views.masked[:, -1], torch.inf).argmin(dim=1)  # [B]
    return {
        "masked": views.masked.sum(dim=(0, 1)),
        "loss": losses.sum(dim=(0, 1)),
        "correct": ((guess == target[:, None]) & views.masked).sum(dim=(0, 1)),
        "confidence": (confidence * views.masked).sum(dim=(0, 1)),
        "hardest": torch.bincount(hardest, minlength=target.shape[1]),
    }


def digit_means(sums: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Per digit: means over its masked places, and the share of samples in which it is the least confident one."""

    def per_masked(name: str) -> list[float]:
        return [total / max(1, count) for total, count in zip(sums[name], sums["masked"])]

    samples = sum(sums["hardest"])
    return {
        "digit_loss": per_masked("loss"),
        "digit_accuracy": per_masked("correct"),
        "digit_confidence": per_masked("confidence"),
        "digit_hardest": [count / samples for count in sums["hardest"]],
    }

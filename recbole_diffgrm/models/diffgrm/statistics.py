"""Training statistics of each digit."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from recbole_diffgrm.models.diffgrm.noising import Noising, Views


@torch.no_grad()
def digit_sums(views: Views, losses: Tensor, target: Tensor, noising: Noising) -> dict[str, Tensor]:
    """Sums over a batch, each [n] float: those of many batches add up to the statistics of an epoch.

    The hardest digit is that of the last view, by the difficulty of the noising: among all digits if that view masks
    all of them (ocn, coherent), else among those that it masks.
    """
    logits = views.logits.float()  # [B, V, n, M]
    best, guess = logits.max(dim=-1)  # [B, V, n]
    probability = (best - logits.logsumexp(dim=-1)).exp()
    difficulty = noising.difficulty(logits[:, -1]).masked_fill(~views.masked[:, -1], -torch.inf)
    per_digit = {
        "masked": views.masked,
        "loss": losses,
        "correct": (guess == target[:, None]) & views.masked,
        "confidence": probability * views.masked,
        "hardest": F.one_hot(difficulty.argmax(dim=1), target.shape[1])[:, None],
    }
    return {name: values.sum(dim=(0, 1)).float() for name, values in per_digit.items()}


def digit_means(sums: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Per digit: its share of all masked digits, means over the views that mask it, and how often it is the hardest."""

    def per_masked(name: str) -> list[float]:
        return [total / max(1, count) for total, count in zip(sums[name], sums["masked"])]

    def share(name: str) -> list[float]:
        return [count / sum(sums[name]) for count in sums[name]]

    return {
        "digit_masked": share("masked"),
        "digit_loss": per_masked("loss"),
        "digit_accuracy": per_masked("correct"),
        "digit_confidence": per_masked("confidence"),
        "digit_hardest": share("hardest"),
    }

"""Which digits of a target are masked in which view, and the loss on them. Knows nothing of RecBole.

A view is the target with some digits masked. On-policy Coherent Noising (OCN, the paper's) masks the digits that the
model finds hardest, in nested views: the m hardest, for each m of a schedule. Letters in shapes as in network.py.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from recbole_diffgrm.network.network import MASKED, DiffGRMNetwork, History


@dataclass(frozen=True)
class Noising:
    kind: str  # ocn | coherent (nested, random order) | random (each view drawn by itself)
    schedule: tuple[int, ...]  # digits masked in each view, ascending
    select: str = "least"  # ocn: `least` confident digits are masked first, or `most`
    refresh: bool = False  # ocn: estimate again after every digit shown, not once
    sample: bool = False  # ocn: draw digits in proportion to their difficulty, not in its order
    confidence: str = "msp"  # ocn: `msp` (largest probability) or `entropy`
    paths: int = 1  # coherent: nested sequences per sample
    ratio: float | None = None  # random: share of digits masked; None draws it for each view

    @property
    def views(self) -> int:
        """Views of each target, V."""
        return len(self.schedule) * (self.paths if self.kind == "coherent" else 1)


class Views(NamedTuple):
    masked: Tensor  # [B, V, n] bool
    logits: Tensor  # [B, V, n, M], meant for masked digits only


def even_schedule(digits: int, views: int) -> tuple[int, ...]:
    """As many masked digits for each view, in even steps up to all of them: 4 digits, 2 views: 2 and 4."""
    return tuple(-(-digits * (view + 1) // views) for view in range(views))


def make_views(network: DiffGRMNetwork, history: History, target: Tensor, noising: Noising) -> Views:
    """Noised views of the targets [B, n] and the network's predictions for them."""
    batch, digits = target.shape
    if noising.kind == "ocn" and noising.refresh:
        return _refreshed(network, history, target, noising)
    if noising.kind == "ocn":
        return _static(network, history, target, noising)
    if noising.kind == "coherent":
        order = torch.rand(noising.paths, batch, digits, device=target.device).argsort(dim=-1)
        masked = torch.cat([nested_masks(path, noising.schedule) for path in order], dim=1)
        return _predict(network, history, target, masked, sum(noising.schedule) * noising.paths)
    masked = _random_masks(batch, digits, noising, target.device)
    return _predict(network, history, target, masked, None)


def _predict(network: DiffGRMNetwork, history: History, target: Tensor, masked: Tensor, count: int | None) -> Views:
    """`count` digits are masked in the views of every sample; None: not as many in each."""
    shown = target[:, None].masked_fill(masked, MASKED)  # [B, V, n]
    wanted = None
    if count is not None and count < masked[0].numel():
        wanted = masked.flatten(1).int().argsort(dim=1, descending=True, stable=True)[:, :count]  # [B, count]
    return Views(masked, network.logits(network.decode(shown, history, wanted)))


def _static(network: DiffGRMNetwork, history: History, target: Tensor, noising: Noising) -> Views:
    """The fully masked view gives the order; it is the last of the schedule as well, so it is decoded only once."""
    everything = torch.ones_like(target, dtype=torch.bool)[:, None]
    is_view = noising.schedule[-1] == target.shape[1]
    with torch.set_grad_enabled(is_view and torch.is_grad_enabled()):
        probe = _predict(network, history, target, everything, None)
    order = masking_order(difficulty(probe.logits[:, 0].detach(), noising.confidence), noising)
    lighter = noising.schedule[:-1] if is_view else noising.schedule
    if not lighter:
        return probe
    views = _predict(network, history, target, nested_masks(order, lighter), sum(lighter))
    return Views(*(torch.cat(parts, dim=1) for parts in zip(views, probe))) if is_view else views


def _refreshed(network: DiffGRMNetwork, history: History, target: Tensor, noising: Noising) -> Views:
    """From fully masked on, show the digit that is last in the present order of masking, then look again."""
    masked = torch.ones_like(target, dtype=torch.bool)
    views = []
    for count in range(target.shape[1], noising.schedule[0] - 1, -1):
        view = _predict(network, history, target, masked[:, None], count)
        if count in noising.schedule:
            views.append(view)
        order = masking_order(difficulty(view.logits[:, 0].detach(), noising.confidence), noising)
        still = masked.gather(1, order)  # [B, n] in order: is it masked?
        last = order.shape[1] - 1 - still.flip(1).int().argmax(dim=1, keepdim=True)
        masked = masked.scatter(1, order.gather(1, last), False)
    return Views(*(torch.cat(parts, dim=1) for parts in zip(*reversed(views))))


def difficulty(logits: Tensor, confidence: str) -> Tensor:
    """[B, n, M] -> [B, n] in 0..1: one minus the largest probability, or the entropy as a share of the largest."""
    if confidence == "msp":
        return 1 - logits.softmax(dim=-1).amax(dim=-1)
    log_probability = logits.log_softmax(dim=-1)
    entropy = -(log_probability.exp() * log_probability).sum(dim=-1)
    return entropy / torch.log(torch.tensor(float(max(2, logits.shape[-1])), device=logits.device))


def masking_order(hardness: Tensor, noising: Noising) -> Tensor:
    """[B, n] digits in the order in which they are masked; equal ones by digit."""
    weight = hardness if noising.select == "least" else 1 - hardness
    if noising.sample:  # the largest of log weight + Gumbel noise: drawn without replacement, in proportion to weight
        noise = -torch.empty_like(weight).exponential_().log()
        weight = weight.clamp(min=1e-12).log() + noise
    return weight.argsort(dim=1, descending=True, stable=True)


def nested_masks(order: Tensor, schedule: tuple[int, ...]) -> Tensor:
    """[B, n] order -> [B, V, n]: view v masks the first schedule[v] digits of the order."""
    rank = order.argsort(dim=1)  # of each digit
    return rank[:, None, :] < torch.tensor(schedule, device=order.device)[:, None]


def _random_masks(batch: int, digits: int, noising: Noising, device) -> Tensor:
    views = len(noising.schedule)
    rank = torch.rand(batch, views, digits, device=device).argsort(dim=-1)
    if noising.ratio is None:
        count = torch.randint(1, digits + 1, (batch, views, 1), device=device)
    else:
        count = max(1, int(noising.ratio * digits + 0.5))
    return rank < count


def digit_losses(views: Views, target: Tensor, label_smoothing: float) -> Tensor:
    """[B, V, n] cross-entropy of the masked digits, 0 for the others."""
    labels = target[:, None].expand_as(views.masked)  # [B, V, n]
    losses = F.cross_entropy(
        views.logits.flatten(0, 2), labels.flatten(), reduction="none", label_smoothing=label_smoothing
    )
    return losses.view_as(labels) * views.masked


def sample_losses(losses: Tensor, masked: Tensor, kind: str) -> Tensor:
    """[B, V, n] -> [B]. `view_mean` (paper): the mean of each view, then of all views. `token_mean` (release): the mean
    of all masked digits, which weighs views by how much they mask."""
    if kind == "view_mean":
        return (losses.sum(dim=2) / masked.sum(dim=2)).mean(dim=1)
    return losses.sum(dim=(1, 2)) / masked.sum(dim=(1, 2))

"""Which digits of a target are masked in which view, and the loss on them.

A view is the target with some digits masked. Each kind of noising is one class, registered under its name of the option
`noising`; its fields are the keys that it reads. To add one, write a subclass of `Noising` with `@register("name")` and
give its keys defaults in properties/model/DiffGRM.yaml. Letters in shapes as in network.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import AfterValidator, Field

from recbole_diffgrm.config.options import Options, SmallInt, option
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.lazy import LazyModule

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor

    from recbole_diffgrm.models.diffgrm.network import DiffGRMNetwork, EncodedHistory
else:
    torch, F = LazyModule("torch"), LazyModule("torch.nn.functional")
    Tensor = DiffGRMNetwork = EncodedHistory = Any  # in annotations only


class Views(NamedTuple):
    masked: Tensor  # [B, V, n] bool
    logits: Tensor  # [B, V, n, M], meant for masked digits only


class Noising(Options, ABC):
    """How views are made. Keys that several kinds read are declared in a common base class."""

    @abstractmethod
    def num_views(self, num_digits: int) -> int:
        """Views of each target, V."""

    @abstractmethod
    def make_views(self, network: DiffGRMNetwork, history: EncodedHistory, target: Tensor) -> Views:
        """Noised views of the targets [B, n] and the network's predictions for them."""

    def difficulty(self, logits: Tensor) -> Tensor:
        """[B, n, M] -> [B, n] in 0..1: one minus the largest probability (Sec. 3.3)."""
        return 1 - logits.softmax(dim=-1).amax(dim=-1)

    def check(self, num_digits: int | None) -> None:
        """Raise a UserError if the options do not fit each other or the SIDs; None: their digits are not known yet."""


AnyNoising = TypeVar("AnyNoising", bound=type[Noising])
NOISINGS: dict[str, type[Noising]] = {}


def register(name: str) -> Callable[[AnyNoising], AnyNoising]:
    def add(noising: AnyNoising) -> AnyNoising:
        NOISINGS[name] = noising
        return noising

    return add


def _is_ascending(value: list[int]) -> list[int]:
    if not value or value != sorted(set(value)):
        raise ValueError
    return value


MaskSchedule = Annotated[
    list[SmallInt],
    AfterValidator(_is_ascending),
    Field(json_schema_extra={"expected": "ascending whole numbers from 1 on, such as [1, 2, 4]"}),
]


class _CountedNoising(Noising):
    n_views: SmallInt | None = option("Views of each target; ~ as many as a semantic ID has digits.")


class _NestedNoising(_CountedNoising):
    """Views whose masked digits are nested: coherent noising (Sec. 3.3)."""

    mask_schedule: MaskSchedule | None = option(
        "Noising ocn, coherent: masked digits of each view, such as [1, 2, 4]; ~ n_views even steps up to all digits."
    )

    def schedule(self, num_digits: int) -> tuple[int, ...]:
        """Masked digits of each view of a nested sequence, ascending."""
        return tuple(self.mask_schedule or even_schedule(num_digits, self.n_views or num_digits))

    def check(self, num_digits: int | None) -> None:
        if self.n_views is not None and self.mask_schedule is not None:
            raise UserError("n_views and mask_schedule: set only one of them")
        largest = max(self.mask_schedule or [self.n_views or 1])
        if num_digits is not None and largest > num_digits:
            raise UserError(
                f"n_views, mask_schedule: a semantic ID has {num_digits} digits, so at most {num_digits} can be masked"
            )


@register("ocn")
class OnPolicyCoherentNoising(_NestedNoising):
    """On-policy Coherent Noising (OCN, Sec. 3.3): masks the digits that are hardest for the model, in nested views."""

    ocn_select: Literal["least", "most"] = option(
        "Noising ocn: the least or the most confident digits are masked first."
    )
    ocn_refresh: bool = option("Noising ocn: estimate confidence again after each digit that is shown; False: once.")
    ocn_sample: bool = option(
        "Noising ocn: sample digits in proportion to their difficulty; False: take them in its order."
    )
    ocn_confidence: Literal["msp", "entropy"] = option(
        "Noising ocn: measure of confidence: msp (the largest probability) or entropy."
    )

    def num_views(self, num_digits: int) -> int:
        return len(self.schedule(num_digits))

    def make_views(self, network: DiffGRMNetwork, history: EncodedHistory, target: Tensor) -> Views:
        make = self._refreshed_views if self.ocn_refresh else self._static_views
        return make(network, history, target)

    def difficulty(self, logits: Tensor) -> Tensor:
        """[B, n, M] -> [B, n] in 0..1: by the largest probability, or the entropy divided by its largest value."""
        if self.ocn_confidence == "msp":
            return super().difficulty(logits)
        entropy = torch.special.entr(logits.softmax(dim=-1)).sum(dim=-1)
        return entropy / torch.log(torch.tensor(float(max(2, logits.shape[-1])), device=logits.device))

    def masking_order(self, difficulty: Tensor) -> Tensor:
        """[B, n] digits in the order in which they are masked, sigma of Eq. 5; ties by digit."""
        weight = difficulty if self.ocn_select == "least" else 1 - difficulty
        if self.ocn_sample:  # top-k of log weight + Gumbel noise: samples without replacement in proportion to weight
            noise = -torch.empty_like(weight).exponential_().log()
            weight = weight.clamp(min=1e-12).log() + noise
        return weight.argsort(dim=1, descending=True, stable=True)

    def _static_views(self, network: DiffGRMNetwork, history: EncodedHistory, target: Tensor) -> Views:
        """The fully masked view gives the order; if it is the last of the schedule too, it is decoded only once."""
        schedule = self.schedule(target.shape[1])
        all_masked = torch.ones_like(target, dtype=torch.bool)[:, None]
        is_view = schedule[-1] == target.shape[1]
        with torch.set_grad_enabled(is_view and torch.is_grad_enabled()):
            probe = predict_views(network, history, target, all_masked)
        order = self.masking_order(self.difficulty(probe.logits[:, 0].detach()))
        lighter = schedule[:-1] if is_view else schedule
        if not lighter:
            return probe
        views = predict_views(network, history, target, nested_masks(order, lighter), sum(lighter))
        return _concat_views([views, probe]) if is_view else views

    def _refreshed_views(self, network: DiffGRMNetwork, history: EncodedHistory, target: Tensor) -> Views:
        """From fully masked on, show the digit that is last in the current order of masking, then estimate again."""
        schedule = self.schedule(target.shape[1])
        masked = torch.ones_like(target, dtype=torch.bool)
        views = []
        for num_masked in range(target.shape[1], schedule[0] - 1, -1):
            view = predict_views(network, history, target, masked[:, None], num_masked)
            if num_masked in schedule:
                views.append(view)
            order = self.masking_order(self.difficulty(view.logits[:, 0].detach()))
            is_masked = masked.gather(1, order)  # [B, n], in order
            last = order.shape[1] - 1 - is_masked.flip(1).int().argmax(dim=1, keepdim=True)
            masked = masked.scatter(1, order.gather(1, last), False)
        return _concat_views(views[::-1])


@register("coherent")
class CoherentNoising(_NestedNoising):
    """Nested views in a random order of digits: OCN without on-policy selection (ablation 2.2)."""

    coherent_paths: SmallInt = option("Noising coherent: nested sequences of n_views views for each target.")

    def num_views(self, num_digits: int) -> int:
        return self.coherent_paths * len(self.schedule(num_digits))

    def make_views(self, network: DiffGRMNetwork, history: EncodedHistory, target: Tensor) -> Views:
        schedule = self.schedule(target.shape[1])
        order = torch.rand(self.coherent_paths, *target.shape, device=target.device).argsort(dim=-1)
        masked = torch.cat([nested_masks(path, schedule) for path in order], dim=1)
        return predict_views(network, history, target, masked, sum(schedule) * self.coherent_paths)


@register("random")
class RandomNoising(_CountedNoising):
    """Every view is masked independently, as in discrete diffusion models of text (ablation 2.1: without OCN)."""

    random_ratio: Annotated[float, Field(gt=0, le=1)] | None = option(
        "Noising random: share of the digits to mask; ~ samples their number for each view."
    )

    def num_views(self, num_digits: int) -> int:
        return self.n_views or num_digits

    def make_views(self, network: DiffGRMNetwork, history: EncodedHistory, target: Tensor) -> Views:
        batch_size, num_digits = target.shape
        shape = (batch_size, self.num_views(num_digits))
        rank = torch.rand(*shape, num_digits, device=target.device).argsort(dim=-1)
        num_masked: int | Tensor
        if self.random_ratio is None:
            num_masked = torch.randint(1, num_digits + 1, (*shape, 1), device=target.device)
        else:
            num_masked = max(1, int(self.random_ratio * num_digits + 0.5))
        return predict_views(network, history, target, rank < num_masked)


def predict_views(
    network: DiffGRMNetwork, history: EncodedHistory, target: Tensor, masked: Tensor, num_masked: int | None = None
) -> Views:
    """Targets [B, n], masked as in `masked` [B, V, n]. `num_masked`: masked digits of all views of a sample together,
    if every sample has the same number; the last layer computes only these."""
    from recbole_diffgrm.generation.semantic_ids import MASKED

    shown = target[:, None].masked_fill(masked, MASKED)  # [B, V, n]
    positions = None
    if num_masked is not None and num_masked < masked[0].numel():
        positions = masked.flatten(1).int().argsort(dim=1, descending=True, stable=True)[:, :num_masked]
    return Views(masked, network.predict(shown, history, positions))


def even_schedule(num_digits: int, num_views: int) -> tuple[int, ...]:
    """Masked digits of each view, in even steps up to all of them: 4 digits, 2 views: 2 and 4."""
    return tuple(-(-num_digits * (view + 1) // num_views) for view in range(num_views))


def nested_masks(order: Tensor, schedule: Sequence[int]) -> Tensor:
    """[B, n] order -> [B, V, n]: view v masks the first schedule[v] digits of the order (Eq. 5 and 6)."""
    rank = order.argsort(dim=1)  # of each digit
    return torch.stack([rank < num_masked for num_masked in schedule], dim=1)


def digit_losses(views: Views, target: Tensor, label_smoothing: float) -> Tensor:
    """[B, V, n] cross-entropy of the masked digits, 0 for the others (the terms of Eq. 3). Smoothing is over the codes
    that take part, those with finite logits."""
    labels, logits = target[:, None].expand_as(views.masked), views.logits  # [B, V, n], [B, V, n, M]
    losses = F.cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="none").view_as(labels)
    if label_smoothing:
        takes_part = logits > -torch.inf
        log_prob = logits.log_softmax(dim=-1).masked_fill(~takes_part, 0)
        losses = (1 - label_smoothing) * losses - label_smoothing * log_prob.sum(dim=-1) / takes_part.sum(dim=-1)
    return losses * views.masked


def sample_losses(losses: Tensor, masked: Tensor, weighting: str) -> Tensor:
    """[B, V, n] -> [B]. `view_mean` (the paper, Eq. 3 and 7): the mean of each view, then of all views. `token_mean`
    (the authors' release): the mean of all masked digits, so a view counts by the number of digits it masks."""
    if weighting == "view_mean":
        return (losses.sum(dim=2) / masked.sum(dim=2)).mean(dim=1)
    return losses.sum(dim=(1, 2)) / masked.sum(dim=(1, 2))


def _concat_views(parts: Sequence[Views]) -> Views:
    masked, logits = (torch.cat(column, dim=1) for column in zip(*parts))
    return Views(masked, logits)

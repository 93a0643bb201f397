"""How recommended SIDs were denoised: each step of the search's path to them, with the alternatives that lost.

The search keeps only its paths. What else it weighed at each step is found by following them again, all at once: one
call of the model per step. The results are plain data; `dataclasses.asdict` makes JSON of them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from recbole_diffgrm.generation.beam_search import Beams, Step
from recbole_diffgrm.generation.constraints import Branches, Children, Constraint, NoConstraint
from recbole_diffgrm.generation.ranges import number_within
from recbole_diffgrm.generation.semantic_ids import MASKED, SemanticIds

Sid = tuple[int, ...]
ANY = -1  # instead of a digit


@dataclass(frozen=True)
class Choice:
    """A way to fill one more digit."""

    digit: int  # from 0
    code: int
    probability: float  # of the code, given the history and the digits filled before
    items_left: int  # items of the catalogue that have it and the digits filled before


@dataclass(frozen=True)
class DenoisingStep:
    chosen: Choice
    alternatives: list[Choice]  # the most probable ones that were not taken, best first
    titles_left: list[str]  # of the most popular items that are left


@dataclass(frozen=True)
class Denoising:
    """Of one SID. Digits that no step fills were not searched for: one SID is left, or all that are left are ranked."""

    sid: list[int]
    is_generated: bool  # else the search lost it, and the steps fill the digit with the most probable code first
    num_items: int  # of the catalogue, before the first step
    steps: list[DenoisingStep]


@torch.inference_mode()
def trace(
    model: Any, batch: Any, titles: Sequence[str], sids: Sequence[Sid], num_alternatives: int = 5, num_titles: int = 5
) -> list[Denoising]:
    """Of each of the `sids`, for the one user of the batch, by a model that searches (models.base). `titles`: of items,
    by number."""
    if not sids:
        return []
    beams = model.generate_beams(batch)
    branch_of = find_branches(beams, model.semantic_ids)
    wanted = torch.full((len(sids), beams.sids.shape[2]), ANY, device=beams.order.device)  # [P, n]
    for row, sid in enumerate(sids):
        if sid in branch_of:
            wanted[row] = beams.order[0, branch_of[sid]]
    step, constraint = model.search_parts(batch[[0] * len(sids)])  # a copy of the user for each path
    order, of_steps = follow(step, constraint, torch.tensor(sids, device=wanted.device), wanted)
    everything, traces = _ItemsLeft.all(model.semantic_ids), []
    for row, sid in enumerate(sids):
        left, steps, is_generated = everything, [], sid in branch_of
        path = order[row][wanted[row] != ANY] if is_generated else order[row]
        for digit, children in zip(path.tolist(), of_steps):
            own = torch.nonzero(children.parent == row).flatten()
            chosen, others = _weigh(children.take(own), (digit, sid[digit]), left, num_alternatives)
            left = left.with_code(digit, sid[digit])
            shown = [titles[number] for number in left.numbers[:num_titles].tolist()]
            steps.append(DenoisingStep(chosen, others, shown))
        traces.append(Denoising(list(sid), is_generated, len(everything.numbers), steps))
    return traces


def find_branches(beams: Beams, semantic_ids: SemanticIds) -> dict[Sid, int]:
    """{SID: the best branch of the first user that is it, or that ends above it}, best first."""
    branches: dict[Sid, int] = {}
    for branch in torch.nonzero(beams.scores[0] > -math.inf).flatten().tolist():
        if beams.below is None or not beams.below.length[0, branch]:
            sids = beams.sids[0, branch][None]
        else:
            begin, length = (int(part[0, branch]) for part in beams.below[:2])
            sids = semantic_ids.sids[beams.below.rows[begin : begin + length]]
        for sid in sids.tolist():
            branches.setdefault(tuple(sid), branch)
    return branches


def follow(step: Step, constraint: Constraint, sids: Tensor, wanted: Tensor) -> tuple[Tensor, list[Children]]:
    """The search again, with one user and one branch for each of the `sids` [P, n], straight to them: the digits in the
    `wanted` order [P, n] or, where that says ANY, the one whose code is most probable. Returns the order [P, n], and
    all children that the branches had at each step."""
    if isinstance(constraint, NoConstraint):  # all codes are shown, also where the search takes but the best one
        constraint = replace(constraint, greedy_last=False)
    user, known, order = torch.arange(len(sids), device=sids.device), torch.full_like(sids, MASKED), wanted.clone()
    state, parent, of_steps = None, None, []
    for num_known in range(sids.shape[1]):
        log_probs = step(known[:, None], parent)[:, 0]  # [P, n, M]
        branches = Branches(user, log_probs[:, 0, 0], known, order, log_probs[:, :, 0])
        children = constraint.expand(branches, state, num_known, log_probs, user, width=log_probs[0].numel())
        asked = wanted[children.parent, num_known]
        leads_there = (children.code == sids[children.parent, children.digit]) & (
            (asked == ANY) | (children.digit == asked)
        )
        on_path = torch.nonzero(leads_there).flatten()
        on_path = on_path[children.log_prob[on_path].argsort(descending=True, stable=True)]
        on_path = on_path[children.parent[on_path].argsort(stable=True)]
        taken = children.take(on_path[number_within(children.parent[on_path]) == 0])  # the best of each path
        order[:, num_known] = taken.digit
        known = known.scatter(1, taken.digit[:, None], taken.code[:, None])
        state, parent = constraint.remember(taken), torch.zeros_like(user)[:, None]
        of_steps.append(children)
    return order, of_steps


def _weigh(
    children: Children, taken: tuple[int, int], left: "_ItemsLeft", num_alternatives: int
) -> tuple[Choice, list[Choice]]:
    """The child that was taken, and the best others."""
    order = children.log_prob.argsort(descending=True, stable=True)
    is_taken = (children.digit[order] == taken[0]) & (children.code[order] == taken[1])
    shown = torch.cat([order[is_taken], order[~is_taken][:num_alternatives]])
    parts = (part[shown].tolist() for part in (children.digit, children.code, children.log_prob.exp()))
    chosen, *others = (
        Choice(digit, code, probability, left.count(digit, code)) for digit, code, probability in zip(*parts)
    )
    return chosen, others


@dataclass(frozen=True)
class _ItemsLeft:
    """Items with some digits in common, most popular first."""

    numbers: Tensor  # [L] of the items
    sids: Tensor  # [L, n] their SIDs

    @classmethod
    def all(cls, semantic_ids: SemanticIds) -> "_ItemsLeft":
        popular = semantic_ids.popular.long()
        return cls(popular, semantic_ids.lookup(popular))

    def with_code(self, digit: int, code: int) -> "_ItemsLeft":
        has_code = self.sids[:, digit] == code
        return _ItemsLeft(self.numbers[has_code], self.sids[has_code])

    def count(self, digit: int, code: int) -> int:
        return int((self.sids[:, digit] == code).sum())

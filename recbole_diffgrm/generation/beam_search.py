"""Beam search over the digits of a semantic ID, for many users at once.

Confidence-guided Parallel Denoising (CPD, Sec. 3.4 of the paper): at every step a branch (a partial SID) may fill any
of its open digits with any code, and the best branches of a user go on (Eq. 8-10). One search serves every model; it is
composed of a step function, which predicts, and a constraint, which says what a branch may become:

- LatticeConstraint: only partial SIDs that exist, in any order of digits. A state that is reached in several orders is
  one branch, with the best score of them (`max`) or their summed probability (`logsumexp`; at the end their mean, which
  is the probability of the SID under a random order);
- TrieConstraint: only prefixes that exist, from left to right;
- NoConstraint: anything, in any order (the paper) or in a fixed one; whether a SID exists is checked afterwards.

Letters in shapes: U users, W branches of a user, n digits, M codes per digit.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from recbole_diffgrm.errors import divergence_error
from recbole_diffgrm.generation.lattice import (
    Children,
    Lattice,
    SidLists,
    children_of_more_digits,
    children_of_one_digit,
)
from recbole_diffgrm.generation.semantic_ids import MASKED
from recbole_diffgrm.generation.trie import Trie, children_of

# (partial SIDs [U, W, n] with the same number of known digits, parent of each branch [U, W] or None at the first step)
# -> log-probabilities of the codes [U, W, n, M]; those of known digits are not read. A step that keeps a cache per
# branch reorders it by `parent`.
Step = Callable[[Tensor, Tensor | None], Tensor]
State = TypeVar("State")


class BeamStep(NamedTuple):
    """How each branch was extended in a step; of merged branches, the one with the best score. All [U, W]."""

    parent: Tensor  # index among the branches before the step
    digit: Tensor  # filled in this step
    log_prob: Tensor  # of the code it was filled with


class Beams(NamedTuple):
    """SIDs of each user, best first. The score is -inf where a user has fewer than W."""

    sids: Tensor  # [U, W, n]
    scores: Tensor  # [U, W] log-probability
    steps: list[BeamStep]


@dataclass(frozen=True)
class Branches(Generic[State]):
    known: Tensor  # [U, W, n] codes, MASKED where open
    scores: Tensor  # [U, W] log-probability, -inf where there is no branch
    num_known: int  # digits, the same for all branches
    state: State  # what the constraint remembers of its branches


class Constraint(Protocol[State]):
    @property
    def num_digits(self) -> int: ...

    def root(self, num_users: int, device: torch.device | str) -> Branches[State]:
        """One branch per user, without known digits."""

    def extend(self, branches: Branches[State], log_probs: Tensor, width: int) -> tuple[Branches[State], BeamStep]:
        """The `width` best of all allowed branches with one more digit. log_probs: [U, W, n, M]"""


def beam_search(
    step: Step,
    constraint: Constraint[State],
    widths: Sequence[int],
    num_users: int,
    device: torch.device | str = "cpu",
) -> Beams:
    """`widths`: branches kept after each step; the last entry holds for all further steps."""
    branches = constraint.root(num_users, device)
    steps: list[BeamStep] = []
    for number in range(constraint.num_digits):
        log_probs = step(branches.known, steps[-1].parent if steps else None)
        if log_probs.amax().isnan():  # a branch with such a score would just be missing
            raise divergence_error("probabilities of codes are NaN")
        branches, beam_step = constraint.extend(branches, log_probs, widths[min(number, len(widths) - 1)])
        steps.append(beam_step)
    return Beams(branches.known, branches.scores, steps)


@dataclass(frozen=True)
class NoConstraint:
    """All M^n SIDs, whether they exist or not; a SID may be generated several times, in different orders."""

    num_digits: int
    codebook_size: int
    order: Sequence[int] | None = None  # fill the digits in this order
    greedy_last: bool = False  # each branch takes the best code of its last digit, as in the authors' release

    def root(self, num_users: int, device: torch.device | str) -> Branches[None]:
        return Branches(*_root(num_users, self.num_digits, device), 0, None)

    def extend(self, branches: Branches[None], log_probs: Tensor, width: int) -> tuple[Branches[None], BeamStep]:
        known, n, size = branches.known, self.num_digits, self.num_digits * self.codebook_size
        allowed = known == MASKED  # [U, W, n]
        if self.order is not None:
            allowed = allowed & (torch.arange(n, device=known.device) == self.order[branches.num_known])
        scores = branches.scores[..., None, None] + log_probs  # [U, W, n, M], Eq. 9
        scores = scores.masked_fill(~allowed[..., None], -torch.inf)
        if self.greedy_last and branches.num_known == n - 1:
            best, choice = scores.flatten(2).max(dim=2)  # [U, W]
            best, parent = (part[:, :width] for part in best.sort(dim=1, descending=True, stable=True))
            choice = choice.gather(1, parent)
        else:
            best, choice = scores.flatten(1).topk(min(width, scores[0].numel()), dim=1)  # Eq. 8 and 10
            parent, choice = choice // size, choice % size
        log_prob = log_probs.flatten(1).gather(1, parent * size + choice)
        known = known.gather(1, parent[..., None].expand(-1, -1, n))
        known, digit = _fill(known, choice, self.codebook_size)
        return Branches(known, best, branches.num_known + 1, None), BeamStep(parent, digit, log_prob)


class LatticeState(NamedTuple):
    newest: Tensor  # [U, W] the digit filled last
    below: SidLists | None  # [U, W] contain all SIDs that complete the branch; None as long as one digit is known


@dataclass(frozen=True)
class LatticeConstraint:
    """Existing partial SIDs only, in any order of digits; each state is one branch."""

    lattice: Lattice
    path_merge: str = "max"  # max, logsumexp

    @property
    def num_digits(self) -> int:
        return self.lattice.exists.shape[0]

    def root(self, num_users: int, device: torch.device | str) -> Branches[LatticeState | None]:
        return Branches(*_root(num_users, self.num_digits, device), 0, None)

    def extend(
        self, branches: Branches[LatticeState | None], log_probs: Tensor, width: int
    ) -> tuple[Branches[LatticeState | None], BeamStep]:
        extended, beam_step = self._extend(branches, log_probs, width)
        if extended.num_known < self.num_digits or self.path_merge == "max":
            return extended, beam_step
        mean_scores = extended.scores - math.lgamma(self.num_digits + 1)  # log n!: from the sum over orders to the mean
        return Branches(extended.known, mean_scores, extended.num_known, extended.state), beam_step

    def _extend(
        self, branches: Branches[LatticeState | None], log_probs: Tensor, width: int
    ) -> tuple[Branches[LatticeState | None], BeamStep]:
        if branches.state is None:
            return self._first_digit(branches, log_probs, width)
        num_users, num_branches, _ = branches.known.shape
        live = torch.nonzero(branches.scores.flatten() > -torch.inf).squeeze(1)  # [R] rows of [U * W]
        known = branches.known.flatten(0, 1)[live]  # [R, n]
        children = self._children(known, branches.state, live)
        row = live[children.parent]
        log_prob = log_probs.flatten(0, 1)[row, children.digit, children.code]
        scores = branches.scores.flatten()[row] + log_prob
        chosen, scores = _merge(row // num_branches, known, children, scores, len(self.lattice.sids), self.path_merge)
        user, chosen, scores, rank = _top_per_user(row[chosen] // num_branches, chosen, scores, width)
        known = known[children.parent[chosen]]
        known[torch.arange(len(chosen), device=known.device), children.digit[chosen]] = children.code[chosen]
        table = _Table(num_users, user, rank)
        digit = table.fill(children.digit[chosen])
        begin, length = (table.fill(part[chosen]) for part in children.below[:2])
        below = SidLists(begin, length, children.below.rows)
        state = LatticeState(digit, below)
        beam_step = BeamStep(table.fill(row[chosen] % num_branches), digit, table.fill(log_prob[chosen]))
        scores, known = table.fill(scores, -torch.inf), table.fill(known, MASKED)
        return Branches(known, scores, branches.num_known + 1, state), beam_step

    def _first_digit(
        self, branches: Branches[LatticeState | None], log_probs: Tensor, width: int
    ) -> tuple[Branches[LatticeState | None], BeamStep]:
        n, codebook_size = self.lattice.exists.shape
        scores = log_probs[:, 0].masked_fill(~self.lattice.exists, -torch.inf).flatten(1)  # [U, n * M]
        scores, choice = scores.topk(min(width, n * codebook_size), dim=1)
        known, digit = _fill(branches.known.repeat(1, choice.shape[1], 1), choice, codebook_size)
        beam_step = BeamStep(torch.zeros_like(choice), digit, scores)
        return Branches(known, scores, 1, LatticeState(digit, None)), beam_step

    def _children(self, known: Tensor, state: LatticeState, live: Tensor) -> Children:
        """Of the branches at the rows `live` of [U * W]; known: [R, n]."""
        newest = state.newest.flatten()[live]
        if state.below is None:
            return children_of_one_digit(self.lattice, newest, known.gather(1, newest[:, None]).squeeze(1))
        is_open = known == MASKED
        num_open = int(is_open[0].sum())
        open_digits = is_open.int().argsort(dim=1, descending=True, stable=True)[:, :num_open]  # [R, num_open]
        begin, length = (part.flatten()[live] for part in state.below[:2])
        return children_of_more_digits(
            self.lattice, known, open_digits, newest, SidLists(begin, length, state.below.rows)
        )


@dataclass(frozen=True)
class TrieConstraint:
    """Existing prefixes only, from left to right; the state is the node of each branch [U, W]."""

    trie: Trie

    @property
    def num_digits(self) -> int:
        return len(self.trie.level_start) - 2

    def root(self, num_users: int, device: torch.device | str) -> Branches[Tensor]:
        nodes = torch.zeros(num_users, 1, dtype=torch.int64, device=device)
        return Branches(*_root(num_users, self.num_digits, device), 0, nodes)

    def extend(self, branches: Branches[Tensor], log_probs: Tensor, width: int) -> tuple[Branches[Tensor], BeamStep]:
        num_users, num_branches, _ = branches.known.shape
        digit = branches.num_known
        live = torch.nonzero(branches.scores.flatten() > -torch.inf).squeeze(1)  # [R] rows of [U * W]
        children = children_of(self.trie, branches.state.flatten()[live])
        row = live[children.parent]
        log_prob = log_probs[:, :, digit].flatten(0, 1)[row, children.code]
        scores = branches.scores.flatten()[row] + log_prob
        every = torch.arange(len(row), device=row.device)
        user, chosen, scores, rank = _top_per_user(row // num_branches, every, scores, width)
        known = branches.known.flatten(0, 1)[row[chosen]]
        known[:, digit] = children.code[chosen]
        table = _Table(num_users, user, rank)
        parent = table.fill(row[chosen] % num_branches)
        beam_step = BeamStep(parent, torch.full_like(parent, digit), table.fill(log_prob[chosen]))
        scores, known = table.fill(scores, -torch.inf), table.fill(known, MASKED)
        return Branches(known, scores, digit + 1, table.fill(children.node[chosen])), beam_step


def _root(num_users: int, num_digits: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
    known = torch.full((num_users, 1, num_digits), MASKED, device=device)
    return known, torch.zeros(num_users, 1, device=device)


def _fill(known: Tensor, choice: Tensor, codebook_size: int) -> tuple[Tensor, Tensor]:
    """Branches [U, W, n] with the choice digit * M + code [U, W] filled in; and the digits [U, W]."""
    digit = choice // codebook_size
    return known.scatter(2, digit[..., None], (choice % codebook_size)[..., None]), digit


def _merge(
    user: Tensor, known: Tensor, children: Children, scores: Tensor, num_sids: int, path_merge: str
) -> tuple[Tensor, Tensor]:
    """One child for each state of a user, by user and state: (the best one that reaches it, the state's score)."""
    n = known.shape[1]
    bit = 2 ** torch.arange(n, device=known.device)
    subset = ((known != MASKED) * bit).sum(dim=1)[children.parent] + bit[children.digit]
    _, subset = torch.unique(subset, return_inverse=True)  # small numbers, so that the key does not overflow
    key = (user * (int(subset.max()) + 1) + subset) * num_sids + children.first
    key, order = torch.sort(key, stable=True)
    _, group, size = torch.unique_consecutive(key, return_inverse=True, return_counts=True)
    scores = scores[order]
    best = scores.new_full((len(size),), -torch.inf).scatter_reduce(0, group, scores, "amax")
    index = torch.arange(len(order), device=order.device).masked_fill_(scores < best[group], len(order))
    chosen = order[torch.full_like(size, len(order)).scatter_reduce(0, group, index, "amin")]
    if path_merge == "max":
        return chosen, best
    total = torch.zeros_like(best).index_add(0, group, (scores - best[group]).exp())
    return chosen, best + total.log()


def _top_per_user(user: Tensor, chosen: Tensor, scores: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The `width` best of every user, ties in the given order; and the rank of each among its user's."""
    order = scores.argsort(descending=True, stable=True)
    order = order[user[order].argsort(stable=True)]
    user, chosen, scores = user[order], chosen[order], scores[order]
    begins = torch.searchsorted(user, user)  # where the entries of each one's user begin
    rank = torch.arange(len(user), device=user.device) - begins
    kept = rank < width
    return user[kept], chosen[kept], scores[kept], rank[kept]


class _Table:
    """Values of branches, given one after the other, as a table of users and ranks."""

    def __init__(self, num_users: int, user: Tensor, rank: Tensor):
        self.shape, self.index = (num_users, int(rank.max()) + 1), (user, rank)

    def fill(self, values: Tensor, empty: float = 0) -> Tensor:
        """[R, ...] -> [U, W, ...]; `empty` where a user has fewer branches."""
        return values.new_full((*self.shape, *values.shape[1:]), empty).index_put_(self.index, values)

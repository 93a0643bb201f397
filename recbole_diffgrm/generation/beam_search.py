"""Beam search over the digits of a semantic ID, for many users at once.

Confidence-guided Parallel Denoising (CPD, Sec. 3.4 of the paper): at every step a branch (a partial SID) may fill any
of its open digits with any code, and the best branches of a user go on (Eq. 8-10). One search serves every model; it is
composed of a step function, which predicts, and a constraint, which says what a branch may become (constraints.py).

Where a constraint normalizes probabilities over codes that exist, what is left of a branch with one SID below it has
probability 1: with `leaf_size` 1 it is finished, and takes no further step. With a larger one branches end above
several SIDs, for others to choose among.

Letters in shapes: U users, W branches of a user, n digits, M codes per digit, R branches and C children of all users.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from recbole_diffgrm.errors import divergence_error
from recbole_diffgrm.generation.constraints import Branches, Children, Constraint
from recbole_diffgrm.generation.lattice import SidLists
from recbole_diffgrm.generation.ranges import number_within
from recbole_diffgrm.generation.semantic_ids import MASKED

# (partial SIDs [U, W, n] with the same number of known digits, parent of each branch [U, W] or None at the first step)
# -> log-probabilities of the codes [U, W, n, M]; those of known digits are not read. A step that keeps a cache per
# branch reorders it by `parent`. Where a user has fewer than W branches, the rest are copies of some other one.
Step = Callable[[Tensor, Tensor | None], Tensor]


class Beams(NamedTuple):
    """What each user's search found, best first. The score is -inf where a user has fewer than W."""

    sids: Tensor  # [U, W, n] MASKED where a digit is open: only above several SIDs
    scores: Tensor  # [U, W] log-probability
    order: Tensor  # [U, W, n] digits in the order in which they were filled, -1 after the last one
    log_probs: Tensor  # [U, W, n] of the codes they were filled with; of merged branches, the best one's
    below: SidLists | None = None  # [U, W] the SIDs below each, if the constraint knows them


def beam_search(
    step: Step,
    constraint: Constraint,
    widths: Sequence[int],
    num_users: int,
    device: torch.device | str = "cpu",
    leaf_size: int = 0,
) -> Beams:
    """`widths`: branches kept after each step; the last entry holds for all further steps. A branch with at most
    `leaf_size` SIDs below it is finished; one without an open digit always is."""
    n, path_merge = constraint.num_digits, constraint.path_merge
    branches, state, parent = _root(num_users, n, device), None, None
    leaves = _Leaves.none(branches)
    for num_known in range(n):
        table = _Table(num_users, branches.user)
        log_probs = step(table.fill(branches.known, branches.known[0]), parent).flatten(0, 1)  # [U * W, n, M]
        if log_probs.amax().isnan():  # a branch with such a score would just be missing
            raise divergence_error("probabilities of codes are NaN")
        width = widths[min(num_known, len(widths) - 1)]
        children = constraint.expand(branches, state, num_known, log_probs, table.row, width)
        is_leaf = _is_leaf(children, leaf_size, is_complete=num_known + 1 == n)
        # Times the number of orders of the digits still open: so finished and unfinished branches can be compared.
        log_orders = math.lgamma(n - num_known) if path_merge == "logsumexp" else 0.0
        found = _find(branches, children, is_leaf, log_orders)
        # Leaves of earlier steps compete with the children, and come before them.
        num_leaves = len(leaves.found.user)
        chosen, scores = _choose(_concat(leaves.found, found), path_merge, width)
        # Indices, not masks: a GPU is waited for once, to count them, not for everything that is taken by them.
        from_children, from_leaves = _divide(chosen >= num_leaves)
        child = chosen[from_children] - num_leaves
        grown = _grow(branches, children.take(child), scores[from_children], num_known)
        ends, others = _divide(is_leaf[child])
        leaves = leaves.take(chosen[from_leaves], scores[from_leaves])
        leaves = leaves.add(found.take(child[ends]), _take(grown, ends), children.take(child[ends]), constraint)
        if len(others) == 0:
            break
        kept = children.take(child[others])
        branches, state = _take(grown, others), constraint.remember(kept)
        branches = branches._replace(scores=branches.scores - log_orders)
        parent = _Table(num_users, branches.user).fill(table.slot[kept.parent])
    log_orders = math.lgamma(n + 1) if path_merge == "logsumexp" else 0.0
    return leaves.as_beams(num_users, widths[min(n, len(widths)) - 1], log_orders)


class _Found(NamedTuple):
    """What competes for a place in the beam. All [E]."""

    user: Tensor
    scores: Tensor
    known_digits: Tensor  # as bits; 0 for a leaf with one SID, which is the same leaf whatever is known
    first: Tensor  # the smallest SID below: equal users, known digits and first are the same state

    def take(self, index: Tensor) -> "_Found":
        return _Found(*(part[index] for part in self))


class _Leaves(NamedTuple):
    """Branches that are finished."""

    found: _Found
    branches: Branches
    below: SidLists

    @classmethod
    def none(cls, root: Branches) -> "_Leaves":
        nothing = root.user[:0]
        return cls(
            _Found(nothing, root.scores[:0], nothing, nothing),
            _take(root, nothing),
            SidLists(nothing, nothing, nothing),
        )

    def take(self, index: Tensor, scores: Tensor) -> "_Leaves":
        """Some of them, with their scores, to which other ways may have been added."""
        below = SidLists(self.below.begin[index], self.below.length[index], self.below.rows)
        branches = _take(self.branches, index)._replace(scores=scores)
        return _Leaves(self.found.take(index)._replace(scores=scores), branches, below)

    def add(self, found: _Found, branches: Branches, children: Children, constraint: Constraint) -> "_Leaves":
        nothing = torch.zeros_like(found.user)
        below = constraint.members(children) or SidLists(nothing, nothing, nothing[:0])
        if constraint.sids is not None and children.num_sids is not None:  # what is left of a SID follows
            sids = constraint.sids[found.first].to(branches.known.dtype)
            known = torch.where((children.num_sids == 1)[:, None], sids, branches.known)
            branches = branches._replace(known=known)
        lists = SidLists(
            torch.cat([self.below.begin, below.begin + len(self.below.rows)]),
            torch.cat([self.below.length, below.length]),
            torch.cat([self.below.rows, below.rows.long()]),
        )
        found = found._replace(scores=branches.scores)
        joined = Branches(*(torch.cat(parts) for parts in zip(self.branches, branches)))
        return _Leaves(_concat(self.found, found), joined, lists)

    def as_beams(self, num_users: int, width: int, log_orders: float) -> Beams:
        order, scores = _top_per_user(self.branches.user, self.branches.scores, width)
        user, _, *path = _take(self.branches, order)
        table = _Table(num_users, user)
        known, digits, log_probs = (table.fill(part, empty) for part, empty in zip(path, (MASKED, -1, 0)))
        begin, length = (table.fill(part[order]) for part in self.below[:2])
        below = SidLists(begin, length, self.below.rows)
        return Beams(known, table.fill(scores - log_orders, -torch.inf), digits, log_probs, below)


def _root(num_users: int, num_digits: int, device: torch.device | str) -> Branches:
    """One branch per user, without known digits."""
    user = torch.arange(num_users, device=device)
    digits = torch.full((num_users, num_digits), MASKED, device=device)
    zeros = torch.zeros(num_users, num_digits, device=device)
    return Branches(user, zeros[:, 0], digits, torch.full_like(digits, -1), zeros)


def _divide(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Indices where it is True, and where it is False."""
    is_true, is_false = torch.nonzero(mask), torch.nonzero(~mask)
    return is_true.squeeze(1), is_false.squeeze(1)


def _take(branches: Branches, index: Tensor) -> Branches:
    return Branches(*(part[index] for part in branches))


def _is_leaf(children: Children, leaf_size: int, is_complete: bool) -> Tensor:
    """[C]"""
    if is_complete or children.num_sids is None:
        return torch.full_like(children.parent, is_complete, dtype=torch.bool)
    return children.num_sids <= leaf_size


def _find(branches: Branches, children: Children, is_leaf: Tensor, log_orders: float) -> _Found:
    parent, first = children.parent, children.first
    scores = branches.scores[parent] + children.log_prob + log_orders
    if first is None or children.num_sids is None:
        return _Found(branches.user[parent], scores, torch.zeros_like(parent), torch.zeros_like(parent))
    bit = 2 ** torch.arange(branches.known.shape[1], device=parent.device)
    known_digits = ((branches.known != MASKED) * bit).sum(dim=1)[parent] + bit[children.digit]
    return _Found(
        branches.user[parent], scores, known_digits.masked_fill_(is_leaf & (children.num_sids == 1), 0), first
    )


def _concat(some: _Found, others: _Found) -> _Found:
    return _Found(*(torch.cat(parts) for parts in zip(some, others)))


def _choose(found: _Found, path_merge: str | None, width: int) -> tuple[Tensor, Tensor]:
    """The `width` best of every user, by user and best first, and their scores; of the same state only the best one."""
    if path_merge is None:
        return _top_per_user(found.user, found.scores, width)
    chosen, scores = _merge(found, path_merge)
    best, scores = _top_per_user(found.user[chosen], scores, width)
    return chosen[best], scores


def _merge(found: _Found, path_merge: str) -> tuple[Tensor, Tensor]:
    """One entry for each state of a user, by user and state: (the best one that reaches it, the state's score)."""
    _, subset = torch.unique(found.known_digits, return_inverse=True)  # small numbers: the key must not overflow
    key = (found.user * (int(subset.max()) + 1) + subset) * (int(found.first.max()) + 1) + found.first
    key, order = torch.sort(key, stable=True)
    _, group, size = torch.unique_consecutive(key, return_inverse=True, return_counts=True)
    scores = found.scores[order]
    best = scores.new_full((len(size),), -torch.inf).scatter_reduce(0, group, scores, "amax")
    index = torch.arange(len(order), device=order.device).masked_fill_(scores < best[group], len(order))
    chosen = order[torch.full_like(size, len(order)).scatter_reduce(0, group, index, "amin")]
    if path_merge == "max":
        return chosen, best
    total = torch.zeros_like(best).index_add(0, group, (scores - best[group]).exp())
    return chosen, best + total.log()


def _top_per_user(user: Tensor, scores: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The `width` best of every user, by user and best first, ties in the given order: (index, score)."""
    order = scores.argsort(descending=True, stable=True)
    order = order[user[order].argsort(stable=True)]
    user = user[order]
    order = order[number_within(user) < width]
    return order, scores[order]


def _grow(branches: Branches, children: Children, scores: Tensor, num_known: int) -> Branches:
    """The branches that children are."""
    user, _, known, order, log_probs = _take(branches, children.parent)
    known = known.scatter(1, children.digit[:, None], children.code[:, None])
    order[:, num_known] = children.digit
    log_probs = log_probs.to(children.log_prob.dtype)
    log_probs[:, num_known] = children.log_prob
    return Branches(user, scores, known, order, log_probs)


class _Table:
    """Values of branches, which are ordered by user, as a table of users and their branches [U, W]."""

    def __init__(self, num_users: int, user: Tensor):
        self.user, self.slot = user, number_within(user)
        self.shape = (num_users, int(self.slot.max()) + 1)
        self.row = user * self.shape[1] + self.slot  # of [U * W]

    def fill(self, values: Tensor, empty: float | Tensor = 0) -> Tensor:
        """[R, ...] -> [U, W, ...]; `empty` where a user has fewer branches."""
        table = empty.to(values.dtype) if isinstance(empty, Tensor) else values.new_full((), empty)
        table = table.expand(*self.shape, *values.shape[1:]).clone()
        return table.index_put_((self.user, self.slot), values)

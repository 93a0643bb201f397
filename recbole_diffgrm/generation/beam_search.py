"""Beam search over the digits of a semantic ID, for many users at once.

Confidence-guided Parallel Denoising (CPD, Sec. 3.4 of the paper): at every step a branch (a partial SID) may fill any
of its open digits with any code, and the best branches of a user go on (Eq. 8-10). One search serves every model; it is
composed of a step function, which predicts, and a constraint, which says what a branch may become:

- LatticeConstraint: only partial SIDs that exist, in any order of digits. A state that is reached in several orders is
  one branch, with the best score of them (`max`) or their summed probability (`logsumexp`; at the end their mean, which
  is the probability of the SID under a random order);
- TrieConstraint: only prefixes that exist, from left to right;
- NoConstraint: anything, in any order (the paper) or in a fixed one; whether a SID exists is checked afterwards.

The first two can normalize the probabilities of a digit over the codes that exist below the branch. What is left of a
branch with one SID below it then has probability 1: with `leaf_size` 1 it is finished, and takes no further step. With
a larger `leaf_size` branches end above several SIDs, for others to choose among.

Letters in shapes: U users, W branches of a user, n digits, M codes per digit, R branches and C children of all users.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from recbole_diffgrm.errors import divergence_error
from recbole_diffgrm.generation.lattice import (
    Lattice,
    SidLists,
    children_of_more_digits,
    children_of_one_digit,
)
from recbole_diffgrm.generation.ranges import expand_ranges, number_within
from recbole_diffgrm.generation.semantic_ids import MASKED
from recbole_diffgrm.generation.trie import Trie, children_of

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


class Branches(NamedTuple):
    """Of all users, by user. All [R] or [R, n]."""

    user: Tensor
    scores: Tensor
    known: Tensor  # codes, MASKED where open
    order: Tensor  # as in Beams
    log_probs: Tensor


class Children(NamedTuple):
    """Branches with one more digit. All [C]."""

    parent: Tensor  # index of the branch
    digit: Tensor
    code: Tensor
    log_prob: Tensor
    num_sids: Tensor | None = None  # that exist below; None: not known
    first: Tensor | None = None  # the smallest of these: with the set of known digits it identifies the state
    detail: Any = None  # for the constraint

    def take(self, index: Tensor) -> "Children":
        parts = [part[index] if isinstance(part, Tensor) else part for part in self]
        if isinstance(self.detail, SidLists):
            parts[-1] = SidLists(self.detail.begin[index], self.detail.length[index], self.detail.rows)
        return Children._make(parts)


class Constraint(Protocol):
    @property
    def num_digits(self) -> int: ...

    @property
    def path_merge(self) -> str | None:
        """What becomes of children that are the same state: max, logsumexp; None: there are none."""

    @property
    def sids(self) -> Tensor | None:
        """[D, n] that exist, if it knows them."""

    def expand(
        self, branches: Branches, state: Any, num_known: int, log_probs: Tensor, row: Tensor, width: int
    ) -> Children:
        """All that are allowed, or at least the `width` best of each user. log_probs: [U * W, n, M], those of branch r
        in row[r]. `state`: what `remember` gave for these branches, None at first."""

    def remember(self, children: Children) -> Any:
        """What the next `expand` needs to know of children that become branches."""

    def members(self, children: Children) -> SidLists | None:
        """The SIDs below each child."""


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


@dataclass(frozen=True)
class NoConstraint:
    """All M^n SIDs, whether they exist or not; a SID may be generated several times, in different orders."""

    num_digits: int
    codebook_size: int
    order: Sequence[int] | None = None  # fill the digits in this order
    greedy_last: bool = False  # each branch takes the best code of its last digit, as in the authors' release

    path_merge = None
    sids = None

    def expand(
        self, branches: Branches, state: None, num_known: int, log_probs: Tensor, row: Tensor, width: int
    ) -> Children:
        n = self.num_digits
        allowed = branches.known == MASKED  # [R, n]
        if self.order is not None:
            allowed = allowed & (torch.arange(n, device=allowed.device) == self.order[num_known])
        log_probs = log_probs[row].masked_fill(~allowed[..., None], -torch.inf).flatten(1)  # [R, n * M]
        greedy = self.greedy_last and num_known == n - 1
        best, choice = log_probs.topk(1 if greedy else min(width, log_probs.shape[1]), dim=1)  # Eq. 8 and 10
        parent, rank = torch.nonzero(best > -torch.inf, as_tuple=True)
        choice = choice[parent, rank]
        return Children(parent, choice // self.codebook_size, choice % self.codebook_size, best[parent, rank])

    def remember(self, children: Children) -> None:
        return None

    def members(self, children: Children) -> None:
        return None


class LatticeState(NamedTuple):
    newest: Tensor  # [R] the digit filled last
    below: SidLists  # [R] contain all SIDs that complete the branch


@dataclass(frozen=True)
class LatticeConstraint:
    """Existing partial SIDs only, in any order of digits; each state is one branch."""

    lattice: Lattice
    path_merge: str = "max"  # max, logsumexp
    normalize: bool = False

    @property
    def num_digits(self) -> int:
        return self.lattice.exists.shape[0]

    @property
    def sids(self) -> Tensor:
        return self.lattice.sids

    def expand(
        self,
        branches: Branches,
        state: LatticeState | None,
        num_known: int,
        log_probs: Tensor,
        row: Tensor,
        width: int,
    ) -> Children:
        if state is None:
            return self._first_digit(log_probs[row], width)
        known = branches.known
        if num_known == 1:
            code = known.gather(1, state.newest[:, None]).squeeze(1)
            children = children_of_one_digit(self.lattice, state.newest, code)
        else:
            is_open = (known == MASKED).int()
            open_digits = is_open.argsort(dim=1, descending=True, stable=True)[:, : self.num_digits - num_known]
            children = children_of_more_digits(self.lattice, known, open_digits, state.newest, state.below)
        log_prob = log_probs[row[children.parent], children.digit, children.code]
        if self.normalize:
            log_prob = normalize(log_prob, children.parent * self.num_digits + children.digit)
        return Children(*children[:3], log_prob, children.num_sids, children.first, children.below)

    def _first_digit(self, log_probs: Tensor, width: int) -> Children:
        """log_probs: [U, n, M]"""
        n, codebook_size = self.lattice.exists.shape
        log_probs = log_probs.masked_fill(~self.lattice.exists, -torch.inf)
        if self.normalize:
            log_probs = log_probs.log_softmax(dim=-1)
        # A SID that is alone in several cells is one leaf: of up to n cells the best counts, or their sum.
        count = n * codebook_size if self.path_merge == "logsumexp" else min(width * n, n * codebook_size)
        best, choice = log_probs.flatten(1).topk(count, dim=1)
        user, rank = torch.nonzero(best > -torch.inf, as_tuple=True)
        choice = choice[user, rank]
        begin, end = self.lattice.cell_start[choice].long(), self.lattice.cell_start[choice + 1].long()
        below = SidLists(begin, end - begin, self.lattice.cell_rows)
        digit, code = choice // codebook_size, choice % codebook_size
        return Children(user, digit, code, best[user, rank], end - begin, below.rows[begin].long(), below)

    def remember(self, children: Children) -> LatticeState:
        return LatticeState(children.digit, children.detail)

    def members(self, children: Children) -> SidLists:
        """Lists may hold SIDs of the parent with another code."""
        owner, index = expand_ranges(*children.detail[:2])
        row = children.detail.rows[index]
        fits = self.lattice.sids[row.long(), children.digit[owner]] == children.code[owner]
        length = torch.bincount(owner[fits], minlength=len(children.digit))
        return SidLists(length.cumsum(0) - length, length, row[fits])


@dataclass(frozen=True)
class TrieConstraint:
    """Existing prefixes only, from left to right; the state is the node of each branch."""

    trie: Trie
    sids: Tensor  # [D, n] of which the trie was built
    normalize: bool = False

    path_merge = None

    @property
    def num_digits(self) -> int:
        return len(self.trie.level_start) - 2

    def expand(
        self, branches: Branches, state: Tensor | None, num_known: int, log_probs: Tensor, row: Tensor, width: int
    ) -> Children:
        node = torch.zeros_like(branches.user) if state is None else state
        children = children_of(self.trie, node)
        log_prob = log_probs[row[children.parent], num_known, children.code]
        if self.normalize:
            log_prob = normalize(log_prob, children.parent)
        num_sids, first = self.trie.num_sids[children.node].long(), self.trie.first[children.node].long()
        digit = torch.full_like(children.parent, num_known)
        return Children(children.parent, digit, children.code, log_prob, num_sids, first, children.node)

    def remember(self, children: Children) -> Tensor:
        node: Tensor = children.detail
        return node

    def members(self, children: Children) -> SidLists:
        assert children.num_sids is not None and children.first is not None
        _, row = expand_ranges(children.first, children.num_sids)
        return SidLists(children.num_sids.cumsum(0) - children.num_sids, children.num_sids, row)


def normalize(log_prob: Tensor, group: Tensor) -> Tensor:
    """[C] log-probabilities that sum to 1 within each group [C]; groups are numbered from 0."""
    # In float64 nothing that the step gives underflows, so the largest of each group need not be taken out.
    mass = torch.zeros(int(group.max()) + 1, dtype=torch.float64, device=group.device)
    mass.index_add_(0, group, log_prob.double().exp())
    return log_prob - mass.clamp_(min=1e-300).log_()[group].to(log_prob.dtype)


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

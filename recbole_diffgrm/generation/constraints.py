"""What a branch of a beam search may become: the constraints, and the branches and children that they speak of.

- LatticeConstraint: only partial SIDs that exist, in any order of digits. A state that is reached in several orders is
  one branch, with the best score of them (`max`) or their summed probability (`logsumexp`; at the end their mean, which
  is the probability of the SID under a random order);
- TrieConstraint: only prefixes that exist, from left to right;
- NoConstraint: anything, in any order (the paper) or in a fixed one; whether a SID exists is checked afterwards.

The first two can normalize the probabilities of a digit over the codes that exist below the branch. Letters in shapes
as in beam_search.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from recbole_diffgrm.generation.lattice import (
    Lattice,
    SidLists,
    children_of_more_digits,
    children_of_one_digit,
)
from recbole_diffgrm.generation.ranges import expand_ranges
from recbole_diffgrm.generation.semantic_ids import MASKED
from recbole_diffgrm.generation.trie import Trie, children_of


class Branches(NamedTuple):
    """Of all users, by user. All [R] or [R, n]."""

    user: Tensor
    scores: Tensor
    known: Tensor  # codes, MASKED where open
    order: Tensor  # digits in the order in which they were filled, -1 after the last one
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

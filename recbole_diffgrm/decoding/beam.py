"""Beam search over the digits of an ID, many users at once. Knows nothing of RecBole.

At every step a branch (a partial ID) may fill any of its open digits with any code; the best branches of a user go on
(Confidence-guided Parallel Denoising, CPD). Policies differ in what a branch may become:

- catalogue: only partial IDs that exist; a state reached in several orders is one branch, of their summed probability
  (`logsumexp`; at the end their mean, the probability of the ID under a random order) or the best one's (`max`);
- paper: anything; whether the ID exists is looked up at the end;
- released: the same, but the last digit of each branch is its most probable code;
- fixed_order: as paper, in one order of digits.

Letters in shapes: U users, W branches of a user, n digits, M codes.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from recbole_diffgrm.decoding.lattice import Children, IdLists, Lattice, after_more_digits, after_one_digit
from recbole_diffgrm.network.network import MASKED

# Partial IDs [U, W, n], all with the same number of known digits -> log-probabilities of the codes [U, W, n, M]. Those
# of known digits are not looked at.
Predict = Callable[[Tensor], Tensor]


class Step(NamedTuple):
    """How the branches of a step came about; of several that were merged, the one of the largest score. All [U, W]."""

    parent: Tensor  # place among the branches before
    digit: Tensor  # filled in this step
    sure: Tensor  # log-probability of its code


class Ranked(NamedTuple):
    """IDs of each user, best first. `score` is -inf where a user has fewer."""

    ids: Tensor  # [U, W, n]
    score: Tensor  # [U, W] log-probability
    steps: list[Step]


class _Branches(NamedTuple):
    known: Tensor  # [U, W, n] codes, MASKED where open
    score: Tensor  # [U, W], -inf where there is no branch
    newest: Tensor  # [U, W] the digit filled last
    below: IdLists | None  # [U, W] IDs among which are all that complete the branch; None before there are two digits


def search_catalogue(
    predict: Predict, users: int, lattice: Lattice, widths: Sequence[int], merge: str = "max"
) -> Ranked:
    """`widths`: branches kept after each step; the last one holds for all further steps."""
    n, codes = lattice.exists.shape
    root = torch.full((users, 1, n), MASKED, device=lattice.ids.device)
    score = predict(root)[:, 0].masked_fill(~lattice.exists, -torch.inf).flatten(1)  # [U, n * M]
    score, state = score.topk(min(widths[0], n * codes), dim=1)
    known, digit = _fill(root.repeat(1, state.shape[1], 1), state, codes)
    branches = _Branches(known, score, digit, None)
    steps = [Step(torch.zeros_like(state), digit, score)]
    for filled in range(1, n):
        width = widths[min(filled, len(widths) - 1)]
        branches, step = _extend(branches, predict(branches.known), lattice, width, merge)
        steps.append(step)
    orders = math.lgamma(n + 1) if merge == "logsumexp" else 0  # log n!: of the sum over all orders, their mean
    return Ranked(branches.known, branches.score - orders, steps)


def search_all(
    predict: Predict,
    users: int,
    shape: tuple[int, int],
    widths: Sequence[int],
    order: Tensor | None = None,
    greedy_end: bool = False,
    device: torch.device | str = "cpu",
) -> Ranked:
    """Over all IDs of `shape` (n, M), in the catalogue or not; an ID may be found several times, in different orders.

    `order` [n]: fill the digits in this order. `greedy_end`: each branch takes the best code of its last digit.
    """
    n, codes = shape
    known = torch.full((users, 1, n), MASKED, device=device)
    score = torch.zeros(users, 1, device=device)
    steps = []
    for filled in range(n):
        width = widths[min(filled, len(widths) - 1)]
        predicted = predict(known)
        allowed = known == MASKED  # [U, W, n]
        if order is not None:
            allowed = allowed & (torch.arange(n, device=known.device) == order[filled])
        reached = (score[..., None, None] + predicted).masked_fill(~allowed[..., None], -torch.inf)  # [U, W, n, M]
        if greedy_end and filled == n - 1:
            score, choice = reached.flatten(2).max(dim=2)  # [U, W]
            score, parent = (part[:, :width] for part in score.sort(dim=1, descending=True, stable=True))
            choice = choice.gather(1, parent)
        else:
            score, choice = reached.flatten(1).topk(min(width, reached[0].numel()), dim=1)
            parent, choice = choice // (n * codes), choice % (n * codes)
        sure = predicted.flatten(1).gather(1, parent * (n * codes) + choice)
        known, digit = _fill(known.gather(1, parent[..., None].expand(-1, -1, n)), choice, codes)
        steps.append(Step(parent, digit, sure))
    return Ranked(known, score, steps)


def _fill(known: Tensor, choice: Tensor, codes: int) -> tuple[Tensor, Tensor]:
    """Branches [U, W, n] with the choice digit * M + code [U, W]; and the digits [U, W]."""
    digit = choice // codes
    return known.scatter(2, digit[..., None], (choice % codes)[..., None]), digit


def _extend(branches: _Branches, predicted: Tensor, lattice: Lattice, width: int, merge: str) -> tuple[_Branches, Step]:
    """Fill one more digit of every branch, in every way that exists; keep the best."""
    users, before, _ = branches.known.shape
    live = torch.nonzero(branches.score.flatten() > -torch.inf).squeeze(1)  # [R] rows of [U * W]
    known = branches.known.flatten(0, 1)[live]  # [R, n]
    if branches.below is None:
        digit = branches.newest.flatten()[live]
        children = after_one_digit(lattice, digit, known.gather(1, digit[:, None]).squeeze(1))
    else:
        begin, length = (part.flatten()[live] for part in branches.below[:2])
        newest = branches.newest.flatten()[live]
        children = after_more_digits(lattice, known, newest, IdLists(begin, length, branches.below.rows))
    row = live[children.parent]
    sure = predicted.flatten(0, 1)[row, children.digit, children.code]
    score = branches.score.flatten()[row] + sure
    chosen, score = _merge(row // before, known, children, score, len(lattice.ids), merge)
    user, chosen, score, place = _best(row[chosen] // before, chosen, score, width)
    known = known[children.parent[chosen]]
    known[torch.arange(len(chosen), device=known.device), children.digit[chosen]] = children.code[chosen]
    shape = (users, int(place.max()) + 1)

    def placed(values: Tensor, empty: float = 0) -> Tensor:
        return values.new_full((*shape, *values.shape[1:]), empty).index_put_((user, place), values)

    step = Step(placed(row[chosen] % before), placed(children.digit[chosen]), placed(sure[chosen]))
    begin, length = (placed(part[chosen]) for part in children.below[:2])
    below = IdLists(begin, length, children.below.rows)
    return _Branches(placed(known, MASKED), placed(score, -torch.inf), step.digit, below), step


def _merge(user: Tensor, known: Tensor, children: Children, score: Tensor, ids: int, how: str) -> tuple[Tensor, Tensor]:
    """One child for each state of a user, by user and state: (the best of those that reach it, the state's score)."""
    n = known.shape[1]
    bit = 2 ** torch.arange(n, device=known.device)
    subset = ((known != MASKED) * bit).sum(dim=1)[children.parent] + bit[children.digit]
    _, subset = torch.unique(subset, return_inverse=True)  # small numbers
    key = (user * (int(subset.max()) + 1) + subset) * ids + children.first
    key, order = torch.sort(key, stable=True)
    _, group, size = torch.unique_consecutive(key, return_inverse=True, return_counts=True)
    score = score[order]
    best = score.new_full((len(size),), -torch.inf).scatter_reduce(0, group, score, "amax")
    place = torch.arange(len(order), device=order.device).masked_fill_(score < best[group], len(order))
    chosen = order[torch.full_like(size, len(order)).scatter_reduce(0, group, place, "amin")]
    if how == "max":
        return chosen, best
    total = torch.zeros_like(best).index_add(0, group, (score - best[group]).exp())
    return chosen, best + total.log()


def _best(user: Tensor, chosen: Tensor, score: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The `width` best of every user, equal ones in the order given; and the place of each among its user's."""
    order = score.argsort(descending=True, stable=True)
    order = order[user[order].argsort(stable=True)]
    user, chosen, score = user[order], chosen[order], score[order]
    begins = torch.searchsorted(user, user)  # where each one's user begins
    place = torch.arange(len(user), device=user.device) - begins
    kept = place < width
    return user[kept], chosen[kept], score[kept], place[kept]

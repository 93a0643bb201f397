"""Beam search over the digits of an ID, many users at once. Knows nothing of RecBole.

At every step a branch (a partial ID) may fill any of its open digits with any code; the best `width` branches of a user
go on (Confidence-guided Parallel Denoising, CPD). Policies differ in what a branch may become:

- catalogue: only partial IDs that exist; a state reached in several orders is one branch, of their summed probability
  (`logsumexp`) or the best one's (`max`);
- paper: anything; whether the ID exists is looked up at the end;
- released: the same, but the last digit of each branch is its most probable code;
- fixed_order: as paper, in one order of digits.

Letters in shapes: U users, W branches of a user, n digits, M codes.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from recbole_diffgrm.decoding.lattice import Children, Lattice, after_more_digits, after_one_digit
from recbole_diffgrm.model.network import MASKED

Predict = Callable[[Tensor], Tensor]  # partial IDs [U, W, n] -> log-probabilities of the codes [U, W, n, M]


class Ranked(NamedTuple):
    """IDs of each user, best first. `score` is -inf where a user has fewer."""

    ids: Tensor  # [U, W, n]
    score: Tensor  # [U, W] log-probability


class _Branches(NamedTuple):
    known: Tensor  # [U, W, n] codes, MASKED where open
    score: Tensor  # [U, W], -inf where there is no branch
    pair: Tensor  # [U, W] state of two digits of the lattice that the branch lies under


def search_catalogue(predict: Predict, users: int, lattice: Lattice, width: int, merge: str = "logsumexp") -> Ranked:
    n, codes = lattice.exists.shape
    device = lattice.ids.device
    root = torch.full((users, 1, n), MASKED, device=device)
    score = predict(root)[:, 0].masked_fill(~lattice.exists, -torch.inf).flatten(1)  # [U, n * M]
    score, state = score.topk(min(width, n * codes), dim=1)
    known = root.repeat(1, state.shape[1], 1).scatter(2, (state // codes)[..., None], (state % codes)[..., None])
    branches = _Branches(known, score, torch.zeros_like(state))
    for filled in range(1, n):
        branches = _extend(branches, predict(branches.known), lattice, filled, width, merge)
    return Ranked(branches.known, branches.score)


def search_all(
    predict: Predict,
    users: int,
    shape: tuple[int, int],
    width: int,
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
    for filled in range(n):
        predicted = predict(known)
        allowed = known == MASKED  # [U, W, n]
        if order is not None:
            allowed = allowed & (torch.arange(n, device=known.device) == order[filled])
        reached = (score[..., None, None] + predicted).masked_fill(~allowed[..., None], -torch.inf)  # [U, W, n, M]
        if greedy_end and filled == n - 1:
            score, choice = reached.flatten(2).max(dim=2)  # [U, W]
            score, parent = score.sort(dim=1, descending=True, stable=True)
            choice = choice.gather(1, parent)
        else:
            score, choice = reached.flatten(1).topk(min(width, reached[0].numel()), dim=1)
            parent, choice = choice // (n * codes), choice % (n * codes)
        known = known.gather(1, parent[..., None].expand(-1, -1, n))
        known = known.scatter(2, (choice // codes)[..., None], (choice % codes)[..., None])
    return Ranked(known, score)


def _extend(branches: _Branches, predicted: Tensor, lattice: Lattice, filled: int, width: int, merge: str) -> _Branches:
    """Fill one more digit of every branch, in every way that exists; keep the best."""
    users, n = branches.known.shape[0], branches.known.shape[2]
    live = torch.nonzero(branches.score.flatten() > -torch.inf).squeeze(1)  # [R] rows of [U * W]
    known = branches.known.flatten(0, 1)[live]  # [R, n]
    if filled == 1:
        digit = (known != MASKED).int().argmax(dim=1)
        children = after_one_digit(lattice, digit, known.gather(1, digit[:, None]).squeeze(1))
    else:
        children = after_more_digits(lattice, known, branches.pair.flatten()[live])
    row = live[children.parent]
    score = branches.score.flatten()[row] + predicted.flatten(0, 1)[row, children.digit, children.code]
    user = row // branches.score.shape[1]
    chosen, score = _merge(user, known, children, score, len(lattice.ids), merge)
    user = user[chosen]
    user, chosen, score, place = _best(user, chosen, score, width)
    known = known[children.parent[chosen]]
    known[torch.arange(len(chosen), device=known.device), children.digit[chosen]] = children.code[chosen]
    most = int(place.max()) + 1
    extended = _Branches(
        branches.known.new_full((users, most, n), MASKED),
        branches.score.new_full((users, most), -torch.inf),
        branches.pair.new_zeros((users, most)),
    )
    extended.known[user, place], extended.score[user, place] = known, score
    extended.pair[user, place] = children.pair[chosen]
    return extended


def _merge(user: Tensor, known: Tensor, children: Children, score: Tensor, ids: int, how: str) -> tuple[Tensor, Tensor]:
    """One child for each state of a user: (a child that stands for it, its score), by user and state."""
    n = known.shape[1]
    bit = 2 ** torch.arange(n, device=known.device)
    subset = ((known != MASKED) * bit).sum(dim=1)[children.parent] + bit[children.digit]
    _, subset = torch.unique(subset, return_inverse=True)  # small numbers
    key = (user * (int(subset.max()) + 1) + subset) * ids + children.first
    key, order = torch.sort(key, stable=True)
    _, group, size = torch.unique_consecutive(key, return_inverse=True, return_counts=True)
    best = score.new_full((len(size),), -torch.inf).scatter_reduce(0, group, score[order], "amax")
    first = size.cumsum(0) - size
    if how == "max":
        return order[first], best
    total = torch.zeros_like(best).index_add(0, group, (score[order] - best[group]).exp())
    return order[first], best + total.log()


def _best(user: Tensor, chosen: Tensor, score: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The `width` best of every user, equal ones in the order given; and the place of each among its user's."""
    order = score.argsort(descending=True, stable=True)
    order = order[user[order].argsort(stable=True)]
    user, chosen, score = user[order], chosen[order], score[order]
    begins = torch.searchsorted(user, user)  # where each one's user begins
    place = torch.arange(len(user), device=user.device) - begins
    kept = place < width
    return user[kept], chosen[kept], score[kept], place[kept]

"""Which partial IDs exist in a catalogue, and which digits can follow. Knows nothing of the network.

A state is a partial ID that at least one ID of the catalogue completes. All IDs under a state with two known digits are
kept as a list, for each pair of digits: what can follow is looked up for one known digit, and read off the list, which
is short, for two and more. Nothing grows with 2^n; the arrays are n (n - 1) / 2 lists of the catalogue.

Letters in shapes: D distinct IDs, n digits, M codes, Q states of two digits.
"""

from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from recbole_diffgrm.model.network import MASKED


class Lattice(NamedTuple):
    ids: Tensor  # [D, n] int16 distinct IDs, ascending
    exists: Tensor  # [n, M] bool: is the code used at the digit?
    edge_start: Tensor  # [n * M + 1] where the edges out of each state of one digit (digit * M + code) begin
    edge_digit: Tensor  # [E] the digit that an edge fills
    edge_code: Tensor  # [E] with what
    edge_pair: Tensor  # [E] the state of two digits that it leads to
    pair_start: Tensor  # [Q + 1] where the IDs of each state of two digits begin
    pair_ids: Tensor  # [n (n - 1) / 2 * D] rows of `ids`, ascending within a state


class Children(NamedTuple):
    """Ways to fill one more digit, those of one parent after those of another."""

    parent: Tensor  # [C] row of the parent
    digit: Tensor
    code: Tensor
    first: Tensor  # the smallest ID under the child; with the set of known digits it tells states apart
    pair: Tensor  # a state of two digits that the child lies under


def distinct_ids(sids: Tensor) -> tuple[Tensor, Tensor]:
    """IDs of all items [N, n] -> (the different ones [D, n], ascending; each item's row among them [N])."""
    order = torch.arange(len(sids))
    for digit in reversed(range(sids.shape[1])):  # by the last digit first: later sorts keep it where they tie
        order = order[sids[order, digit].argsort(stable=True)]
    ordered = sids[order]
    is_first = torch.ones(len(sids), dtype=torch.bool)
    is_first[1:] = (ordered[1:] != ordered[:-1]).any(dim=1)
    row = torch.empty_like(order)
    row[order] = is_first.cumsum(0) - 1
    return ordered[is_first], row


def build(ids: Tensor, codes: int) -> Lattice:
    """From different IDs [D, n], ascending."""
    ids = ids.long()
    count, n = ids.shape
    digit = torch.arange(n)
    exists = torch.zeros(n, codes, dtype=torch.bool)
    exists[digit.expand(count, n), ids] = True
    starts, members, edges, pairs = [torch.zeros(1, dtype=torch.int64)], [], [], 0
    for number, (a, b) in enumerate(combinations(range(n), 2)):
        key, order = torch.sort(ids[:, a] * codes + ids[:, b], stable=True)
        state, size = torch.unique_consecutive(key, return_counts=True)
        starts.append(number * count + size.cumsum(0))
        members.append(order)
        x, y, pair = state // codes, state % codes, pairs + torch.arange(len(state))
        for source, filled, code in ((a * codes + x, b, y), (b * codes + y, a, x)):
            edges.append(torch.stack([source, torch.full_like(source, filled), code, pair]))
        pairs += len(state)
    edge = torch.cat(edges, dim=1) if edges else torch.zeros(4, 0, dtype=torch.int64)
    edge = edge[:, edge[0].argsort(stable=True)]
    return Lattice(
        ids=ids.short(),
        exists=exists,
        edge_start=torch.searchsorted(edge[0].contiguous(), torch.arange(n * codes + 1)).int(),
        edge_digit=edge[1].int(),
        edge_code=edge[2].int(),
        edge_pair=edge[3].int(),
        pair_start=torch.cat(starts),
        pair_ids=torch.cat(members).int() if members else torch.zeros(0, dtype=torch.int32),
    )


def after_one_digit(lattice: Lattice, digit: Tensor, code: Tensor) -> Children:
    """Children of states of one digit; each is found once."""
    state = digit * lattice.exists.shape[1] + code  # [R]
    begin = lattice.edge_start[state].long()
    parent, edge = runs(begin, lattice.edge_start[state + 1] - begin)
    pair = lattice.edge_pair[edge].long()
    first = lattice.pair_ids[lattice.pair_start[pair]].long()
    return Children(parent, lattice.edge_digit[edge].long(), lattice.edge_code[edge].long(), first, pair)


def after_more_digits(lattice: Lattice, known: Tensor, pair: Tensor) -> Children:
    """Children of states of two digits and more: `known` [R, n], MASKED where open, below the states `pair` [R]."""
    n, codes = lattice.ids.shape[1], lattice.exists.shape[1]
    begin = lattice.pair_start[pair]
    parent, place = runs(begin, lattice.pair_start[pair + 1] - begin)
    row = lattice.pair_ids[place].long()
    ids = lattice.ids[row].long()  # [C, n]
    is_open = known == MASKED
    fits = ((known[parent] == ids) | is_open[parent]).all(dim=1)
    parent, row, ids = parent[fits], row[fits], ids[fits]
    which, digit = torch.nonzero(is_open[parent], as_tuple=True)  # every open digit of every ID under the parent
    code = ids[which, digit]
    # The same digit and code out of several IDs is one child. IDs come in ascending order: its first is the smallest.
    key, order = torch.sort((parent[which] * n + digit) * codes + code, stable=True)
    is_first = torch.ones_like(key, dtype=torch.bool)
    is_first[1:] = key[1:] != key[:-1]
    kept = order[is_first]
    parent = parent[which[kept]]
    return Children(parent, digit[kept], code[kept], row[which[kept]], pair[parent])


def rows_of(ids: Tensor, wanted: Tensor) -> Tensor:
    """Rows of the ascending `ids` [D, n] that equal `wanted` [R, n]; -1 where there is none. Bisection."""
    low = torch.zeros(len(wanted), dtype=torch.int64, device=ids.device)
    high = torch.full_like(low, len(ids) - 1)
    for _ in range((len(ids) - 1).bit_length()):
        middle = (low + high) // 2
        difference = ids[middle] - wanted  # [R, n]; the first digit that differs decides
        first = (difference != 0).int().argmax(dim=1, keepdim=True)
        is_less = difference.gather(1, first).squeeze(1) < 0
        low = torch.where(is_less, middle + 1, low).clamp(max=len(ids) - 1)
        high = torch.where(is_less, high, middle)
    return torch.where((ids[low] == wanted).all(dim=1), low, -1)


def runs(begin: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """The places begin..begin + length of each run, one after the other: (number of the run, place)."""
    length = length.long()
    run = torch.repeat_interleave(torch.arange(len(length), device=length.device), length)
    before = length.cumsum(0) - length
    return run, begin[run] + torch.arange(len(run), device=length.device) - before[run]

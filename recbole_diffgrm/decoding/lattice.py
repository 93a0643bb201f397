"""Which partial IDs exist in a catalogue, and which digits can follow. Knows nothing of the network.

A state is a partial ID that at least one ID of the catalogue completes. All IDs under a state with two known digits are
kept as a list, for each pair of digits: what can follow is looked up for one known digit, and read off the list for two
and more; a branch hands on what is left of its list. Nothing grows with 2^n; the arrays are n (n - 1) / 2 lists of the
catalogue. Lists hold D / M^2 IDs on average: hardly more than one where M is large for the catalogue, as is usual.

Letters in shapes: D distinct IDs, n digits, M codes, Q states of two digits.
"""

from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from recbole_diffgrm.network.network import MASKED


class Lattice(NamedTuple):
    ids: Tensor  # [D, n] int16 distinct IDs, ascending
    exists: Tensor  # [n, M] bool: is the code used at the digit?
    edge_start: Tensor  # [n * M + 1] where the edges out of each state of one digit (digit * M + code) begin
    edge_digit: Tensor  # [E] the digit that an edge fills
    edge_code: Tensor  # [E] with what
    edge_pair: Tensor  # [E] the state of two digits that it leads to
    pair_start: Tensor  # [Q + 1] where the IDs of each state of two digits begin
    pair_ids: Tensor  # [n (n - 1) / 2 * D] rows of `ids`, ascending within a state


class IdLists(NamedTuple):
    """A list of IDs for each of R states."""

    begin: Tensor  # [R] place in `rows`
    length: Tensor  # [R]
    rows: Tensor  # of Lattice.ids, ascending within a list


class Children(NamedTuple):
    """Ways to fill one more digit, those of one parent after those of another."""

    parent: Tensor  # [C] row of the parent
    digit: Tensor
    code: Tensor
    first: Tensor  # the smallest ID under the child; with the set of known digits it tells states apart
    below: IdLists  # IDs among which are all that lie under the child


# So many pairs of an ID and an open digit are looked at in one go: tens of MiB.
PAIRS_AT_ONCE = 2**20


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
            edges.append(torch.stack([source, torch.full_like(source, filled), code, pair]).int())
        pairs += len(state)
    edge = torch.cat(edges, dim=1) if edges else torch.zeros(4, 0, dtype=torch.int32)
    edge = edge[:, edge[0].argsort(stable=True)]
    return Lattice(
        ids=ids.short(),
        exists=exists,
        edge_start=torch.searchsorted(edge[0].contiguous(), torch.arange(n * codes + 1).int()).int(),
        edge_digit=edge[1].clone(),
        edge_code=edge[2].clone(),
        edge_pair=edge[3].clone(),
        pair_start=torch.cat(starts),
        pair_ids=torch.cat(members).int() if members else torch.zeros(0, dtype=torch.int32),
    )


def after_one_digit(lattice: Lattice, digit: Tensor, code: Tensor) -> Children:
    """Children of states of one digit; each is found once."""
    state = digit * lattice.exists.shape[1] + code  # [R]
    begin = lattice.edge_start[state].long()
    parent, edge = runs(begin, lattice.edge_start[state + 1] - begin)
    pair = lattice.edge_pair[edge].long()
    begin = lattice.pair_start[pair]
    first = lattice.pair_ids[begin].long()
    below = IdLists(begin, lattice.pair_start[pair + 1] - begin, lattice.pair_ids)
    return Children(parent, lattice.edge_digit[edge].long(), lattice.edge_code[edge].long(), first, below)


def after_more_digits(lattice: Lattice, known: Tensor, newest: Tensor, below: IdLists) -> Children:
    """Children of states of two digits and more: `known` [R, n], all with as many open digits (MASKED). The lists
    `below` fit all known digits but, maybe, the `newest` [R]."""
    is_open = known == MASKED
    count = int(is_open[0].sum())
    digits = is_open.int().argsort(dim=1, descending=True, stable=True)[:, :count]  # [R, count] the open ones
    seen = (below.length * count).cumsum(0)
    _, sizes = torch.unique_consecutive((seen - 1) // PAIRS_AT_ONCE, return_counts=True)
    parts, start = [], 0
    for size in sizes.tolist():
        some = slice(start, start + size)
        lists = IdLists(below.begin[some], below.length[some], below.rows)
        parts.append(_children(lattice, known[some], newest[some], digits[some], lists, start))
        start += size
    if len(parts) == 1:
        return parts[0]
    before = torch.tensor([0] + [len(part.below.rows) for part in parts]).cumsum(0).tolist()
    joined = IdLists(
        torch.cat([part.below.begin + offset for part, offset in zip(parts, before)]),
        torch.cat([part.below.length for part in parts]),
        torch.cat([part.below.rows for part in parts]),
    )
    return Children(*(torch.cat([part[column] for part in parts]) for column in range(4)), joined)


def _children(lattice: Lattice, known: Tensor, newest: Tensor, digits: Tensor, below: IdLists, start: int) -> Children:
    """Of some states; `start` is the row of the first of them, `digits` [R, k] are the open ones."""
    (states, n), codes = known.shape, lattice.exists.shape[1]
    state, place = runs(below.begin, below.length)
    row = below.rows[place].long()
    digit = newest[state]
    fits = lattice.ids[row, digit] == known[state, digit]
    state, row = state[fits], row[fits]  # [F]
    kept = row.int()
    length = torch.bincount(state, minlength=states)
    begin = length.cumsum(0) - length
    digit = digits[state]  # [F, k]
    code = lattice.ids[row[:, None], digit].long()
    key = ((state[:, None] * n + digit) * codes + code).flatten()  # the same of several IDs is one child
    row = row[:, None].expand_as(digit).flatten()
    if len(key) < states * n * codes:
        key, order = torch.sort(key, stable=True)  # IDs ascend within a state: the first of a key is the smallest
        is_first = torch.ones_like(key, dtype=torch.bool)
        is_first[1:] = key[1:] != key[:-1]
        key, first = key[is_first], row[order[is_first]]
    else:  # long lists: a table of all keys is smaller, and there is nothing to sort
        table = torch.full((states * n * codes,), len(lattice.ids), device=row.device)
        table = table.scatter_reduce(0, key, row, "amin")
        key = torch.nonzero(table < len(lattice.ids)).squeeze(1)
        first = table[key]
    parent = key // (n * codes)
    return Children(start + parent, key // codes % n, key % codes, first, IdLists(begin[parent], length[parent], kept))


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

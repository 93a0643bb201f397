"""Which partial semantic IDs exist, whatever the order in which their digits are filled, and which digits can follow.

A state is a partial SID that at least one existing SID completes. All SIDs under a state with two known digits are kept
as a list, for each pair of digits: the children of a state with one known digit are stored, those of a state with more
are read off its list; a child inherits what is left of its parent's list. Nothing grows with 2^n; the arrays hold
n (n - 1) / 2 entries per SID. Lists have D / M^2 SIDs on average: hardly more than one where M is large for the
catalogue, as is usual.

Letters in shapes: D distinct SIDs, n digits, M codes per digit, Q states of two digits.
"""

from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from recbole_diffgrm.generation.ranges import expand_ranges


class Lattice(NamedTuple):
    sids: Tensor  # [D, n] int16 distinct SIDs, ascending
    exists: Tensor  # [n, M] bool: is the code used at the digit?
    cell_start: Tensor  # [n * M + 1] where the SIDs of each state of one digit (digit * M + code) begin
    cell_rows: Tensor  # [n * D] rows of `sids`, ascending within a state
    edge_start: Tensor  # [n * M + 1] where the edges out of each state of one digit begin
    edge_digit: Tensor  # [E] the digit that an edge fills
    edge_code: Tensor  # [E] the code it fills in
    edge_pair: Tensor  # [E] the state of two digits that it leads to
    pair_start: Tensor  # [Q + 1] where the SIDs of each state of two digits begin
    pair_rows: Tensor  # [n (n - 1) / 2 * D] rows of `sids`, ascending within a state


class SidLists(NamedTuple):
    """A list of SIDs for each of R states."""

    begin: Tensor  # [R] index into `rows`
    length: Tensor  # [R]
    rows: Tensor  # of Lattice.sids, ascending within a list


class Children(NamedTuple):
    """Ways to fill one more digit, grouped by parent. All [C]."""

    parent: Tensor  # row of the parent
    digit: Tensor
    code: Tensor
    first: Tensor  # the smallest SID under the child; with the set of known digits it identifies the state
    num_sids: Tensor  # under the child
    below: SidLists  # contain all SIDs under the child, and maybe others of its parent


# Pairs of a SID and an open digit that are processed at once: bounds memory to tens of MiB.
PAIRS_PER_CHUNK = 2**20


def build_lattice(sids: Tensor, codebook_size: int) -> Lattice:
    """From distinct SIDs [D, n], ascending."""
    sids = sids.long()
    num_sids, n = sids.shape
    digit = torch.arange(n)
    exists = torch.zeros(n, codebook_size, dtype=torch.bool)
    exists[digit.expand(num_sids, n), sids] = True
    cell, cell_rows = (sids + digit * codebook_size).T.reshape(-1).sort(stable=True)
    starts, members, edges, num_pairs = [torch.zeros(1, dtype=torch.int64)], [], [], 0
    for number, (a, b) in enumerate(combinations(range(n), 2)):
        key, order = torch.sort(sids[:, a] * codebook_size + sids[:, b], stable=True)
        state, size = torch.unique_consecutive(key, return_counts=True)
        starts.append(number * num_sids + size.cumsum(0))
        members.append(order)
        x, y, pair = state // codebook_size, state % codebook_size, num_pairs + torch.arange(len(state))
        for source, filled, code in ((a * codebook_size + x, b, y), (b * codebook_size + y, a, x)):
            edges.append(torch.stack([source, torch.full_like(source, filled), code, pair]).int())
        num_pairs += len(state)
    edge = torch.cat(edges, dim=1) if edges else torch.zeros(4, 0, dtype=torch.int32)
    edge = edge[:, edge[0].argsort(stable=True)]
    return Lattice(
        sids=sids.short(),
        exists=exists,
        cell_start=torch.searchsorted(cell, torch.arange(n * codebook_size + 1)),
        cell_rows=(cell_rows % max(1, num_sids)).int(),
        edge_start=torch.searchsorted(edge[0].contiguous(), torch.arange(n * codebook_size + 1).int()).int(),
        edge_digit=edge[1].clone(),
        edge_code=edge[2].clone(),
        edge_pair=edge[3].clone(),
        pair_start=torch.cat(starts),
        pair_rows=torch.cat(members).int() if members else torch.zeros(0, dtype=torch.int32),
    )


def find_code_pairs(sids: Tensor, codebook_size: int) -> Tensor:
    """[n * M + 1, n, M] bool: is there a SID with this code at one digit and that at another? Last: with that code?"""
    n = sids.shape[1]
    cell = sids.long() + torch.arange(n) * codebook_size  # [D, n]
    pairs = torch.zeros(n * codebook_size + 1, n * codebook_size, dtype=torch.bool)
    for digit in range(n):
        pairs[cell[:, digit, None], cell] = True
    pairs[-1] = pairs.any(dim=0)
    return pairs.view(-1, n, codebook_size)


def children_of_one_digit(lattice: Lattice, digit: Tensor, code: Tensor) -> Children:
    """Children of states with one known digit, given by `digit` [R] and `code` [R]; each child appears once."""
    state = digit * lattice.exists.shape[1] + code  # [R]
    begin = lattice.edge_start[state].long()
    parent, edge = expand_ranges(begin, lattice.edge_start[state + 1] - begin)
    pair = lattice.edge_pair[edge].long()
    begin = lattice.pair_start[pair]
    first = lattice.pair_rows[begin].long()
    below = SidLists(begin, lattice.pair_start[pair + 1] - begin, lattice.pair_rows)
    digit, code = lattice.edge_digit[edge].long(), lattice.edge_code[edge].long()
    return Children(parent, digit, code, first, below.length, below)


def children_of_more_digits(
    lattice: Lattice, known: Tensor, open_digits: Tensor, newest: Tensor, below: SidLists
) -> Children:
    """Children of states with two known digits or more: codes `known` [R, n], of all digits but `open_digits` [R, k].
    The lists `below` fit all known digits except, maybe, the one filled last: `newest` [R]."""
    num_pairs = (below.length * open_digits.shape[1]).cumsum(0)
    _, sizes = torch.unique_consecutive((num_pairs - 1) // PAIRS_PER_CHUNK, return_counts=True)
    parts, start = [], 0
    for size in sizes.tolist():
        chunk = slice(start, start + size)
        lists = SidLists(below.begin[chunk], below.length[chunk], below.rows)
        parts.append(_children(lattice, known[chunk], open_digits[chunk], newest[chunk], lists, start))
        start += size
    if len(parts) == 1:
        return parts[0]
    before = torch.tensor([0] + [len(part.below.rows) for part in parts]).cumsum(0).tolist()
    joined = SidLists(
        torch.cat([part.below.begin + offset for part, offset in zip(parts, before)]),
        torch.cat([part.below.length for part in parts]),
        torch.cat([part.below.rows for part in parts]),
    )
    columns = [torch.cat(columns) for columns in zip(*(part[:5] for part in parts))]
    return Children._make([*columns, joined])


def _children(
    lattice: Lattice, known: Tensor, open_digits: Tensor, newest: Tensor, below: SidLists, start: int
) -> Children:
    """Of a chunk of the states; `start` is the row of its first one."""
    (num_states, n), codebook_size = known.shape, lattice.exists.shape[1]
    state, index = expand_ranges(below.begin, below.length)
    row = below.rows[index].long()
    digit = newest[state]
    fits = lattice.sids[row, digit] == known[state, digit]
    state, row = state[fits], row[fits]  # [F]
    kept = row.int()
    length = torch.bincount(state, minlength=num_states)
    begin = length.cumsum(0) - length
    digit = open_digits[state]  # [F, k]
    code = lattice.sids[row[:, None], digit].long()
    key = ((state[:, None] * n + digit) * codebook_size + code).flatten()  # SIDs with the same key share a child
    row = row[:, None].expand_as(digit).flatten()
    num_keys = num_states * n * codebook_size
    if len(key) < num_keys:
        key, order = torch.sort(key, stable=True)  # SIDs ascend within a state: the first of a key is the smallest
        is_first = torch.ones_like(key, dtype=torch.bool)
        is_first[1:] = key[1:] != key[:-1]
        begins = torch.nonzero(is_first).squeeze(1)
        num_sids = torch.diff(begins, append=begins.new_tensor([len(key)]))
        key, first = key[begins], row[order[begins]]
    else:  # long lists: a table of all keys is smaller, and there is nothing to sort
        table = torch.full((num_keys,), len(lattice.sids), device=row.device).scatter_reduce(0, key, row, "amin")
        num_sids = torch.bincount(key, minlength=num_keys)
        key = torch.nonzero(num_sids).squeeze(1)
        first, num_sids = table[key], num_sids[key]
    parent = key // (n * codebook_size)
    return Children(
        parent=start + parent,
        digit=key // codebook_size % n,
        code=key % codebook_size,
        first=first,
        num_sids=num_sids,
        below=SidLists(begin[parent], length[parent], kept),
    )

"""An ID of its own for every item: who moves, and where to.

Moving an item to another code adds to its quantisation error. As few items move as can be (one of each group stays,
and all that were alone), and among these solutions the added error is the least possible: a minimum-cost matching of
items and codes. It is made per tangle, a set of items that compete for codes with each other but with no one else. Very
large groups and tangles are served after the others, greedily.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components, min_weight_full_bipartite_matching

from recbole_diffgrm.errors import UserError
from recbole_diffgrm.tokenizer.collisions import decode, keys

LARGE_GROUP = 256  # members
LARGE_TANGLE = 5_000  # items; the time of a matching grows with the square of this
FIRST_CANDIDATES = 16  # codes that an item of a small group considers at first
SMALL_BLOCK = 1 << 16  # cells of a matrix that is solved as a dense one in any case
EDGES_AT_ONCE = 1 << 22  # candidates that the greedy assignment holds in memory

# nearest(items, count): the `count` nearest codes [B, count, n] of each item and what each adds to its error
# [B, count], cheapest first; fewer only where there are no more codes.
NearestCodes = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]
# kinds(items): a label for each, equal for equal vectors.
Kinds = Callable[[np.ndarray], np.ndarray]
Moves = dict[int, int | bytes]  # item -> key of its new ID


def reassign(codes: np.ndarray, size: int, nearest: NearestCodes, kinds: Kinds, table: np.ndarray) -> np.ndarray:
    """[N, n] -> [N, n] with all rows different, and different from those of `table` [T, n], whose items stay."""
    digits = codes.shape[1]
    check_room(len(codes) + len(table), digits, size)
    home, group, count = np.unique(keys(codes, size), return_inverse=True, return_counts=True)
    taken = keys(table, size)
    blocked = np.isin(home, taken)
    contest = _Contest(nearest, size, np.union1d(home, taken), home, group, blocked, count - 1 + blocked)
    contested = np.flatnonzero(contest.to_move[group] > 0)
    is_large = count[group[contested]] > LARGE_GROUP
    moves, left = _optimal(contest, contested[~is_large])
    moves |= _greedy(contest, np.concatenate([contested[is_large], left]), kinds, set(moves.values()))
    new = codes.copy()
    if moves:
        new[list(moves)] = decode(np.array(list(moves.values()), home.dtype), digits, size)
    return new


def check_room(items: int, digits: int, size: int) -> None:
    """There must be as many IDs as items."""
    if items > size**digits:
        raise UserError(
            f"sid_collisions: {items:,} items cannot all have their own of {size**digits:,} IDs "
            f"(sid_digits {digits}, sid_codes {size}): use more digits or codes"
        )


class _Edges(NamedTuple):
    """Candidates: item i may move to the code `key`, which adds so much to its error."""

    item: np.ndarray
    key: np.ndarray
    added: np.ndarray

    def only(self, chosen: np.ndarray) -> "_Edges":
        return _Edges(*(column[chosen] for column in self))


@dataclass(frozen=True)
class _Contest:
    nearest: NearestCodes
    size: int
    used: np.ndarray  # sorted keys of all IDs in use: no one may move there
    home: np.ndarray  # [G] key of each group
    group: np.ndarray  # [N] of each item
    blocked: np.ndarray  # [G] the ID belongs to an item of the table: no one may stay
    to_move: np.ndarray  # [G] members that have to leave

    def edges(self, items: np.ndarray, count: int) -> tuple[_Edges, bool]:
        """The free ones among the `count` nearest codes of each item; True where these are all codes there are."""
        codes, added = self.nearest(items, count)
        key = keys(codes, self.size)
        place = np.searchsorted(self.used, key).clip(max=len(self.used) - 1)
        free = self.used[place] != key
        item = np.broadcast_to(items[:, None], key.shape)
        return _Edges(item[free], key[free], added[free]), codes.shape[1] == self.size ** codes.shape[2]


def _optimal(contest: _Contest, items: np.ndarray) -> tuple[Moves, np.ndarray]:
    """The cheapest moves, and the items of tangles too large for it.

    Each item knows only its nearest free codes at first. A matching is optimal among all codes when every item still
    has a free code in its list: a better one would send some item beyond its list, where nothing is cheaper than that
    free code. The lists of items for which this fails grow, and the matching is made again.
    """
    members = contest.to_move[contest.group[items]] + 1
    count = FIRST_CANDIDATES * 2 ** np.ceil(np.log2(np.maximum(members / 8, 1))).astype(np.int64)
    complete = np.zeros(len(items), bool)  # the list holds all codes
    stale = np.ones(len(items), bool)  # the list has to be made
    edges = _Edges(items[:0], contest.home[:0], np.zeros(0))
    left = items[:0]
    while stale.any():
        parts = [edges.only(~np.isin(edges.item, items[stale]))]
        for amount in np.unique(count[stale]):
            chosen = np.flatnonzero(stale & (count == amount))
            found, complete[chosen] = contest.edges(items[chosen], int(amount))
            parts.append(found)
        edges = _Edges(*map(np.concatenate, zip(*parts)))
        matching = _match(contest, items, edges)
        if len(matching.too_large):
            left = np.concatenate([left, matching.too_large])
            remain = ~np.isin(items, matching.too_large)
            items, count, complete = items[remain], count[remain], complete[remain]
        has_free = np.isin(items, edges.item[~matching.occupied])
        stale = (~has_free | np.isin(items, matching.unsolved)) & ~complete
        count[stale] *= 4
        edges = edges.only(np.isin(edges.item, items))
    return matching.moves if len(items) else {}, np.sort(left)


class _Matching(NamedTuple):
    moves: Moves
    occupied: np.ndarray  # [E] bool: edges that lead to a code which is taken now
    unsolved: np.ndarray  # items of tangles whose lists are too short for all to find a place
    too_large: np.ndarray  # items of tangles that were not looked at


def _match(contest: _Contest, items: np.ndarray, edges: _Edges) -> _Matching:
    """One minimum-cost matching per tangle; every item may stay or follow one of its edges."""
    group = contest.group[items]
    may_stay = np.flatnonzero(~contest.blocked[group])
    columns, column = np.unique(np.concatenate([edges.key, contest.home[group[may_stay]]]), return_inverse=True)
    row = np.concatenate([np.searchsorted(items, edges.item), may_stay])
    # Staying is so cheap that one of each group always does. No weight is 0: that would mean no edge.
    leaving = 2 + 2 * np.abs(edges.added).max(initial=0)
    weight = np.concatenate([leaving + edges.added, np.ones(len(may_stay))])

    links = csr_matrix((np.ones(len(row), np.int8), (row, column + len(items))), shape=(len(items) + len(columns),) * 2)
    tangle = connected_components(links, directed=False)[1]
    # Rows and columns in the order of their tangles: each tangle is a block of the matrix.
    rows, row_place, row_start = _by_label(tangle[: len(items)])
    order, column_place, column_start = _by_label(tangle[len(items) :], len(row_start) - 1)
    costs = csr_matrix((weight, (row_place[row], column_place[column])), shape=(len(items), len(columns)))
    target = np.full(len(items), -1)  # column of each row
    unsolved, too_large = [items[:0]], [items[:0]]
    for (first, last), (left, right) in zip(pairwise(row_start), pairwise(column_start)):
        if last - first > LARGE_TANGLE:
            too_large.append(items[rows[first:last]])
            continue
        start, end = costs.indptr[first], costs.indptr[last]
        block = csr_matrix(
            (costs.data[start:end], costs.indices[start:end] - left, costs.indptr[first : last + 1] - start),
            shape=(last - first, right - left),
        )
        try:
            matched, place = _cheapest(block)
        except ValueError:
            unsolved.append(items[rows[first:last]])
            continue
        target[rows[first + matched]] = order[left + place]

    solved = np.flatnonzero(target >= 0)
    is_taken = np.zeros(len(columns), bool)
    is_taken[target[solved]] = True
    moving = solved[columns[target[solved]] != contest.home[group[solved]]]
    return _Matching(
        dict(zip(items[moving].tolist(), columns[target[moving]].tolist())),
        is_taken[column[: len(edges.item)]],
        np.concatenate(unsolved),
        np.concatenate(too_large),
    )


def _cheapest(costs: csr_matrix) -> tuple[np.ndarray, np.ndarray]:
    """Rows and their columns. The sparse solver is slow where columns are scarce, the dense one where they abound."""
    rows, columns = costs.shape
    if columns > 2 * rows and rows * columns > SMALL_BLOCK:
        return min_weight_full_bipartite_matching(costs)
    dense = np.full(costs.shape, np.inf)
    dense[np.repeat(np.arange(rows), np.diff(costs.indptr)), costs.indices] = costs.data
    return linear_sum_assignment(dense)


def _by_label(label: np.ndarray, labels: int | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Members in the order of their labels, the place of each in that order, and where each label begins (and ends)."""
    order = np.argsort(label, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    labels = int(label.max(initial=-1)) + 1 if labels is None else labels
    return order, place, np.searchsorted(label[order], np.arange(labels + 1))


def _greedy(contest: _Contest, items: np.ndarray, kinds: Kinds, taken: set[int | bytes]) -> Moves:
    """The cheapest move of those in sight first, until one of each group is left. Items of one kind share a list."""
    moves: Moves = {}
    if len(items) == 0:
        return moves
    _, first, kind = np.unique(kinds(items), return_index=True, return_inverse=True)
    order, _, start = _by_label(kind)
    waiting = [items[order[a:b]][::-1].tolist() for a, b in pairwise(start)]  # of each kind, last one first
    speaker = items[first]  # one item of each kind
    kind_of = dict(zip(speaker.tolist(), range(len(speaker))))
    group = contest.group
    to_move = contest.to_move.copy()
    growth = 1
    while pending := [number for number, item in enumerate(speaker) if waiting[number] and to_move[group[item]] > 0]:
        wanted = growth * np.array([max(FIRST_CANDIDATES, 2 * len(waiting[number])) for number in pending])
        for amount in np.unique(wanted).tolist():
            chosen = speaker[np.array(pending)[wanted == amount]]
            for part in np.array_split(chosen, -(-len(chosen) * amount // EDGES_AT_ONCE)):
                edges, _ = contest.edges(part, amount)
                edges = edges.only(np.lexsort((edges.item, edges.added)))
                for item, key in zip(edges.item.tolist(), edges.key.tolist()):
                    members = waiting[kind_of[item]]
                    if members and to_move[group[item]] > 0 and key not in taken:
                        moves[members.pop()] = key
                        taken.add(key)
                        to_move[group[item]] -= 1
        growth *= 4
    return moves

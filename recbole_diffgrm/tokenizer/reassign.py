"""A unique SID for every item: which items move, and where to.

Moving an item to other codes adds to its quantization error. As few items move as possible (one of each group stays,
and so do all that were alone), and among these solutions the added error is the least possible: a minimum-cost matching
of items and codes. It is solved per component, a set of items that compete for codes with each other but with no other
item. Very large groups and components come last, and greedily.
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
from recbole_diffgrm.tokenizer.collisions import from_keys, to_keys

LARGE_GROUP = 256  # members
LARGE_COMPONENT = 5_000  # items; the time of a matching grows with the square of this
FIRST_CANDIDATES = 16  # codes that an item of a small group considers at first
SMALL_MATRIX = 1 << 16  # cells of a cost matrix that is solved as a dense one in any case
EDGES_AT_ONCE = 1 << 22  # candidates that the greedy assignment holds in memory

# nearest(items, count): the `count` nearest codes [B, count, n] of each item and what each adds to its error
# [B, count], cheapest first; fewer only where there are no more codes.
NearestCodes = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]
# label_vectors(items): a label for each, equal for equal vectors.
LabelVectors = Callable[[np.ndarray], np.ndarray]
Moves = dict[int, int | bytes]  # item -> key of its new SID


def reassign(
    codes: np.ndarray, codebook_size: int, nearest: NearestCodes, label_vectors: LabelVectors, table: np.ndarray
) -> np.ndarray:
    """[N, n] -> [N, n] with all rows different, and different from those of `table` [T, n], whose items stay."""
    num_digits = codes.shape[1]
    check_room(len(codes) + len(table), num_digits, codebook_size)
    group_key, group, count = np.unique(to_keys(codes, codebook_size), return_inverse=True, return_counts=True)
    taken = to_keys(table, codebook_size)
    blocked = np.isin(group_key, taken)
    problem = _Problem(
        nearest, codebook_size, np.union1d(group_key, taken), group_key, group, blocked, count - 1 + blocked
    )
    colliding = np.flatnonzero(problem.to_move[group] > 0)
    is_large = count[group[colliding]] > LARGE_GROUP
    moves, too_large = _match_optimally(problem, colliding[~is_large])
    moves |= _match_greedily(
        problem, np.concatenate([colliding[is_large], too_large]), label_vectors, set(moves.values())
    )
    sids = codes.copy()
    if moves:
        sids[list(moves)] = from_keys(np.array(list(moves.values()), group_key.dtype), num_digits, codebook_size)
    return sids


def check_room(num_items: int, num_digits: int, codebook_size: int) -> None:
    """There must be at least as many SIDs as items."""
    num_sids = codebook_size**num_digits
    if num_items > num_sids:
        raise UserError(
            f"sid_collisions: {num_items:,} items cannot have unique SIDs, there are {num_sids:,} (sid_num_digits "
            f"{num_digits}, sid_codebook_size {codebook_size}); use more digits or larger codebooks"
        )


class _Edges(NamedTuple):
    """Candidates: `item` may move to the codes `key`, which adds `added` to its error."""

    item: np.ndarray
    key: np.ndarray
    added: np.ndarray

    def select(self, index: np.ndarray) -> "_Edges":
        return _Edges(*(column[index] for column in self))


@dataclass(frozen=True)
class _Problem:
    nearest: NearestCodes
    codebook_size: int
    used: np.ndarray  # sorted keys of all SIDs in use: no item may move there
    group_key: np.ndarray  # [G] key of the codes that a group shares
    group: np.ndarray  # [N] of each item
    blocked: np.ndarray  # [G] the SID belongs to an item of the table: no item may stay
    to_move: np.ndarray  # [G] members that have to leave

    def edges(self, items: np.ndarray, count: int) -> tuple[_Edges, bool]:
        """The free ones among the `count` nearest codes of each item; True where these are all codes there are."""
        codes, added = self.nearest(items, count)
        key = to_keys(codes, self.codebook_size)
        index = np.searchsorted(self.used, key).clip(max=len(self.used) - 1)
        free = self.used[index] != key
        item = np.broadcast_to(items[:, None], key.shape)
        return _Edges(item[free], key[free], added[free]), codes.shape[1] == self.codebook_size ** codes.shape[2]


def _match_optimally(problem: _Problem, items: np.ndarray) -> tuple[Moves, np.ndarray]:
    """The cheapest moves, and the items of components that are too large for it.

    Each item knows only its nearest free codes at first. A matching is optimal among all codes when every item still
    has a free code in its list: a better one would send some item beyond its list, where nothing is cheaper than that
    free code. The lists of items for which this fails grow, and the matching is solved again.
    """
    members = problem.to_move[problem.group[items]] + 1
    count = FIRST_CANDIDATES * 2 ** np.ceil(np.log2(np.maximum(members / 8, 1))).astype(np.int64)
    complete = np.zeros(len(items), bool)  # the list holds all codes
    stale = np.ones(len(items), bool)  # the list has to be computed
    edges = _Edges(items[:0], problem.group_key[:0], np.zeros(0))
    too_large = items[:0]
    while stale.any():
        parts = [edges.select(~np.isin(edges.item, items[stale]))]
        for amount in np.unique(count[stale]):
            chosen = np.flatnonzero(stale & (count == amount))
            new_edges, complete[chosen] = problem.edges(items[chosen], int(amount))
            parts.append(new_edges)
        edges = _Edges(*map(np.concatenate, zip(*parts)))
        matching = _match(problem, items, edges)
        if len(matching.too_large):
            too_large = np.concatenate([too_large, matching.too_large])
            remain = ~np.isin(items, matching.too_large)
            items, count, complete = items[remain], count[remain], complete[remain]
        has_free = np.isin(items, edges.item[~matching.occupied])
        stale = (~has_free | np.isin(items, matching.unsolved)) & ~complete
        count[stale] *= 4
        edges = edges.select(np.isin(edges.item, items))
    return matching.moves if len(items) else {}, np.sort(too_large)


class _Matching(NamedTuple):
    moves: Moves
    occupied: np.ndarray  # [E] bool: edges that lead to codes which are taken now
    unsolved: np.ndarray  # items of components whose lists are too short for all to get codes
    too_large: np.ndarray  # items of components that were skipped


def _match(problem: _Problem, items: np.ndarray, edges: _Edges) -> _Matching:
    """One minimum-cost matching per component; every item may stay or follow one of its edges."""
    group = problem.group[items]
    may_stay = np.flatnonzero(~problem.blocked[group])
    columns, column = np.unique(np.concatenate([edges.key, problem.group_key[group[may_stay]]]), return_inverse=True)
    row = np.concatenate([np.searchsorted(items, edges.item), may_stay])
    # Staying is so cheap that one of each group always does. No weight is 0: that would mean no edge.
    leaving = 2 + 2 * np.abs(edges.added).max(initial=0)
    weight = np.concatenate([leaving + edges.added, np.ones(len(may_stay))])

    links = csr_matrix((np.ones(len(row), np.int8), (row, column + len(items))), shape=(len(items) + len(columns),) * 2)
    component = connected_components(links, directed=False)[1]
    # Rows and columns in the order of their components: each component is a block of the matrix.
    row_order, row_rank, row_start = _sort_by_label(component[: len(items)])
    column_order, column_rank, column_start = _sort_by_label(component[len(items) :], len(row_start) - 1)
    costs = csr_matrix((weight, (row_rank[row], column_rank[column])), shape=(len(items), len(columns)))
    target = np.full(len(items), -1)  # column of each row
    unsolved, too_large = [items[:0]], [items[:0]]
    for (first, last), (left, right) in zip(pairwise(row_start), pairwise(column_start)):
        if last - first > LARGE_COMPONENT:
            too_large.append(items[row_order[first:last]])
            continue
        start, end = costs.indptr[first], costs.indptr[last]
        block = csr_matrix(
            (costs.data[start:end], costs.indices[start:end] - left, costs.indptr[first : last + 1] - start),
            shape=(last - first, right - left),
        )
        try:
            block_row, block_column = _solve(block)
        except ValueError:
            unsolved.append(items[row_order[first:last]])
            continue
        target[row_order[first + block_row]] = column_order[left + block_column]

    solved = np.flatnonzero(target >= 0)
    is_taken = np.zeros(len(columns), bool)
    is_taken[target[solved]] = True
    moving = solved[columns[target[solved]] != problem.group_key[group[solved]]]
    return _Matching(
        dict(zip(items[moving].tolist(), columns[target[moving]].tolist())),
        is_taken[column[: len(edges.item)]],
        np.concatenate(unsolved),
        np.concatenate(too_large),
    )


def _solve(costs: csr_matrix) -> tuple[np.ndarray, np.ndarray]:
    """Rows and their columns. The sparse solver is slow where columns are scarce, the dense one where they abound."""
    num_rows, num_columns = costs.shape
    if num_columns > 2 * num_rows and num_rows * num_columns > SMALL_MATRIX:
        return min_weight_full_bipartite_matching(costs)
    dense = np.full(costs.shape, np.inf)
    dense[np.repeat(np.arange(num_rows), np.diff(costs.indptr)), costs.indices] = costs.data
    return linear_sum_assignment(dense)


def _sort_by_label(label: np.ndarray, num_labels: int | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Members in the order of their labels, the rank of each in that order, and where each label begins (and ends)."""
    order = np.argsort(label, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    num_labels = int(label.max(initial=-1)) + 1 if num_labels is None else num_labels
    return order, rank, np.searchsorted(label[order], np.arange(num_labels + 1))


def _match_greedily(
    problem: _Problem, items: np.ndarray, label_vectors: LabelVectors, taken: set[int | bytes]
) -> Moves:
    """The cheapest known move first, until one of each group is left. Items with equal vectors share a list."""
    moves: Moves = {}
    if len(items) == 0:
        return moves
    _, first, label = np.unique(label_vectors(items), return_index=True, return_inverse=True)
    order, _, start = _sort_by_label(label)
    waiting = [items[order[a:b]][::-1].tolist() for a, b in pairwise(start)]  # of each label, last one first
    representative = items[first]  # one item of each label
    label_of = dict(zip(representative.tolist(), range(len(representative))))
    group = problem.group
    to_move = problem.to_move.copy()
    growth = 1
    while pending := [i for i, item in enumerate(representative) if waiting[i] and to_move[group[item]] > 0]:
        count = growth * np.array([max(FIRST_CANDIDATES, 2 * len(waiting[i])) for i in pending])
        for amount in np.unique(count).tolist():
            chosen = representative[np.array(pending)[count == amount]]
            for part in np.array_split(chosen, -(-len(chosen) * amount // EDGES_AT_ONCE)):
                edges, _ = problem.edges(part, amount)
                edges = edges.select(np.lexsort((edges.item, edges.added)))
                for item, key in zip(edges.item.tolist(), edges.key.tolist()):
                    members = waiting[label_of[item]]
                    if members and to_move[group[item]] > 0 and key not in taken:
                        moves[members.pop()] = key
                        taken.add(key)
                        to_move[group[item]] -= 1
        growth *= 4
    return moves

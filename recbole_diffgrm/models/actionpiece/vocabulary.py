"""ActionPiece's vocabulary (Hou et al., ICML 2025, Sec. 3.2): sets of features, merged pair by pair.

An item is a set of n features, the digits of its semantic ID; a sequence is a list of such sets. A pair of tokens
counts as often as a random order of every set would bring the two side by side: 2/s for two of one set of s tokens,
1/(s t) for two of neighbouring sets of s and t. The pair that counts most becomes a token, over and over. Two tokens of
one set are replaced in it; two of neighbouring sets leave these, and the new token stands between, a set of its own.

Counts are whole numbers of a fraction that divides all of these, so those kept up to date merge by merge are exactly
those of counting again. Letters in shapes: D distinct SIDs, n digits, M codes, I interactions, R merged pairs.
"""

import hashlib
import heapq
import logging
import math
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from recbole_diffgrm.errors import UserError
from recbole_diffgrm.files import atomic_write, reading
from recbole_diffgrm.progress import progress_bar
from recbole_diffgrm.tokenizer.cache import get_or_build
from recbole_diffgrm.words import count

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1  # raise when the same ingredients begin to give another vocabulary
VOCABULARY_FILE = "vocabulary.npz"
PAD = 0
# A pair waits in the heap once it counts at least this share of the most frequent one when the heap was filled; most
# pairs never do.
HEAP_SHARE = 0.75


class Vocabulary(NamedTuple):
    """Token 0 is padding; then one for each digit's codes that an item has, then the merged pairs; BOS and EOS last."""

    tokens: np.ndarray  # [n, M] int32 token of each code; 0 where no item has it
    pairs: np.ndarray  # [R, 2] int32 what each merged token stands for, the smaller token first
    priority: np.ndarray  # [R] count of the pair when it was merged

    @property
    def first_merged(self) -> int:
        return 1 + int((self.tokens > 0).sum())

    @property
    def size(self) -> int:
        """Without BOS and EOS."""
        return self.first_merged + len(self.pairs)

    @property
    def bos(self) -> int:
        return self.size

    @property
    def eos(self) -> int:
        return self.size + 1

    def tokens_of(self, sids: np.ndarray) -> np.ndarray:
        """SIDs [..., n] -> their unmerged tokens [..., n]"""
        return self.tokens[np.arange(len(self.tokens)), sids]


def cached_vocabulary(
    root: Path, sids: np.ndarray, codebook_size: int, rows: np.ndarray, user: np.ndarray, size: int, progress: bool
) -> Vocabulary:
    """build_vocabulary, or what it has built from the same arrays before."""
    rows, user, sids = rows.astype(np.int32), user.astype(np.int32), sids.astype(np.int32)
    ingredients = {
        "sids": [*sids.shape, hashlib.sha256(sids.tobytes()).hexdigest()],
        "codebook_size": codebook_size,
        "sequences": hashlib.sha256(rows.tobytes() + user.tobytes()).hexdigest(),
        "vocabulary_size": size,
        "format": FORMAT_VERSION,
    }

    def build(folder: Path) -> None:
        built = build_vocabulary(sids, codebook_size, rows, user, size, progress)
        with atomic_write(folder / VOCABULARY_FILE) as file:
            np.savez(file, **built._asdict())

    path = get_or_build(root, "actionpiece", ingredients, build) / VOCABULARY_FILE
    with reading(path), np.load(path) as arrays:
        return Vocabulary(**arrays)


def build_vocabulary(
    sids: np.ndarray, codebook_size: int, rows: np.ndarray, user: np.ndarray, size: int, progress: bool = False
) -> Vocabulary:
    """From distinct SIDs [D, n] and the interactions of training, by user and time: rows of `sids` [I], users [I].

    It has `size` tokens, or fewer where nothing is left to be merged.
    """
    tokens = number_codes(sids, codebook_size)
    first = 1 + int((tokens > 0).sum())
    if first > size:
        raise UserError(f"vocabulary_size ({size}): the digits of the semantic IDs alone take {first} tokens")
    logger.info(f"merging features of {count(len(rows), 'interaction')} to a vocabulary of {size:,} tokens")
    merging = Merging(tokens[np.arange(sids.shape[1]), sids[rows]], user, size)
    pairs, priority = [], []
    for token in progress_bar(range(first, size), desc="vocabulary", unit="token", show=progress, leave=False):
        best = merging.best_pair()
        if best is None:
            break
        pairs.append(best)
        priority.append(merging.counts[merging.key(*best)] / merging.unit)
        merging.merge(*best, token)
    return Vocabulary(tokens, np.array(pairs, np.int32).reshape(-1, 2), np.array(priority, np.float64))


def number_codes(sids: np.ndarray, codebook_size: int) -> np.ndarray:
    """[n, M] tokens from 1 of the codes that occur, by digit and code; 0 for others."""
    num_digits = sids.shape[1]
    is_used = np.zeros((num_digits, codebook_size), bool)
    is_used[np.arange(num_digits), sids] = True
    return np.where(is_used, is_used.cumsum().reshape(is_used.shape), PAD).astype(np.int32)


class Merging:
    """All sequences as lists of sets, the counts of all pairs in them, and where each pair occurs.

    Interaction i is node 2i of a linked list; node 2i + 1 is for a token between it and the next one. A set of two
    tokens or more is thus at an even node with an odd one free behind it, and numbers of nodes are in the order of the
    sequence. A pair occurs at the node of its left set. Only the newest token ever comes next to something new: where a
    pair occurs is known once, when the younger of the two is made, and then only becomes less.
    """

    def __init__(self, features: np.ndarray, user: np.ndarray, size: int):
        """Tokens of every interaction [I, n], and users [I]; all tokens will be below `size`."""
        num_interactions, n = features.shape
        self.size = size
        self.unit = math.lcm(*range(1, n + 1)) ** 2  # what a count of 1 is
        self.inside = [0, 0] + [2 * self.unit // s for s in range(2, n + 1)]  # weight of a pair by the size of its set
        self.across = [[self.unit // (s * t) if s * t else 0 for t in range(n + 1)] for s in range(n + 1)]
        self.sets: list[list[int]] = [[] for _ in range(2 * num_interactions)]
        self.sets[::2] = features.tolist()
        is_last = np.append(user[1:] != user[:-1], True)
        node = 2 * np.arange(num_interactions)
        self.next = np.repeat(np.where(is_last, -1, node + 2), 2).tolist()
        self.previous = np.repeat(np.where(np.roll(is_last, 1), -1, node - 2), 2).tolist()
        self.counts: dict[int, int] = {}  # of a pair's key
        self.places: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # of a token: (other token, node), ascending
        self._count_all(features, ~is_last)
        self.heap: list[tuple[int, int]] = []  # (-count, key): for every pair above the floor, at least its count
        self.floor = math.inf

    def key(self, a: int, b: int) -> int:
        """Of a pair, the smaller token first; keys sort like pairs."""
        return a * self.size + b

    def best_pair(self) -> tuple[int, int] | None:
        """The pair that counts most; of several, the smallest."""
        while self.counts:
            while self.heap:
                negative, key = heapq.heappop(self.heap)
                count = self.counts.get(key, 0)
                if count == -negative:
                    heapq.heappush(self.heap, (negative, key))
                    return divmod(key, self.size)
                if self.floor <= count < -negative:
                    heapq.heappush(self.heap, (-count, key))
            self.floor = int(HEAP_SHARE * max(self.counts.values()))
            self.heap = [(-count, key) for key, count in self.counts.items() if count >= self.floor]
            heapq.heapify(self.heap)
        return None

    def merge(self, a: int, b: int, token: int) -> None:
        """Put `token` in place of the pair, from left to right in every sequence."""
        change: dict[int, int] = defaultdict(int)
        places: set[tuple[int, int]] = set()  # (other token, node) of the pairs with the new one
        for node in self._places(a, b):
            tokens, following = self.sets[node], self.next[node]
            if a != b and a in tokens and b in tokens:
                merged = self._merge_inside(node, a, b, token, change)
            elif following < 0:
                continue
            elif a in tokens and b in self.sets[following]:
                merged = self._merge_across(node, a, following, b, token, change)
            elif b in tokens and a in self.sets[following]:
                merged = self._merge_across(node, b, following, a, token, change)
            else:
                continue
            left, right = self.previous[merged], self.next[merged]
            places.update((other, merged) for other in self.sets[merged] if other != token)
            if left >= 0:
                places.update((other, left) for other in self.sets[left])
            if right >= 0:
                places.update((other, merged) for other in self.sets[right])
        ordered = np.array(sorted(places), dtype=np.int32).reshape(-1, 2)
        self.places[token] = ordered[:, 0].copy(), ordered[:, 1].copy()
        self._update(change)

    def _merge_inside(self, node: int, a: int, b: int, token: int, change: dict[int, int]) -> int:
        span = [self.previous[node], node, self.next[node]]
        self._add(span, -1, change)
        self.sets[node] = [token] + [other for other in self.sets[node] if other not in (a, b)]
        self._add(span, 1, change)
        return node

    def _merge_across(self, left: int, a: int, right: int, b: int, token: int, change: dict[int, int]) -> int:
        """Of `a` at the node `left` and `b` at `right`; returns the node of the new token."""
        before, after = self.previous[left], self.next[right]
        self._add([before, left, right, after], -1, change)
        self.sets[left].remove(a)
        self.sets[right].remove(b)
        node = left if not self.sets[left] else right if not self.sets[right] else left + 1
        self.sets[node] = [token]
        span = [before] + [place for place in sorted({left, node, right}) if self.sets[place]] + [after]
        for one, other in pairwise(span):
            if one >= 0:
                self.next[one] = other
            if other >= 0:
                self.previous[other] = one
        self._add(span, 1, change)
        return node

    def _add(self, span: list[int], sign: int, change: dict[int, int]) -> None:
        """The pairs of neighbouring nodes (-1 for none), without those inside the first and the last of them."""
        size, sets = self.size, self.sets
        for node in span[1:-1]:
            tokens = sets[node]
            weight = sign * self.inside[len(tokens)]
            for number, a in enumerate(tokens):
                for b in tokens[:number]:
                    change[a * size + b if a < b else b * size + a] += weight
        for node, following in pairwise(span):
            if node < 0 or following < 0:
                continue
            tokens, others = sets[node], sets[following]
            weight = sign * self.across[len(tokens)][len(others)]
            for a in tokens:
                for b in others:
                    change[a * size + b if a < b else b * size + a] += weight

    def _update(self, change: dict[int, int]) -> None:
        counts, floor = self.counts, self.floor
        for key, difference in change.items():
            if not difference:
                continue
            count = counts.get(key, 0) + difference
            if not count:
                del counts[key]
                continue
            counts[key] = count
            if difference > 0 and count >= floor:
                heapq.heappush(self.heap, (-count, key))

    def _places(self, a: int, b: int) -> list[int]:
        """Nodes at which the pair occurs or has occurred, ascending."""
        others, nodes = self.places[b]
        begin, end = np.searchsorted(others, [a, a + 1])
        return nodes[begin:end].tolist()

    def _count_all(self, features: np.ndarray, has_next: np.ndarray) -> None:
        """Counts and places before anything is merged, when all sets have the same size."""
        num_interactions, n = features.shape
        one, other = np.triu_indices(n, 1)
        node = 2 * np.arange(num_interactions)
        inside = _unordered(features[:, one], features[:, other])
        left, right = features[:-1][has_next[:-1]], features[1:][has_next[:-1]]
        across = _unordered(np.repeat(left, n, axis=1), np.tile(right, n))
        triples = []  # younger token, older token, node
        for (low, high), places, weight in (
            (inside, node, self.inside[n]),
            (across, node[:-1][has_next[:-1]], self.across[n][n]),
        ):
            keys, numbers = np.unique(low.astype(np.int64) * self.size + high, return_counts=True)
            for key, number in zip(keys.tolist(), numbers.tolist()):
                self.counts[key] = self.counts.get(key, 0) + number * weight
            triples.append(np.stack([high, low, np.broadcast_to(places[:, None], high.shape)]).reshape(3, -1))
        high, low, place = np.concatenate(triples, axis=1).astype(np.int32)
        order = np.lexsort((place, low, high))
        high, low, place = high[order], low[order], place[order]
        is_new = np.ones(len(high), bool)
        is_new[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1]) | (place[1:] != place[:-1])
        high, low, place = high[is_new], low[is_new], place[is_new]
        begins = np.flatnonzero(np.append(True, high[1:] != high[:-1])) if len(high) else np.zeros(0, int)
        for begin, end in zip(begins, np.append(begins[1:], len(high))):
            self.places[int(high[begin])] = low[begin:end], place[begin:end]


def _unordered(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.minimum(a, b), np.maximum(a, b)

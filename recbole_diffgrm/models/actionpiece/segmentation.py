"""From features to tokens of ActionPiece's vocabulary (Hou et al., ICML 2025, Sec. 3.3).

A history is segmented by set permutation: the features of every item in a random order, items one after the other,
then the neighbours with the lowest token are merged, over and over, across items too. The same history thus has many
segmentations. An item that is to be predicted has one: its set is merged by the pairs that counted most.

Many rows are segmented at once: each round merges one pair of every row and looks up its two new neighbourhoods only.
Letters in shapes: B rows, L items, n features of an item, S tokens.
"""

import numpy as np

from recbole_diffgrm.models.actionpiece.vocabulary import PAD, Vocabulary

NO_RULE = np.iinfo(np.int32).max


class MergeRules:
    """Which token two tokens become, whatever their order."""

    def __init__(self, vocabulary: Vocabulary):
        self.size = vocabulary.size
        low, high = vocabulary.pairs.astype(np.int64).T
        key = low * self.size + high
        order = key.argsort()
        # The last entry is above all keys, so that a search always ends at an entry.
        self.keys = np.append(key[order], np.iinfo(np.int64).max)
        self.tokens = np.append(vocabulary.first_merged + order, NO_RULE).astype(np.int32)

    def find(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """[...] int32 the merged token, NO_RULE where the two are not merged."""
        key = np.minimum(a, b) * np.int64(self.size) + np.maximum(a, b)
        index = self.keys.searchsorted(key)
        return np.where(self.keys[index] == key, self.tokens[index], NO_RULE)


def permute_features(features: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Features of items [B, L, n], sorted by `keys` [B, L, n] within each item -> [B, L * n]"""
    order = keys.argsort(axis=2, kind="stable")
    return np.take_along_axis(features, order, axis=2).reshape(len(features), -1)


def hash_keys(items: np.ndarray, num_features: int, num_segmentations: int, seed: int) -> np.ndarray:
    """Keys [B * q, L, n] for q permutations of each history [B, L] (0 is padding), those of a history together.

    The history and the seed determine them, whatever other rows and however much padding there are.
    """
    position = np.arange(items.shape[1], dtype=np.uint64)
    parts = _mix(_mix(items.astype(np.uint64)) + position)  # [B, L]
    history = np.where(items > 0, parts, np.uint64(0)).sum(axis=1, dtype=np.uint64)  # [B]
    number = np.arange(num_segmentations, dtype=np.uint64)
    start = _mix(_mix(history + np.uint64(seed))[:, None] + number).reshape(-1)  # [B * q]
    place = position[:, None] * np.uint64(num_features) + np.arange(num_features, dtype=np.uint64)  # [L, n]
    return _mix(start[:, None, None] + _mix(place))


def _mix(values: np.ndarray) -> np.ndarray:
    """SplitMix64 (Steele et al., 2014): a bijection of 64 bits that changes half of them for every bit of the input."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)


def merge_neighbours(tokens: np.ndarray, rules: MergeRules) -> tuple[np.ndarray, np.ndarray]:
    """Rows of tokens [B, S], padding anywhere but inside a row's tokens -> merged ones [B, T], padded on the right, and
    their numbers [B].

    Of the neighbours in a row that are merged to the lowest token, the leftmost are merged first, until none are left.
    """
    batch_size, width = tokens.shape[0], tokens.shape[1] + 2  # padding at either end: no special cases there
    token = np.full((batch_size, width), PAD, np.int32)
    token[:, 1:-1] = tokens
    merged = np.full((batch_size, width), NO_RULE, np.int32)  # with the next token
    merged[:, :-1] = rules.find(token[:, :-1], token[:, 1:])
    # Neighbours of a place, among those not merged into another, as indices of the flat arrays
    place = np.arange(batch_size * width)
    previous, following = place - 1, place + 1
    flat, flat_merged = token.reshape(-1), merged.reshape(-1)
    begin = np.arange(batch_size) * width  # of the rows that are not finished
    while True:
        left = merged.argmin(axis=1) + begin if len(begin) == batch_size else _argmin(merged, begin, width)
        new = flat_merged[left]
        has_rule = new < NO_RULE
        if not has_rule.all():
            left, new, begin = left[has_rule], new[has_rule], begin[has_rule]
            if not len(left):
                break
        right = following[left]
        before, after = previous[left], following[right]
        flat[left], flat[right] = new, PAD
        following[left], previous[after] = after, left
        flat_merged[right] = NO_RULE
        others = flat[np.concatenate([before, after])]
        flat_merged[np.concatenate([before, left])] = rules.find(others, np.concatenate([new, new]))
    length = (token != PAD).sum(axis=1)
    packed = np.full((batch_size, max(1, length.max(initial=0))), PAD, np.int32)
    packed[np.arange(packed.shape[1]) < length[:, None]] = token[token != PAD]
    return packed, length


def _argmin(merged: np.ndarray, begin: np.ndarray, width: int) -> np.ndarray:
    return merged[begin // width].argmin(axis=1) + begin


def label_tokens(vocabulary: Vocabulary, rules: MergeRules, sids: np.ndarray) -> np.ndarray:
    """The one segmentation of an item that is predicted: SIDs [D, n] -> tokens [D, n], padded on the right.

    The pair of the set that counted most when it was merged (of several, the lowest token) becomes the first token of
    the set. The factor 2 / s of the paper is the same for all pairs of a set.
    """
    tokens = vocabulary.tokens_of(sids).astype(np.int32)
    n = tokens.shape[1]
    by_count = np.lexsort((np.arange(len(vocabulary.pairs)), -vocabulary.priority))
    rank = np.empty(len(by_count) + 1, np.int32)
    rank[by_count], rank[-1] = np.arange(len(by_count)), NO_RULE
    one, other = np.triu_indices(n, 1)
    open_rows = np.arange(len(tokens) if n > 1 else 0)
    while len(open_rows):
        sets = tokens[open_rows]  # [R, n]
        merged = rules.find(sets[:, one], sets[:, other])  # [R, n (n - 1) / 2]
        index = np.minimum(merged - vocabulary.first_merged, len(by_count))
        best = rank[index].argmin(axis=1)
        new = merged[np.arange(len(best)), best]
        has_rule = new < NO_RULE
        open_rows, sets, new, best = open_rows[has_rule], sets[has_rule], new[has_rule], best[has_rule]
        row = np.arange(len(open_rows))
        sets[row, one[best]], sets[row, other[best]] = new, PAD
        place = np.broadcast_to(np.arange(1, n + 1), sets.shape).copy()
        place[row, one[best]], place[row, other[best]] = 0, n + 1  # the new token first, the gap last
        tokens[open_rows] = np.take_along_axis(sets, place.argsort(axis=1), axis=1)
    return tokens

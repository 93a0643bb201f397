"""ActionPiece's vocabulary and segmentations again, as the authors describe them: slow, with fractions and loops."""

from collections import Counter, defaultdict
from fractions import Fraction
from itertools import combinations, pairwise, product

import numpy as np


def random_data(seed: int, num_sids=12, num_digits=3, codebook_size=4, num_users=8, longest=7):
    """Distinct SIDs, ascending, and sequences of them: (sids [D, n], rows [I], user [I])."""
    draw = np.random.default_rng(seed)
    sids = np.unique(draw.integers(0, codebook_size, (num_sids, num_digits)), axis=0)
    lengths = draw.integers(1, longest + 1, num_users)
    user = np.repeat(np.arange(num_users), lengths)
    return sids, draw.integers(0, len(sids), len(user)), user


def ordered(a, b):
    return (a, b) if a <= b else (b, a)


def count_pairs(sequences) -> dict:
    """Of lists of sets of tokens: {pair: Fraction}."""
    counts = defaultdict(Fraction)
    for sets in sequences:
        for tokens in sets:
            for a, b in combinations(tokens, 2):
                counts[ordered(a, b)] += Fraction(2, len(tokens))
        for left, right in pairwise(sets):
            for a, b in product(left, right):
                counts[ordered(a, b)] += Fraction(1, len(left) * len(right))
    return dict(counts)


class Actions:
    """A sequence as the authors keep it: sets (actions), and a slot for one token between neighbours."""

    def __init__(self, sets):
        self.actions = [set(tokens) for tokens in sets]
        self.slots = [None] * (len(sets) - 1)

    def as_sets(self):
        sets = []
        for number, action in enumerate(self.actions):
            sets.append(set(action))
            if number < len(self.slots) and self.slots[number] is not None:
                sets.append({self.slots[number]})
        return sets

    def replace(self, a, b, token):
        for i, action in enumerate(self.actions):
            if a != b and {a, b} <= action:
                action -= {a, b}
                action.add(token)
            if i == len(self.slots):
                break
            following = self.actions[i + 1]
            if self.slots[i] is not None:
                for one, other in ((a, b), (b, a)):
                    if self.slots[i] == one and (other in action or other in following):
                        (action if other in action else following).remove(other)
                        self.slots[i] = token
                        break
            else:
                for one, other in ((a, b), (b, a)):
                    if one in action and other in following:
                        action.remove(one)
                        following.remove(other)
                        self.slots[i] = token
                        break
        self.tidy()

    def tidy(self):
        """Emptied actions take a slot's token, the left one's if there is one, or disappear."""
        while set() in self.actions:
            i = self.actions.index(set())
            left, right = i - 1, i
            if left >= 0 and self.slots[left] is not None:
                self.actions[i], self.slots[left] = {self.slots[left]}, None
            elif right < len(self.slots) and self.slots[right] is not None:
                self.actions[i], self.slots[right] = {self.slots[right]}, None
            else:
                del self.actions[i]
                del self.slots[right if right < len(self.slots) else left]


def build_vocabulary(sids, rows, user, size):
    """(token of each (digit, code), pairs in order, their counts), with everything counted again after each merge."""
    used = sorted({(digit, code) for sid in sids.tolist() for digit, code in enumerate(sid)})
    number = {feature: 1 + i for i, feature in enumerate(used)}
    items = [[number[digit, code] for digit, code in enumerate(sid)] for sid in sids.tolist()]
    sequences = [Actions([items[row] for row in rows[user == one]]) for one in np.unique(user)]
    pairs, priority = [], []
    while 1 + len(used) + len(pairs) < size:
        counts = count_pairs([sequence.as_sets() for sequence in sequences])
        if not counts:
            break
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        for sequence in sequences:
            sequence.replace(*best, 1 + len(used) + len(pairs))
        pairs.append(best)
        priority.append(counts[best])
    return number, pairs, priority


def merge_row(tokens, rules) -> list:
    """Neighbours to the lowest token, the leftmost first, until there are none. rules: {pair: token}"""
    tokens = list(tokens)
    while True:
        merged = [(rules.get(ordered(a, b), 0), i) for i, (a, b) in enumerate(pairwise(tokens))]
        merged = [option for option in merged if option[0]]
        if not merged:
            return tokens
        token, i = min(merged)
        tokens[i : i + 2] = [token]


def label(features, rules, priority) -> list:
    """A set by the pairs that counted most; priority: {token: count}."""
    tokens = list(features)
    while True:
        options = [(rules[ordered(a, b)], a, b) for a, b in combinations(tokens, 2) if ordered(a, b) in rules]
        if not options:
            return tokens
        token, a, b = min(options, key=lambda option: (-priority[option[0]], option[0]))
        tokens = [token] + [other for other in tokens if other not in (a, b)]


def unfold(tokens, vocabulary) -> Counter:
    """The features behind tokens."""
    if len(tokens) != 1:
        return sum((unfold([token], vocabulary) for token in tokens), Counter())
    merged = tokens[0] - vocabulary.first_merged
    return unfold(vocabulary.pairs[merged].tolist(), vocabulary) if merged >= 0 else Counter(tokens)


def rules_of(vocabulary) -> dict:
    return {tuple(pair): vocabulary.first_merged + i for i, pair in enumerate(vocabulary.pairs.tolist())}

"""Segmentations against loops."""

from collections import Counter

import numpy as np
import pytest

from recbole_diffgrm.models.actionpiece.segmentation import (
    NO_RULE,
    MergeRules,
    hash_keys,
    label_tokens,
    merge_neighbours,
    permute_features,
)
from recbole_diffgrm.models.actionpiece.vocabulary import build_vocabulary
from tests.models.actionpiece import reference


def build(seed):
    sids, rows, user = reference.random_data(seed, num_sids=20, num_digits=4, codebook_size=4, num_users=15)
    vocabulary = build_vocabulary(sids, 4, rows, user, 90)
    return vocabulary, MergeRules(vocabulary), sids


def test_rules_have_no_order():
    vocabulary, rules, _ = build(0)
    token = np.arange(vocabulary.size)
    found = rules.find(token[:, None], token)
    expected = np.full(found.shape, NO_RULE)
    for (a, b), merged in reference.rules_of(vocabulary).items():
        expected[a, b] = expected[b, a] = merged
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("seed", range(4))
def test_merged_neighbours_equal_a_loop(seed):
    vocabulary, rules, sids = build(seed)
    draw = np.random.default_rng(seed)
    features = vocabulary.tokens_of(sids)[draw.integers(0, len(sids), (50, 6))]  # [B, L, n]
    features[np.arange(6) >= draw.integers(0, 7, 50)[:, None]] = 0  # some histories are empty, some have no padding
    permuted = permute_features(features, draw.random(features.shape))
    merged, length = merge_neighbours(permuted, rules)
    known = reference.rules_of(vocabulary)
    for row, tokens, count in zip(permuted.tolist(), merged.tolist(), length.tolist()):
        expected = reference.merge_row([token for token in row if token], known)
        assert tokens[:count] == expected and not any(tokens[count:])
        assert reference.unfold(expected, vocabulary) == Counter(token for token in row if token)
    assert length.max() == merged.shape[1] and length.sum() < (permuted > 0).sum()


def test_permutations_stay_within_items():
    draw = np.random.default_rng(0)
    features = draw.integers(1, 100, (5, 4, 3))
    permuted = permute_features(features, draw.random(features.shape)).reshape(features.shape)
    assert np.array_equal(np.sort(permuted, axis=2), np.sort(features, axis=2))
    assert not np.array_equal(permuted, features)


@pytest.mark.parametrize("seed", range(4))
def test_labels_equal_a_loop(seed):
    """And unfold to the item."""
    vocabulary, rules, sids = build(seed)
    priority = {vocabulary.first_merged + i: count for i, count in enumerate(vocabulary.priority.tolist())}
    labels = label_tokens(vocabulary, rules, sids)
    for features, tokens in zip(vocabulary.tokens_of(sids).tolist(), labels.tolist()):
        expected = reference.label(features, reference.rules_of(vocabulary), priority)
        assert tokens == expected + [0] * (len(features) - len(expected))
        assert reference.unfold(expected, vocabulary) == Counter(features)
    assert (labels == 0).any() and len(np.unique(labels, axis=0)) == len(sids)


def test_one_feature_is_its_own_label():
    vocabulary = build_vocabulary(np.array([[0], [2]]), 3, np.array([0, 1]), np.array([0, 0]), 50)
    assert label_tokens(vocabulary, MergeRules(vocabulary), np.array([[0], [2]])).tolist() == [[1], [2]]


def test_hashed_keys_depend_on_the_history_alone():
    histories = np.array([[3, 5, 2, 0], [5, 3, 2, 0], [3, 5, 0, 0], [3, 5, 2, 9]])
    keys = hash_keys(histories, 3, 2, seed=7).reshape(4, 2, 4, 3)
    assert np.array_equal(hash_keys(histories[:1, :3], 3, 2, seed=7)[:, :3], keys[0, :, :3])
    assert np.array_equal(hash_keys(histories, 3, 1, seed=7), keys[:, 0])  # validation has the first of the test's
    assert len(np.unique(keys)) == keys.size
    assert not np.isin(hash_keys(histories, 3, 2, seed=8), keys).any()


def test_hashed_permutations_are_uniform():
    items = 1 + np.arange(6000)[:, None]
    order = hash_keys(items, 3, 2, seed=0).argsort(axis=2).reshape(-1, 3)
    _, counts = np.unique(order, axis=0, return_counts=True)
    assert len(counts) == 6 and abs(counts / 2000 - 1).max() < 0.1

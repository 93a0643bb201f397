"""The trie against enumerated sets of prefixes."""

from itertools import pairwise

import pytest
import torch

from recbole_diffgrm.generation.trie import build_trie, children_of
from tests.generation.helpers import random_sids, trie_of

CATALOGS = [
    (30, 3, 4),
    (200, 4, 6),
    (1, 2, 2),
    (5, 5, 2),
    (40, 2, 3),
    (60, 3, 300),
    (150, 7, 2),
    (12, 4, 4096),
    (9, 1, 5),
]


@pytest.mark.parametrize(("num_items", "num_digits", "codebook_size"), CATALOGS)
@pytest.mark.parametrize("seed", [0, 1])
def test_children(num_items, num_digits, codebook_size, seed):
    sids = random_sids(num_items, num_digits, codebook_size, seed)
    trie = trie_of(sids, codebook_size)
    distinct = sorted(set(map(tuple, sids.tolist())))
    prefixes = [sorted({sid[:length] for sid in distinct}) for length in range(num_digits + 1)]
    level_start = trie.level_start.tolist()
    assert [end - start for start, end in pairwise(level_start)] == list(map(len, prefixes))
    for level in range(num_digits + 1):
        for number, prefix in enumerate(prefixes[level]):
            children = children_of(trie, torch.tensor([level_start[level] + number]))
            expected = [longer for longer in prefixes[level + 1] if longer[:-1] == prefix] if level < num_digits else []
            assert children.code.tolist() == [longer[-1] for longer in expected]
            assert children.node.tolist() == [
                level_start[level + 1] + prefixes[level + 1].index(longer) for longer in expected
            ]
    assert prefixes[num_digits] == distinct  # a leaf's number within its level is the row of its SID


def test_many_nodes_at_once():
    trie = trie_of(random_sids(100, 4, 5), 5)
    nodes = torch.tensor([0, 7, 3, 3, len(trie.code) - 1])
    together = children_of(trie, nodes)
    for row, node in enumerate(nodes):
        alone = children_of(trie, node[None])
        assert together.code[together.parent == row].tolist() == alone.code.tolist()
        assert together.node[together.parent == row].tolist() == alone.node.tolist()
    assert (together.parent == 4).sum() == 0  # a leaf


def test_size():
    trie = build_trie(torch.tensor([[0, 1], [0, 3], [2, 1]]), 4)
    assert trie.code.tolist() == [0, 0, 2, 1, 3, 1]
    assert trie.child_start.tolist() == [1, 3, 5, 6, 6, 6, 6]
    assert trie.level_start.tolist() == [0, 1, 3, 6]


def test_codes_out_of_range():
    with pytest.raises(ValueError, match="codebook of 3"):
        build_trie(torch.tensor([[0, 1], [0, 3]]), 3)

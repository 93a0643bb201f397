"""Which prefixes of semantic IDs exist: a trie, for models that generate the digits from left to right.

Nodes are numbered level by level, and in ascending order within a level: the children of a node are a range of the next
level. Level 0 is the root, level n has one leaf per SID, in the order of the SIDs.

Letters in shapes: D distinct SIDs, n digits, T nodes, R nodes that are asked about.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from recbole_diffgrm.generation.ranges import expand_ranges


class Trie(NamedTuple):
    code: Tensor  # [T] int32 the last code of each node's prefix; 0 for the root
    child_start: Tensor  # [T + 1] node number at which the children of each node begin
    level_start: Tensor  # [n + 2] node number at which each level begins, and T
    first: Tensor  # [T] int32 the first SID below each node
    num_sids: Tensor  # [T] int32 SIDs below each node


class TrieChildren(NamedTuple):
    """Ways to fill the next digit, grouped by parent and in ascending order of the code. All [C]."""

    parent: Tensor  # index among the nodes asked about
    code: Tensor
    node: Tensor


def build_trie(sids: Tensor, codebook_size: int) -> Trie:
    """From distinct SIDs [D, n], ascending."""
    num_sids, n = sids.shape
    if num_sids and int(sids.max()) >= codebook_size:
        raise ValueError(f"a code of {int(sids.max())} in a codebook of {codebook_size}")
    device = sids.device
    codes, num_children, level_sizes = [torch.zeros(1, dtype=torch.int32, device=device)], [], [1]
    is_first = torch.zeros(num_sids, dtype=torch.bool, device=device)  # of the SIDs that share a prefix
    is_first[:1] = True
    firsts, sizes = [torch.zeros(1, dtype=torch.int32, device=device)], [torch.tensor([num_sids], device=device)]
    for digit in range(n):
        parent = is_first.cumsum(0) - 1  # [D] of the level above
        is_first = is_first.clone()
        is_first[1:] |= sids[1:, digit] != sids[:-1, digit]
        codes.append(sids[is_first, digit].int())
        num_children.append(torch.bincount(parent[is_first], minlength=level_sizes[-1]))
        level_sizes.append(int(is_first.sum()))
        firsts.append(torch.nonzero(is_first).squeeze(1))
        sizes.append(torch.diff(firsts[-1], append=firsts[-1].new_tensor([num_sids])))
    leaves = torch.zeros(level_sizes[-1], dtype=torch.int64, device=device)
    child_start = torch.cat([torch.ones(1, dtype=torch.int64, device=device), *num_children, leaves]).cumsum(0)
    level_start = torch.tensor([0, *level_sizes], device=device).cumsum(0)
    return Trie(torch.cat(codes), child_start, level_start, torch.cat(firsts).int(), torch.cat(sizes).int())


def children_of(trie: Trie, nodes: Tensor) -> TrieChildren:
    """Of nodes [R]; leaves have none."""
    begin = trie.child_start[nodes]
    parent, node = expand_ranges(begin, trie.child_start[nodes + 1] - begin)
    return TrieChildren(parent, trie.code[node].long(), node)

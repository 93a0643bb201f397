"""The table of items and semantic IDs: which SIDs exist, which items share one, which items are popular.

Built once from the SIDs of all items, and part of the model: its arrays are saved with the weights, so a checkpoint
generates items without the data it was trained on. Letters in shapes: N items, numbered from 1 (0 is padding), D
distinct SIDs of n digits with M codes each.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from recbole_diffgrm.generation.lattice import Lattice, build_lattice
from recbole_diffgrm.generation.trie import Trie, build_trie

MASKED = -1  # instead of a code: the digit is not known yet


class ItemGroups(NamedTuple):
    """The items of each SID, in the order in which they are ranked."""

    start: Tensor  # [D + 1] where the items of each SID begin
    items: Tensor  # [N] item numbers


class SemanticIds(nn.Module):
    """A model that searches asks for the index of what exists in its constructor: `with_lattice` (any order of digits)
    or `with_trie` (left to right)."""

    sids: Tensor  # [D, n] int16: the distinct SIDs, ascending
    size: Tensor  # [] M
    sid_index: Tensor  # [N + 1] row of each item's SID among the distinct ones, -1 for padding
    popular: Tensor  # [N] items, most popular first

    def __init__(self, arrays: Mapping[str, Tensor]):
        super().__init__()
        self.codebook_size = int(arrays["size"])
        for name, array in arrays.items():
            self.register_buffer(name, array)

    @classmethod
    def build(
        cls, sids: Tensor, codebook_size: int, popularity: Tensor, collision_order: str = "popularity"
    ) -> "SemanticIds":
        """`sids` [N + 1, n] and `popularity` [N + 1] of all items. Items that share a SID are ranked by
        `collision_order` (popularity, number); equally popular ones by their number."""
        preference = popularity if collision_order == "popularity" else torch.zeros_like(popularity)
        popular = popularity[1:].argsort(descending=True, stable=True).int() + 1
        return cls._from_items(sids, torch.tensor(codebook_size), preference, popular)

    @classmethod
    def _from_items(cls, sids: Tensor, size: Tensor, preference: Tensor, popular: Tensor) -> "SemanticIds":
        distinct, index = distinct_sids(sids[1:])
        sid_index = torch.cat([index.new_tensor([-1]), index])
        groups = group_items(sid_index, preference)
        arrays = {"sids": distinct.short(), "size": size, "sid_index": sid_index.int()}
        arrays |= {f"group_{name}": array for name, array in groups._asdict().items()}
        return cls({**arrays, "popular": popular})

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor], prefix: str) -> "SemanticIds":
        """From the state dict of a model that has one under `prefix`."""
        return cls({name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)})

    def extend(self, sids: Tensor) -> "SemanticIds":
        """With the SIDs [K, n] of new items, which get the next numbers and are the least popular ones; with the same
        indices. All on the CPU."""
        old = SemanticIds({name: buffer.cpu() for name, buffer in self.named_buffers()})
        num_old = len(old.popular)
        numbers = torch.arange(num_old + len(sids) + 1)
        preference = torch.zeros_like(numbers)  # items that share a SID stay in their order
        preference[old.groups.items.long()] = torch.arange(num_old, 0, -1)
        extended = SemanticIds._from_items(
            torch.cat([old.lookup(numbers[: num_old + 1]), sids.long()]),
            old.size,
            preference,
            torch.cat([old.popular, numbers[num_old + 1 :].int()]),
        )
        if "lattice_exists" in self._buffers:
            extended.with_lattice()
        return extended.with_trie() if "trie_code" in self._buffers else extended

    def with_lattice(self) -> "SemanticIds":
        if "lattice_exists" not in self._buffers:
            self._register("lattice", build_lattice(self.sids, self.codebook_size)._asdict(), leave_out="sids")
        return self

    def with_trie(self) -> "SemanticIds":
        if "trie_code" not in self._buffers:
            self._register("trie", build_trie(self.sids, self.codebook_size)._asdict())
        return self

    def _register(self, prefix: str, arrays: Mapping[str, Tensor], leave_out: str = "") -> None:
        for name, array in arrays.items():
            if name != leave_out:
                self.register_buffer(f"{prefix}_{name}", array)

    @property
    def lattice(self) -> Lattice:
        names = [name for name in Lattice._fields if name != "sids"]
        return Lattice(self.sids, *(self.get_buffer(f"lattice_{name}") for name in names))

    @property
    def trie(self) -> Trie:
        return Trie(*(self.get_buffer(f"trie_{name}") for name in Trie._fields))

    @property
    def groups(self) -> ItemGroups:
        return ItemGroups(*(self.get_buffer(f"group_{name}") for name in ItemGroups._fields))

    @property
    def num_sids(self) -> int:
        return len(self.sids)

    @property
    def num_digits(self) -> int:
        return self.sids.shape[1]

    def lookup(self, items: Tensor) -> Tensor:
        """SIDs of items: [...] -> [..., n]. Padding has the codes of some SID."""
        return self.sids[self.sid_index[items].long()].long()

    def find(self, sids: Tensor) -> Tensor:
        """Rows of the given SIDs [R, n] among the distinct ones: [R], -1 for a SID that no item has."""
        return find_rows(self.sids, sids)

    def group_size(self, items: Tensor) -> Tensor:
        """[...]: how many items have the same SID."""
        start, row = self.groups.start, self.sid_index[items].long()
        return start[row + 1] - start[row]


def distinct_sids(sids: Tensor) -> tuple[Tensor, Tensor]:
    """SIDs of all items [N, n] -> (the distinct ones [D, n], ascending; each item's row among them [N])."""
    order = torch.arange(len(sids))
    for digit in reversed(range(sids.shape[1])):  # the last digit first: later, stable sorts keep its order in ties
        order = order[sids[order, digit].argsort(stable=True)]
    ordered = sids[order]
    is_first = torch.ones(len(sids), dtype=torch.bool)
    is_first[1:] = (ordered[1:] != ordered[:-1]).any(dim=1)
    row = torch.empty_like(order)
    row[order] = is_first.cumsum(0) - 1
    return ordered[is_first], row


def find_rows(table: Tensor, sids: Tensor) -> Tensor:
    """Rows of the ascending `table` [D, n] that equal `sids` [R, n]; -1 where there is none. Bisection."""
    low = torch.zeros(len(sids), dtype=torch.int64, device=table.device)
    high = torch.full_like(low, len(table) - 1)
    for _ in range((len(table) - 1).bit_length()):
        middle = (low + high) // 2
        difference = table[middle] - sids  # [R, n]; the first digit that differs decides
        first = (difference != 0).int().argmax(dim=1, keepdim=True)
        is_less = difference.gather(1, first).squeeze(1) < 0
        low = torch.where(is_less, middle + 1, low).clamp(max=len(table) - 1)
        high = torch.where(is_less, high, middle)
    return torch.where((table[low] == sids).all(dim=1), low, -1)


def group_items(sid_index: Tensor, preference: Tensor) -> ItemGroups:
    """From each item's SID as a row [N + 1] and its preference [N + 1]; entry 0 is padding. Items with a higher
    preference come first, then those with the smaller number."""
    order = preference[1:].argsort(descending=True, stable=True)
    order = order[sid_index[1:][order].argsort(stable=True)]
    start = torch.searchsorted(sid_index[1:][order], torch.arange(int(sid_index.max()) + 2, device=sid_index.device))
    return ItemGroups(start.int(), order.int() + 1)

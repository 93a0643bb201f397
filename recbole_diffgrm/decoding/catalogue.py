"""All that decoding and its users know of the items: which IDs exist, whose they are, who is popular.

Built once from the table of IDs, and part of the model: its arrays are saved with the weights, so that a checkpoint
decodes without the data it was trained on.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from recbole_diffgrm.decoding import lattice as lattices
from recbole_diffgrm.decoding.items import ItemGroups, group_items
from recbole_diffgrm.decoding.lattice import Lattice


class Catalogue(nn.Module):
    """Items are numbered from 1; 0 is padding."""

    def __init__(self, arrays: Mapping[str, Tensor]):
        super().__init__()
        for name, array in arrays.items():
            self.register_buffer(name, array)

    @classmethod
    def build(cls, sids: Tensor, codes: int, popularity: Tensor, order: str = "popularity") -> "Catalogue":
        """`sids` [N + 1, n] and `popularity` [N + 1] of all items. Items that share an ID come in `order` (popularity,
        number); equally popular ones by their number."""
        ids, row = lattices.distinct_ids(sids[1:])
        lattice = lattices.build(ids, codes)
        row = torch.cat([row.new_tensor([-1]), row])  # item 0 has none
        groups = group_items(row, popularity if order == "popularity" else torch.zeros_like(popularity))
        arrays = {f"lattice_{name}": array for name, array in lattice._asdict().items()}
        arrays |= {f"group_{name}": array for name, array in groups._asdict().items()}
        arrays["row"] = row.int()  # [N + 1] each item's ID as a row of the lattice's
        arrays["popular"] = popularity[1:].argsort(descending=True, stable=True).int() + 1  # [N] items
        return cls(arrays)

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor], prefix: str) -> "Catalogue":
        """Out of the weights of a model that has one."""
        return cls({name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)})

    @property
    def lattice(self) -> Lattice:
        return Lattice(*(getattr(self, f"lattice_{name}") for name in Lattice._fields))

    @property
    def groups(self) -> ItemGroups:
        return ItemGroups(*(getattr(self, f"group_{name}") for name in ItemGroups._fields))

    @property
    def digits(self) -> int:
        return self.lattice_exists.shape[0]

    @property
    def codes(self) -> int:
        return self.lattice_exists.shape[1]

    def sids(self, items: Tensor) -> Tensor:
        """[...] -> [..., n]; padding has the codes of some ID."""
        return self.lattice_ids[self.row[items].long()].long()

    def group_size(self, items: Tensor) -> Tensor:
        """[...]: how many items have the same ID."""
        row = self.row[items].long()
        return self.group_start[row + 1] - self.group_start[row]

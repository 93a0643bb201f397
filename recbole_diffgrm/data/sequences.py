"""All interactions as flat arrays, and prefix samples cut from them when a batch is made.

RecBole copies every prefix of every user into a row padded to 50: 10 M interactions would take 8 GB. Here a sample is
the row number of its target; its history is the rows just before, so 10 M samples take 40 MB.
"""

import copy
from dataclasses import dataclass

import numpy as np
import torch
from recbole.data.interaction import Interaction
from torch import Tensor


def stable_order(keys: np.ndarray) -> np.ndarray:
    """[N] int32 rows in ascending order of `keys`; equal ones keep their order."""
    return np.argsort(keys, kind="stable").astype(np.int32)


@dataclass(frozen=True)
class FlatSequences:
    """Interactions sorted by user, then time; ties keep file order. Row i is one interaction."""

    user: Tensor  # [N] int32
    item: Tensor  # [N] int32
    position: Tensor  # [N] int32, index in the user's own sequence
    num_known: Tensor  # [N] int32, how many of the user's first interactions are the history of this one
    features: dict[str, Tensor]  # other columns of .inter, [N, ...]

    @classmethod
    def build(cls, user: np.ndarray, item: np.ndarray, features: dict[str, Tensor], part: np.ndarray | None = None):
        """From columns sorted by user, then time. `part` [N] of a ready-made split, 0 for training, comes before time:
        interactions of validation and test then know only those of earlier parts."""
        is_first = np.ones(len(user), dtype=bool)
        is_first[1:] = user[1:] != user[:-1]
        rows = np.arange(len(user), dtype=np.int32)
        first_row = rows[is_first][np.cumsum(is_first, dtype=np.int32) - 1]
        position = num_known = torch.from_numpy(rows - first_row)
        if part is not None:
            is_first[1:] |= part[1:] != part[:-1]
            first_of_part = rows[is_first][np.cumsum(is_first, dtype=np.int32) - 1]
            num_known = torch.from_numpy(np.where(part == 0, rows, first_of_part) - first_row)
        return cls(
            torch.from_numpy(user.astype(np.int32, copy=False)),
            torch.from_numpy(item.astype(np.int32, copy=False)),
            position,
            num_known,
            features,
        )


@dataclass(frozen=True)
class Fields:
    """RecBole's names for the columns of a batch."""

    user: str
    item: str
    length: str
    list_suffix: str


class PrefixSamples:
    """Samples (user, history, next item) as row numbers of their targets.

    Stands where RecBole has its table of interactions: samples["item_id"] is a column, samples[index] a batch.
    """

    def __init__(self, flat: FlatSequences, rows: Tensor, max_length: int, fields: Fields):
        self.flat = flat
        self.rows = rows  # [S] int32
        self.max_length = max_length
        self.fields = fields

    def select(self, rows: Tensor) -> "PrefixSamples":
        selected = copy.copy(self)
        selected.rows = rows
        return selected

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, name: str) -> bool:
        return name in (self.fields.user, self.fields.item, self.fields.length) or name in self.flat.features

    def __getitem__(self, key):
        return self.column(key) if isinstance(key, str) else self.cut(torch.as_tensor(key), self.max_length)

    def column(self, name: str) -> Tensor:
        rows = self.rows.long()
        if name == self.fields.user:
            return self.flat.user[rows].long()
        if name == self.fields.item:
            return self.flat.item[rows].long()
        if name == self.fields.length:
            return self.lengths(self.rows)
        return self.flat.features[name][rows]

    def lengths(self, rows: Tensor) -> Tensor:
        """Length of the history a model sees."""
        return self.flat.num_known[rows.long()].clamp(max=self.max_length).long()

    def cut(self, index: Tensor, width: int | None = None) -> Interaction:
        """The samples `index` as a batch, histories padded on the right with 0 to `width` or to the longest."""
        rows = self.rows[index].long()  # [B]
        length = self.lengths(rows)  # [B]
        steps = torch.arange(width or int(length.max()))  # [L]
        end = rows - self.flat.position[rows] + self.flat.num_known[rows]  # [B] row after the history
        source = (end - length)[:, None] + steps  # [B, L]
        padding = steps >= length[:, None]  # [B, L]
        source[padding] = 0
        batch = {
            self.fields.user: self.flat.user[rows].long(),
            self.fields.item: self.flat.item[rows].long(),
            self.fields.length: length,
            self.fields.item + self.fields.list_suffix: self.flat.item[source].long().masked_fill_(padding, 0),
        }
        for name, values in self.flat.features.items():
            batch[name] = values[rows]
            history = values[source]  # [B, L, ...]
            history[padding] = 0
            batch[name + self.fields.list_suffix] = history
        return Interaction(batch)

    def with_history(self, shortest: int, longest: int | None) -> "PrefixSamples":
        """Only samples with at least `shortest` and at most `longest` items before their target."""
        before = self.flat.num_known[self.rows.long()]
        is_kept = before >= shortest
        if longest is not None:
            is_kept &= before <= longest
        return self.select(self.rows[is_kept])

    def last_of_each_user(self) -> "PrefixSamples":
        """Only each user's last sample (rows are in user order)."""
        user = self.column(self.fields.user)
        is_last = torch.ones(len(user), dtype=torch.bool)
        is_last[:-1] = user[1:] != user[:-1]
        return self.select(self.rows[is_last])

    def whole_sequences(self) -> "PrefixSamples":
        """As few samples as hold every item of a user, as target or in a history: the last of each user and, where that
        does not reach back to the first, every max_length-th before it."""
        user = self.column(self.fields.user)
        position = self.flat.position[self.rows.long()]
        ends = torch.nonzero(torch.diff(user, append=user.new_tensor([-1]))).squeeze(1)  # each user's last sample
        last = torch.repeat_interleave(position[ends], torch.diff(ends, prepend=ends.new_tensor([-1])))
        return self.select(self.rows[(last - position) % self.max_length == 0])

    def full_histories(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """(row in the batch, item) of everything before the targets, however long ago: what a user has had."""
        rows = self.rows[index].long()
        length = self.flat.num_known[rows].long()
        batch_row = torch.repeat_interleave(torch.arange(len(rows)), length)
        within = torch.arange(len(batch_row)) - torch.repeat_interleave(length.cumsum(0) - length, length)
        source = torch.repeat_interleave(rows - self.flat.position[rows], length) + within
        return batch_row, self.flat.item[source].long()

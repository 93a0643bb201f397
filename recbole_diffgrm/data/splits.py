"""Training, validation and test data: leave-last-out, and the training samples that are asked for."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from recbole_diffgrm.data.dataset import FlatSequentialDataset
from recbole_diffgrm.data.sequences import FlatSequences, PrefixSamples
from recbole_diffgrm.errors import UserError


@dataclass(frozen=True)
class Split:
    """Parts of one dataset, which share its flat arrays."""

    dataset: FlatSequentialDataset  # all interactions
    train: FlatSequentialDataset
    valid: FlatSequentialDataset
    test: FlatSequentialDataset

    @property
    def parts(self) -> tuple[FlatSequentialDataset, ...]:
        return self.dataset, self.train, self.valid, self.test

    @property
    def item_ids(self) -> np.ndarray:
        """[num_items - 1] the data's own ids, by item number from 1; number 0 is padding."""
        return np.asarray(self.dataset.field2id_token[self.dataset.iid_field], dtype=str)[1:]

    @cached_property
    def training_rows(self) -> Tensor:
        """Rows of the flat arrays that training may look at: all but the targets of validation and test."""
        flat = self.dataset.inter_feat.flat
        is_free = torch.ones(len(flat.item), dtype=torch.bool)
        for part in (self.valid, self.test):
            is_free[part.inter_feat.rows.long()] = False
        return torch.nonzero(is_free).squeeze(1)

    @cached_property
    def popularity(self) -> Tensor:
        """[num_items] interactions of each item in training."""
        flat = self.dataset.inter_feat.flat
        return torch.bincount(flat.item[self.training_rows].long(), minlength=self.dataset.item_num)

    @cached_property
    def target_counts(self) -> Counter:
        """{item: how often it is a training target}, as RecBole counts for its popularity metrics: the same for every
        model, whichever of the samples it trains on."""
        flat, rows = self.dataset.inter_feat.flat, self.training_rows
        item, count = torch.unique(flat.item[rows[flat.position[rows] > 0]], return_counts=True)
        return Counter(dict(zip(item.tolist(), count.tolist())))


def make_split(config, dataset: FlatSequentialDataset) -> Split:
    if isinstance(dataset.inter_feat, pd.DataFrame):
        dataset._change_feat_format()
    mode = config["eval_args"]["split"]["LS"]
    parts = leave_last_out(dataset.inter_feat.flat, mode)
    needed = {"valid_and_test": ("validation", "test"), "valid_only": ("validation",), "test_only": ("test",)}[mode]
    for name, part in zip(("training", "validation", "test"), parts):
        if len(part) == 0 and name in ("training", *needed):
            raise UserError(
                f"{dataset.dataset_name} is too small for the split {mode}: no {name} sample "
                f"({dataset.user_num - 1} users, {len(dataset.inter_feat)} interactions; a user needs at least 4)"
            )
    train, valid, test = (dataset.inter_feat.select(part) for part in parts)
    train = _select_training_samples(config, dataset.dataset_name, train)
    return Split(dataset, *(dataset.copy(part) for part in (train, valid, test)))


def sample_users(part: FlatSequentialDataset, count: int | None, seed: int) -> FlatSequentialDataset:
    """A random subset of its users, in their order; all for None."""
    if count is None:
        return part
    samples = part.inter_feat
    chosen = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed))[:count].sort().values
    return part.copy(samples.select(samples.rows[chosen]))


def _select_training_samples(config, name: str, samples: PrefixSamples) -> PrefixSamples:
    shortest, longest = config["min_history"], config["max_history"]
    if config["sample_unit"] == "sequence":
        chosen = samples.whole_sequences()
    elif config["sliding_window"]:
        chosen = samples.with_history(shortest, longest)
    else:
        chosen = samples.last_of_each_user().with_history(shortest, None)
    if len(chosen) == 0:
        raise UserError(f"min_history: no training sample of {name} has {shortest} items before it")
    return chosen.select(chosen.rows.repeat_interleave(config["train_repeat"]))


def leave_last_out(flat: FlatSequences, mode: str) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of the training, validation and test targets: RecBole's leave-one-out, without its loops.

    A user's samples are all interactions but the first. The last is for test, the one before for validation, but at
    least one stays for training, so short sequences give up validation first.
    """
    samples = torch.nonzero(flat.position > 0).squeeze(1).int()
    user = flat.user[samples.long()]
    is_last = torch.ones(len(samples), dtype=torch.bool)
    is_last[:-1] = user[1:] != user[:-1]
    last = torch.nonzero(is_last).squeeze(1)  # [U] index of each user's last sample
    count = torch.diff(last, prepend=torch.tensor([-1]))  # [U] samples of each user
    test = last[count >= 2]
    valid = last[count >= 3] - 1
    empty = test[:0]
    if mode == "valid_only":
        valid, test = test, empty
    elif mode == "test_only":
        valid = empty
    is_train = torch.ones(len(samples), dtype=torch.bool)
    is_train[valid] = False
    is_train[test] = False
    return samples[is_train], samples[valid], samples[test]

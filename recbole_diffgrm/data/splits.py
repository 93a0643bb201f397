"""Training, validation and test data: each interaction belongs to one of them, and the training samples asked for.

A target is an interaction with a history: the user's interactions before it, whatever their part (in a ready-made
split: those of earlier files). Each held-out target is a row of its own; only leave-last-out has one a user.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from recbole_diffgrm.config.protocol import held_out_parts, to_seconds
from recbole_diffgrm.data.dataset import FlatSequentialDataset
from recbole_diffgrm.data.sequences import FlatSequences, PrefixSamples
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.words import count

TRAIN, VALID, TEST = range(3)
PART_NAMES = ("training", "validation", "test")
# Unix time above this counts milliseconds: in seconds it would be after the year 5000.
LARGEST_SECONDS = 1e11
TEST_SEED = 0  # of the users that num_test_users draws


@dataclass(frozen=True)
class Split:
    """Parts of one dataset, which share its flat arrays."""

    dataset: FlatSequentialDataset  # all interactions
    train: FlatSequentialDataset
    valid: FlatSequentialDataset
    test: FlatSequentialDataset
    part_of_row: Tensor  # [N] int8: TRAIN, VALID or TEST, for each row of the flat arrays

    @property
    def parts(self) -> tuple[FlatSequentialDataset, ...]:
        return self.dataset, self.train, self.valid, self.test

    @property
    def item_ids(self) -> np.ndarray:
        """[num_items - 1] the data's own ids, by item number from 1; number 0 is padding."""
        return np.asarray(self.dataset.field2id_token[self.dataset.iid_field], dtype=object)[1:]

    @cached_property
    def training_rows(self) -> Tensor:
        """Rows of the flat arrays that training may look at."""
        return torch.nonzero(self.part_of_row == TRAIN).squeeze(1)

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
        counts = torch.bincount(flat.item[rows[flat.position[rows] > 0]])
        item = torch.nonzero(counts).squeeze(1)
        return Counter(dict(zip(item.tolist(), counts[item].tolist())))

    def statistics(self) -> dict[str, int]:
        """Of the held-out interactions."""
        targets = [part.inter_feat[self.dataset.iid_field] for part in (self.valid, self.test)]
        return {
            "valid_targets": len(self.valid),
            "test_targets": len(self.test),
            "test_targets_not_in_training": int((self.popularity[targets[1]] == 0).sum()),
            "held_out_without_history": int((self.part_of_row != TRAIN).sum()) - sum(map(len, targets)),
        }


def make_split(config, dataset: FlatSequentialDataset) -> Split:
    if isinstance(dataset.inter_feat, pd.DataFrame):
        dataset._change_feat_format()
    flat = dataset.inter_feat.flat
    part_of_row = _assign_parts(config, dataset)
    rows = [torch.nonzero((part_of_row == part) & (flat.num_known > 0)).squeeze(1).int() for part in range(3)]
    for part in (TRAIN, *({"valid": VALID, "test": TEST}[name] for name in held_out_parts(config))):
        if len(rows[part]) == 0:
            raise UserError(_describe_lack(config, dataset, PART_NAMES[part]))
    train, valid, test = map(dataset.inter_feat.select, rows)
    train = _select_training_samples(config, dataset.dataset_name, train)
    return Split(dataset, dataset.copy(train), dataset.copy(valid), dataset.copy(test), part_of_row)


def _assign_parts(config, dataset: FlatSequentialDataset) -> Tensor:
    flat = dataset.inter_feat.flat
    if dataset.ready_made_parts is not None:
        return dataset.ready_made_parts
    ((kind, value),) = config["eval_args"]["split"].items()
    if kind == "LS":
        return leave_last_out(flat, value)
    if kind == "RS":
        return split_by_ratio(flat, value)
    return split_by_time(flat.features[dataset.time_field].numpy(), value)


def _describe_lack(config, dataset: FlatSequentialDataset, name: str) -> str:
    size = f"{count(dataset.user_num - 1, 'user')}, {count(len(dataset.inter_feat), 'interaction')}"
    if dataset.ready_made_parts is not None:
        return f"{dataset.dataset_name}: the files of benchmark_filename have no {name} sample ({size})"
    ((kind, value),) = config["eval_args"]["split"].items()
    if kind == "LS":
        size += "; a user needs at least 4"
    if kind == "TS":
        times = dataset.inter_feat.flat.features[dataset.time_field]
        size += f" from time {times.min().item()} to {times.max().item()}"
    split = value if kind == "LS" else f"{kind} {value}"
    return f"{dataset.dataset_name} is too small for the split {split}: no {name} sample ({size})"


def sample_test_users(config, split: Split) -> FlatSequentialDataset:
    """The test data, or those of num_test_users: whatever the seed of a run, so that all are tested on the same."""
    return sample_users(split.test, config["num_test_users"], TEST_SEED)


def sample_users(part: FlatSequentialDataset, count: int | None, seed: int) -> FlatSequentialDataset:
    """A random subset of its users, in their order; all for None."""
    if count is None:
        return part
    samples = part.inter_feat
    users, number = torch.unique_consecutive(samples[part.uid_field], return_inverse=True)
    is_chosen = torch.zeros(len(users), dtype=torch.bool)
    is_chosen[torch.randperm(len(users), generator=torch.Generator().manual_seed(seed))[:count]] = True
    return part.copy(samples.select(samples.rows[is_chosen[number]]))


def _select_training_samples(config, name: str, samples: PrefixSamples) -> PrefixSamples:
    shortest, longest = config["min_history"], config["max_history"]
    if config["sample_unit"] == "sequence":
        chosen = samples.whole_sequences()
    elif config["sliding_window"]:
        chosen = samples.with_history(shortest, longest)
    else:
        chosen = samples.last_of_each_user().with_history(shortest, None)
    if len(chosen) == 0:
        raise UserError(f"min_history: no training sample of {name} has {count(shortest, 'item')} before it")
    return chosen.select(chosen.rows.repeat_interleave(config["train_repeat"]))


def leave_last_out(flat: FlatSequences, mode: str) -> Tensor:
    """[N] part of each interaction: RecBole's leave-one-out, without its loops.

    A user's targets are all interactions but the first. The last is for test, the one before for validation, but at
    least one stays for training, so short sequences give up validation first.
    """
    last = _last_rows(flat)
    num_targets = flat.position[last]
    part = torch.zeros(len(flat.user), dtype=torch.int8)
    part[last[num_targets >= 2]] = VALID if mode == "valid_only" else TEST
    if mode == "valid_and_test":
        part[last[num_targets >= 3] - 1] = VALID
    return part


def split_by_ratio(flat: FlatSequences, ratios: list[float]) -> Tensor:
    """[N] part of each interaction: each user's targets, in order of time, cut as RecBole cuts them."""
    num_targets = flat.position[_last_rows(flat)].long()  # [U]
    ends = torch.zeros(int(num_targets.max()) + 1, 2, dtype=torch.int32)
    for total in torch.unique(num_targets).tolist():
        num_train, num_valid, _ = count_by_ratio(total, ratios)
        ends[total, 0], ends[total, 1] = num_train, num_train + num_valid
    ends = ends[torch.repeat_interleave(num_targets, num_targets + 1)]  # [N, 2]: of the user of each row
    number = flat.position - 1  # of a target among its user's, from 0
    return ((number >= ends[:, 0]).to(torch.int8) + (number >= ends[:, 1])).masked_fill(number < 0, TRAIN)


def count_by_ratio(total: int, ratios: list[float]) -> list[int]:
    """How many of a user's targets each part gets. RecBole's rule: shares are rounded down, training takes the rest;
    then a part whose share is below one target takes one from training, test first, while training keeps one."""
    shares = [ratio / sum(ratios) * total for ratio in ratios]
    counts = [0, *map(int, shares[1:])]
    counts[TRAIN] = total - sum(counts)
    for part in (TEST, VALID):
        if counts[TRAIN] <= 1:
            break
        if 0 < shares[part] < 1:
            counts[part] += 1
            counts[TRAIN] -= 1
    return counts


def split_by_time(times: np.ndarray, points: list[Any]) -> Tensor:
    """[N] part of each interaction: validation begins at the first point, test at the second, wherever a user's
    sequence stands. `points`: two times, or three shares of all interactions; equal times are never separated."""
    if len(points) == 3:
        ordered = np.sort(times)
        shares = np.cumsum(points)[:2] / np.sum(points)
        numbers = np.rint(shares * len(times)).astype(int)
        starts = [ordered[number] if number < len(times) else np.inf for number in numbers]
    elif isinstance(points[0], str):
        unit = 1000 if times.max() > LARGEST_SECONDS else 1
        starts = [unit * to_seconds(point) for point in points]
    else:
        starts = points
    part = sum((times >= float(start)).astype(np.int8) for start in starts)
    return torch.from_numpy(part)


def _last_rows(flat: FlatSequences) -> Tensor:
    """[U] row of each user's last interaction: the one before a first."""
    return torch.nonzero(flat.position.roll(-1) == 0).squeeze(1)

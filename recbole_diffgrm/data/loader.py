"""Batches of prefix samples: bucketed by length and trimmed for training, in order for evaluation."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from recbole.data.interaction import Interaction
from recbole.data.transform import MaskItemSequence, construct_transform
from recbole.sampler import RepeatableSampler
from recbole.utils import InputType
from torch import Tensor

from recbole_diffgrm import processes
from recbole_diffgrm.data.dataset import FlatSequentialDataset
from recbole_diffgrm.errors import UserError

# Batches are sorted by length inside shuffled groups of this many: little padding, yet each batch is a random mixture
# of what its group holds and no two epochs cut the same batches.
BATCHES_PER_GROUP = 16

# Largest share of one item among negatives.
MOST_OF_ONE_ITEM = 0.999


class TrainLoader:
    """Every training sample once an epoch, in an order that depends on the seed and the epoch alone."""

    def __init__(self, config, dataset: FlatSequentialDataset, trim: bool):
        self.dataset = dataset
        self.samples = dataset.inter_feat
        self.trim = trim
        self.shuffle = config["shuffle"]
        self.seed = config["seed"]
        self.transform = construct_transform(config)
        if isinstance(self.transform, MaskItemSequence):
            _check_unseen(dataset)
        self.negatives = _NegativeItems.for_config(config, dataset)
        times = self.negatives.times if self.negatives else 1
        self.batch_size = max(1, config["train_batch_size"] // times)

    def __len__(self) -> int:
        return -(-len(self.samples) // self.batch_size)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Interaction]:
        """The batches of an epoch from number `start` on."""
        return map(self.batch, self.plan(epoch)[start:])

    def batch(self, index: Tensor) -> Interaction:
        """The samples of these numbers."""
        batch = self.samples.cut(index, None if self.trim else self.samples.max_length)
        batch = self.transform(self.dataset, batch)
        return self.negatives.add(batch) if self.negatives else batch

    def plan(self, epoch: int) -> list[Tensor]:
        """Sample numbers of each batch."""
        count = len(self.samples)
        if not self.shuffle:
            return list(torch.arange(count).split(self.batch_size))
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + epoch) % 2**63)
        order = torch.randperm(count, generator=generator)
        if not self.trim:
            return list(order.split(self.batch_size))
        lengths = self.samples.lengths(self.samples.rows)
        groups = order.split(self.batch_size * BATCHES_PER_GROUP)
        batches = [
            batch
            for group in groups
            for batch in group[torch.argsort(lengths[group], stable=True)].split(self.batch_size)
        ]
        return [batches[i] for i in torch.randperm(len(batches), generator=generator)]


def _check_unseen(dataset: FlatSequentialDataset) -> None:
    """RecBole's masks draw items until one is not in the history: for ever, where all of them are."""
    samples, num_items = dataset.inter_feat, dataset.item_num - 1
    if samples.max_length < num_items:
        return
    longest = samples.rows[samples.lengths(samples.rows) >= num_items]
    for index in torch.arange(len(longest)).split(1024):
        histories = samples.select(longest).cut(index)[samples.fields.item + samples.fields.list_suffix]
        if any(len(set(history) - {0}) == num_items for history in histories.tolist()):
            raise UserError(
                f"a history holds all {num_items} items, and none is left as a negative: lower MAX_ITEM_LIST_LENGTH"
            )


class EvalBatch(NamedTuple):
    interaction: Interaction
    target: Tensor  # [B]
    seen: tuple[Tensor, Tensor]  # (row, item) of the users' whole histories
    negatives: Tensor | None = None  # [B, n] items that the target is ranked against; None: all


class EvalLoader:
    """Validation or test targets, sorted by history length so that trimmed batches stay narrow."""

    def __init__(
        self,
        config,
        dataset: FlatSequentialDataset,
        trim: bool,
        batch_size: int,
        item_counts: Counter | None = None,
        negatives: Tensor | None = None,
    ):
        self.dataset = dataset
        self.samples = dataset.inter_feat
        self.trim = trim
        self.batch_size = batch_size
        self.item_counts = item_counts or Counter()  # in training, for metrics of popularity
        self.negatives = negatives  # [samples, n] items that each target is ranked against; None: all
        self.transform = construct_transform(config)
        if isinstance(self.transform, MaskItemSequence):  # random masks, for training only
            self.transform = None
        lengths = self.samples.lengths(self.samples.rows)
        self.order = torch.argsort(lengths, stable=True) if trim else torch.arange(len(self.samples))

    def __len__(self) -> int:
        """Batches of the process that has most of them."""
        return -(-len(self.samples) // (self.batch_size * processes.world()))

    def __iter__(self) -> Iterator[tuple[Tensor, EvalBatch]]:
        """(sample numbers, batch) of this process's share."""
        own = processes.share(self.order)
        for index in own.split(self.batch_size) if len(own) else ():
            batch = self.samples.cut(index, None if self.trim else self.samples.max_length)
            target = batch[self.dataset.iid_field]
            if self.transform:
                batch = self.transform(self.dataset, batch)
            negatives = None if self.negatives is None else self.negatives[index]
            yield index, EvalBatch(batch, target, self.samples.full_histories(index), negatives)


def to_device(batch: Interaction, device: torch.device, length_field: str) -> Interaction:
    """Without waiting for what a GPU still has to do."""
    if device.type == "cpu":
        return batch
    columns = {name: batch[name] for name in batch.columns}
    if device.type == "cuda":  # copies wait, unless they are of memory that stays where it is
        columns = {name: column.pin_memory() for name, column in columns.items()}
    copied = Interaction({name: column.to(device, non_blocking=True) for name, column in columns.items()})
    if length_field in columns:
        copied.total_length = int(columns[length_field].sum())  # type: ignore[attr-defined]  # for models.base
    return copied


class _NegativeItems:
    """Negative items for pairwise losses, sampled by RecBole."""

    def __init__(self, config, dataset: FlatSequentialDataset, arguments: dict):
        self.times = arguments["sample_num"]
        self.dataset = dataset
        self.field = config["NEG_PREFIX"] + dataset.iid_field
        self._check_others(arguments)
        self.sampler = RepeatableSampler("train", dataset, arguments["distribution"], arguments["alpha"])
        if arguments["distribution"] == "popularity":
            # RecBole leaves out who is drawn instead of an item whose share is 1 but for rounding.
            alias = self.sampler.alias
            alias.update({item: item for item, other in alias.items() if other == -1})

    def _check_others(self, arguments: dict) -> None:
        """RecBole draws until an item is not the target: for ever, where there is hardly another one."""
        counts = torch.bincount(self.dataset.inter_feat[self.dataset.iid_field], minlength=self.dataset.item_num)[1:]
        is_popular = arguments["distribution"] == "popularity"
        shares = counts[counts > 0].double() ** arguments["alpha"] if is_popular else torch.ones(len(counts))
        if shares.max() > MOST_OF_ONE_ITEM * shares.sum():
            raise UserError(
                "train_neg_sample_args: nearly all negatives would be one item: lower alpha, or use more items"
            )

    @classmethod
    def for_config(cls, config, dataset: FlatSequentialDataset) -> "_NegativeItems | None":
        arguments = config["train_neg_sample_args"]
        if arguments["distribution"] == "none":
            return None
        if config["MODEL_INPUT_TYPE"] != InputType.PAIRWISE or arguments["dynamic"]:
            raise UserError("train_neg_sample_args: only fixed negatives for pairwise losses (BPR) are sampled")
        return cls(config, dataset, arguments)

    def add(self, batch: Interaction) -> Interaction:
        user, item = batch[self.dataset.uid_field].numpy(), batch[self.dataset.iid_field].numpy()
        negatives = self.sampler.sample_by_user_ids(user, np.asarray(item), self.times)
        batch = batch.repeat(self.times)
        batch.update(Interaction({self.field: negatives}))
        return batch

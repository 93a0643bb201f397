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

from recbole_diffgrm.data.dataset import FlatSequentialDataset
from recbole_diffgrm.errors import UserError

# Batches are sorted by length inside shuffled groups of this many: little padding, yet each batch is a random mixture
# of what its group holds and no two epochs cut the same batches.
BATCHES_PER_GROUP = 16


class TrainLoader:
    """Every training sample once an epoch, in an order that depends on the seed and the epoch alone."""

    def __init__(self, config, dataset: FlatSequentialDataset, trim: bool):
        self.dataset = dataset
        self.samples = dataset.inter_feat
        self.trim = trim
        self.shuffle = config["shuffle"]
        self.seed = config["seed"]
        self.transform = construct_transform(config)
        self.negatives = _NegativeItems.for_config(config, dataset)
        times = self.negatives.times if self.negatives else 1
        self.batch_size = max(1, config["train_batch_size"] // times)

    def __len__(self) -> int:
        return -(-len(self.samples) // self.batch_size)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Interaction]:
        """The batches of an epoch from number `start` on."""
        for index in self.plan(epoch)[start:]:
            batch = self.samples.cut(index, None if self.trim else self.samples.max_length)
            batch = self.transform(self.dataset, batch)
            yield self.negatives.add(batch) if self.negatives else batch

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

    def __iter__(self) -> Iterator[tuple[Tensor, EvalBatch]]:
        """(sample numbers, batch)."""
        for index in self.order.split(self.batch_size):
            batch = self.samples.cut(index, None if self.trim else self.samples.max_length)
            target = batch[self.dataset.iid_field]
            if self.transform:
                batch = self.transform(self.dataset, batch)
            negatives = None if self.negatives is None else self.negatives[index]
            yield index, EvalBatch(batch, target, self.samples.full_histories(index), negatives)


class _NegativeItems:
    """Negative items for pairwise losses, sampled by RecBole."""

    def __init__(self, config, dataset: FlatSequentialDataset, arguments: dict):
        self.times = arguments["sample_num"]
        self.dataset = dataset
        self.field = config["NEG_PREFIX"] + dataset.iid_field
        self.sampler = RepeatableSampler("train", dataset, arguments["distribution"], arguments["alpha"])

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

"""What every model of the bench is: class attributes say what it needs, `losses` trains it, `candidates` ranks with it.

RecBole's `calculate_loss`, `full_sort_predict` and `predict` are made from these, so RecBole's own trainer and
evaluator work with every model too. Models of RecBole itself get the same interface from models.recbole.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from recbole.model.abstract_recommender import SequentialRecommender
from recbole.utils import InputType
from torch import Tensor

from recbole_diffgrm.config.options import GeneralOptions, Options, SampleUnit
from recbole_diffgrm.config.protocol import is_sampled
from recbole_diffgrm.data.splits import Split
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.generation.beam_search import Beams, Step
from recbole_diffgrm.generation.constraints import Constraint
from recbole_diffgrm.generation.ranges import number_within
from recbole_diffgrm.generation.semantic_ids import SemanticIds
from recbole_diffgrm.models.candidates import Candidates
from recbole_diffgrm.models.programs import Programs

# The paper's groups of models, and those that learn nothing.
Family = Literal["baseline", "item ID", "semantic-enhanced", "generative"]

# Evaluation of a model that scores every item holds this many scores at once (256 MiB).
MAX_SCORES = 2**26


class Targets(NamedTuple):
    """What is predicted, and from which position of which sample."""

    row: Tensor  # [T] sample of the batch
    position: Tensor  # [T] last item of its history that is known
    item: Tensor  # [T]

    def sample(self, count: int | None) -> "Targets":
        """At most `count` random ones of each sample; None: all."""
        if count is None:
            return self
        order = torch.rand(len(self.row), device=self.row.device).argsort()
        order = order[self.row[order].argsort(stable=True)]  # by sample, in random order within each
        kept = order[number_within(self.row) < count]
        return Targets(self.row[kept], self.position[kept], self.item[kept])


Kept = TypeVar("Kept")


class LossOutput(NamedTuple):
    parts: dict[str, Tensor]  # scalars, means over the batch; training minimizes their sum
    num_targets: int  # what they are means over
    statistics: dict[str, Tensor] = {}  # noqa: RUF012  sums over the batch, vectors of one length; added up over an epoch


@dataclass(frozen=True)
class Stage:
    """One stage of training. Most models have one."""

    name: str
    epochs: int
    samples: Literal["all", "last_of_each_user"] = "all"
    settings: Mapping[str, Any] = field(default_factory=dict)  # changes of the configuration
    weights_key: str | None = None  # key that is set to the file with the best weights of the stage before


class ModelInterface(ABC):
    """Mixed in before a class of RecBole's, which is a torch.nn.Module."""

    eval: Callable[..., Any]
    Options: ClassVar[type[Options]] = GeneralOptions  # keys that the model reads
    family: ClassVar[Family] = "item ID"
    trainable: ClassVar[bool] = True
    sample_units: ClassVar[tuple[SampleUnit, ...]] = ("prefix",)  # that it can train on (data.splits)
    variable_length: ClassVar[bool] = False  # scores do not change when right padding is trimmed off
    # State that is made from the data again when a run goes on, too large to be saved again and again.
    rebuilt_state: ClassVar[tuple[str, ...]] = ("semantic_ids.", "text_vectors")
    generates_stepwise: ClassVar[bool] = False  # semantic IDs; it has `generate_beams` and `search_parts`

    @classmethod
    def needs_sids(cls, config) -> bool:
        """Does it read dataset.semantic_ids? `config`: its configuration, or the values of one."""
        return False

    @classmethod
    def needs_text_vectors(cls, config) -> bool:
        """Does it read dataset.text_vectors?"""
        return False

    @classmethod
    def prepare(cls, config, split: Split, semantic_ids: SemanticIds | None) -> dict[str, Any]:
        """What else the model reads of its dataset, made from the training data: attributes of the dataset."""
        return {}

    @classmethod
    def restore(cls, state: Mapping[str, Tensor]) -> dict[str, Any]:
        """The same from saved weights: a run directory holds no data."""
        return {}

    @classmethod
    def add_items(cls, config, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Saved weights for a catalogue that has grown at its end: the semantic IDs, and the text vectors if there are
        any, in `state` are those of all items already. A model that knows items by these alone has nothing to add."""
        raise UserError(
            f"add_items: {cls.__name__} cannot recommend items that it was not trained with; models that know items by "
            "their semantic IDs can, such as DiffGRM, TIGER, ARM, RPG and VQRec"
        )

    def finish_items(self) -> None:  # noqa: B027  most models have nothing to do
        """Called once items were added, with all weights: make anew what is made of them."""

    @classmethod
    def scores_every_item(cls, config, num_items: int) -> bool:
        """Do its candidates hold a score for every item of a catalogue of this size?"""
        return True

    @classmethod
    def stages(cls, config) -> list[Stage]:
        return [Stage("train", config["epochs"])]

    def losses(self, batch) -> LossOutput:
        """Of a trainable model."""
        raise TypeError(f"{type(self).__name__} has no losses: it must have them, or say trainable = False")

    @abstractmethod
    def candidates(self, batch, depth: int, validation: bool = False) -> Candidates:
        """What it recommends to the users of a batch: rankings are asked for down to `depth` items. In validation a
        model may spend less on each user than in the test."""

    def finish_training(self) -> bool:
        """Called once, with the best weights, before they are tested. True: it changed buffers that are to be saved."""
        return False

    def summarize_statistics(self, sums: Mapping[str, list[float]], epoch: int) -> dict[str, Any]:
        """Statistics of the losses, added up over an epoch, as numbers to look at."""
        return dict(sums)

    def generate_beams(self, batch) -> Beams:
        """How SIDs are generated, step by step."""
        raise UserError(f"explain: {type(self).__name__} does not generate semantic IDs step by step")

    def search_parts(self, batch) -> tuple[Step, Constraint]:
        """What the search of `generate_beams` is made of: a path that it took can be followed again with them."""
        raise UserError(f"explain: {type(self).__name__} does not generate semantic IDs step by step")

    def programs(self) -> Programs:
        """The model for torch.export."""
        raise UserError(f"export: {type(self).__name__} cannot be exported; DiffGRM, TIGER and ARM can")


class Model(ModelInterface, SequentialRecommender):
    """Base of this project's own models."""

    input_type = InputType.POINTWISE

    def __init__(self, config, dataset):
        super().__init__(config, dataset)
        self.sample_unit = config["sample_unit"]
        self._kept: tuple[list[Any], dict[str, Any]] = ([], {})  # (versions of the weights, what was made of them)

    def keep(self, name: str, compute: Callable[[], Kept]) -> Kept:
        """compute(), where no gradient is asked for once for all batches, until weights change: vectors of all items,
        say."""
        tensors = [*self.parameters(), *self.buffers()]
        if torch.is_grad_enabled() or any(tensor.is_inference() for tensor in tensors):
            return compute()
        versions = [(tensor.data_ptr(), tensor._version) for tensor in tensors]
        if self._kept[0] != versions:
            self._kept = (versions, {})
        if name not in self._kept[1]:
            self._kept[1][name] = compute()
        return self._kept[1][name]

    def train(self, mode: bool = True) -> "Model":
        """`eval` is this, too: an evaluation begins without what an earlier one kept, and training needs the room."""
        self._kept = ([], {})
        super().train(mode)
        return self

    def targets(self, batch) -> Targets:
        """Of a batch of prefixes or of sequences."""
        items, length, target = (batch[name] for name in (self.ITEM_SEQ, self.ITEM_SEQ_LEN, self.ITEM_ID))
        if self.sample_unit == "prefix":
            return Targets(torch.arange(len(target), device=target.device), length - 1, target)
        following = F.pad(items[:, 1:], (0, 1)).scatter(1, length[:, None] - 1, target[:, None])  # [B, L]
        number = torch.arange(len(length), device=length.device)
        row = torch.repeat_interleave(number, length, output_size=total_length(batch, self.ITEM_SEQ_LEN))  # [T]
        position = torch.arange(len(row), device=row.device) - (length.cumsum(0) - length)[row]
        return Targets(row, position, following[row, position])

    def calculate_loss(self, interaction) -> Tensor | tuple[Tensor, ...]:
        parts = tuple(self.losses(interaction).parts.values())
        return parts if len(parts) > 1 else parts[0]

    def full_sort_predict(self, interaction) -> Tensor:
        """[B, num_items]: scores that order all items as `candidates` does."""
        return self.candidates(interaction, depth=self.n_items - 1).dense_scores()

    def predict(self, interaction) -> Tensor:
        """[B]: the score of one item per row."""
        return self.full_sort_predict(interaction).gather(1, interaction[self.ITEM_ID][:, None]).squeeze(1)


def total_length(batch, field: str) -> int:
    """Of all histories. A batch that was copied to a GPU has been told (data.loader.to_device): to ask the GPU is
    to wait for it."""
    known = getattr(batch, "total_length", None)
    return int(batch[field].sum()) if known is None else known


def users_per_batch(config, num_items: int) -> int:
    """eval_batch_size, or fewer where every item of a large catalogue has a score: from the model, or for a protocol
    that asks for the ranks of items far down (sampled items, GAUC)."""
    asks_for_all = is_sampled(config) or "gauc" in map(str.lower, config["metrics"])
    if not asks_for_all and not config.model_class.scores_every_item(config, num_items):
        return config["eval_batch_size"]
    return max(1, min(config["eval_batch_size"], MAX_SCORES // num_items))

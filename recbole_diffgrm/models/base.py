"""What every model of the bench is: class attributes say what it needs, `losses` trains it, `candidates` ranks with it.

RecBole's `calculate_loss`, `full_sort_predict` and `predict` are made from these, so RecBole's own trainer and
evaluator work with every model too. Models of RecBole itself get the same interface from models.recbole.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from recbole.model.abstract_recommender import SequentialRecommender
from recbole.utils import InputType
from torch import Tensor

from recbole_diffgrm.config.options import GeneralOptions, Options
from recbole_diffgrm.data.splits import SampleUnit
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.generation.beam_search import Beams
from recbole_diffgrm.models.candidates import Candidates

# Evaluation of a model that scores every item holds this many scores at once (256 MiB).
MAX_SCORES = 2**26


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
    trainable: ClassVar[bool] = True
    variable_length: ClassVar[bool] = False  # scores do not change when right padding is trimmed off
    needs_sids: ClassVar[bool] = False  # reads dataset.semantic_ids

    @classmethod
    def needs_text_vectors(cls, config) -> bool:
        """Does it read dataset.text_vectors?"""
        return False

    @classmethod
    def sample_unit(cls, config) -> SampleUnit:
        return "prefix"

    @classmethod
    def scores_every_item(cls, config) -> bool:
        """Do its candidates hold a score for every item?"""
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

    def summarize_statistics(self, sums: Mapping[str, list[float]], epoch: int) -> dict[str, Any]:
        """Statistics of the losses, added up over an epoch, as numbers to look at."""
        return dict(sums)

    def generate_beams(self, batch) -> Beams:
        """How SIDs are generated, step by step."""
        raise UserError(f"explain: {type(self).__name__} does not generate semantic IDs step by step")


class Model(ModelInterface, SequentialRecommender):
    """Base of this project's own models."""

    input_type = InputType.POINTWISE

    def calculate_loss(self, interaction) -> Tensor | tuple[Tensor, ...]:
        parts = tuple(self.losses(interaction).parts.values())
        return parts if len(parts) > 1 else parts[0]

    def full_sort_predict(self, interaction) -> Tensor:
        """[B, num_items]: scores that order all items as `candidates` does."""
        return self.candidates(interaction, depth=self.n_items - 1).dense_scores()

    def predict(self, interaction) -> Tensor:
        """[B]: the score of one item per row."""
        return self.full_sort_predict(interaction).gather(1, interaction[self.ITEM_ID][:, None]).squeeze(1)


def users_per_batch(config, num_items: int) -> int:
    """eval_batch_size, or fewer where the model scores every item of a large catalogue."""
    if not config.model_class.scores_every_item(config):
        return config["eval_batch_size"]
    return max(1, min(config["eval_batch_size"], MAX_SCORES // num_items))

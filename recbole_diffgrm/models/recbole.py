"""RecBole's own sequential models, with the interface of models.base."""

from collections.abc import Callable
from typing import Any

from recbole_diffgrm import recbole_compat
from recbole_diffgrm.data.splits import Split
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.generation.semantic_ids import SemanticIds
from recbole_diffgrm.models.base import LossOutput, ModelInterface, Stage
from recbole_diffgrm.models.candidates import ItemScores
from recbole_diffgrm.models.recbole_options import recbole_options, reranked

# Models whose scores do not change when right padding is trimmed off (tested). All others are given histories padded to
# MAX_ITEM_LIST_LENGTH.
VARIABLE_LENGTH = {"SASRec", "GRU4Rec", "FDSA", "S3Rec", "BERT4Rec"}

# Models that read features of items, beside or instead of their ids.
SEMANTIC_ENHANCED = {"FDSA", "S3Rec", "GRU4RecF", "SASRecF"}


class RecBoleModel(ModelInterface):
    """Mixed in before a model of RecBole."""

    calculate_loss: Callable[..., Any]  # RecBole's
    full_sort_predict: Callable[..., Any]

    @classmethod
    def prepare(cls, config, split: Split, semantic_ids: SemanticIds | None) -> dict[str, Any]:
        if "reranker_CAN_NUM" in cls.Options.model_fields:
            most = max(reranked(config["reranker_CAN_NUM"]))
            if most >= split.dataset.item_num:
                raise UserError(
                    f"reranker_CAN_NUM: {most} items cannot be ranked again: the data have {split.dataset.item_num - 1}"
                )
        return {}

    def losses(self, batch) -> LossOutput:
        loss = self.calculate_loss(batch)
        parts = loss if isinstance(loss, tuple) else (loss,)
        return LossOutput({f"part_{i}": part for i, part in enumerate(parts, start=1)}, len(batch))

    def candidates(self, batch, depth: int, validation: bool = False) -> ItemScores:
        return ItemScores(self.full_sort_predict(batch).view(len(batch), -1).float())


class PretrainedModel(RecBoleModel):
    """S3Rec: pre-training and fine-tuning, one after the other."""

    @classmethod
    def stages(cls, config) -> list[Stage]:
        # Pre-trained on whole sequences, as its authors do, not on every prefix of them.
        return [
            Stage("pretrain", config["pretrain_epochs"], samples="last_of_each_user"),
            Stage("finetune", config["epochs"], settings={"train_stage": "finetune"}, weights_key="pre_model_path"),
        ]


def adapt(name: str) -> type:
    """A model of RecBole as one of the bench."""
    interface = PretrainedModel if name == "S3Rec" else RecBoleModel
    attributes = {
        "Options": recbole_options(name),
        "variable_length": name in VARIABLE_LENGTH,
        "family": "semantic-enhanced" if name in SEMANTIC_ENHANCED else "item ID",
    }
    return type(name, (interface, recbole_compat.load_sequential_model(name)), attributes)

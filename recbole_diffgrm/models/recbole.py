"""RecBole's own sequential models, with the interface of models.base."""

from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field, create_model

from recbole_diffgrm import recbole_compat
from recbole_diffgrm.config.layers import recbole_defaults
from recbole_diffgrm.config.options import (
    GeneralOptions,
    HeadsDivideWidth,
    Names,
    NonNegativeInt,
    Options,
    PositiveFloat,
    PositiveInt,
    Probability,
    Text,
    option,
)
from recbole_diffgrm.models.base import LossOutput, ModelInterface, Stage
from recbole_diffgrm.models.candidates import ItemScores

# Models whose scores do not change when right padding is trimmed off (tested). All others are given histories padded to
# MAX_ITEM_LIST_LENGTH.
VARIABLE_LENGTH = {"SASRec", "GRU4Rec", "FDSA", "S3Rec", "BERT4Rec"}

# Models that read features of items, beside or instead of their ids.
SEMANTIC_ENHANCED = {"FDSA", "S3Rec", "GRU4RecF", "SASRecF"}


class RecBoleOptions(Options):
    """RecBole's models: keys that several of them read"""

    loss_type: Literal["CE", "BPR"] = option("Softmax over all items, or pairs with sampled negative items.")
    n_layers: PositiveInt = option("Number of layers.")
    num_layers: PositiveInt = option("Number of layers.")
    n_heads: PositiveInt = option("Number of attention heads.")
    hidden_size: PositiveInt = option("Width of the model, a multiple of n_heads.")
    inner_size: PositiveInt = option("Inner width of the feed-forward layers.")
    embedding_size: PositiveInt = option("Width of the item embeddings.")
    hidden_dropout_prob: Probability = option("Dropout of hidden states.")
    attn_dropout_prob: Probability = option("Dropout of attention weights.")
    dropout_prob: Probability = option("Dropout.")
    hidden_act: Literal["gelu", "relu", "swish", "tanh", "sigmoid"] = option("Activation of the feed-forward layers.")
    layer_norm_eps: PositiveFloat = option("Epsilon of layer normalization.")
    initializer_range: PositiveFloat = option("Standard deviation of the initial weights.")
    mask_ratio: float = Field(gt=0, le=1, description="Share of the items of a history that are masked.")
    ft_ratio: float = Field(ge=0, le=1, description="Share of samples trained by masking the last item only.")
    pooling_type: Literal["average", "max"] = option("How item vectors are pooled.")
    pooling_mode: Literal["mean", "max", "sum"] = option("How feature vectors are pooled.")
    selected_features: Names = option("Item features that the model reads; load_col must load them.")
    item_attribute: Text = option("Item feature of the pre-training tasks; load_col must load it.")
    pretrain_epochs: NonNegativeInt = option("Epochs of pre-training before `epochs` of fine-tuning.")


class RecBoleModel(ModelInterface):
    """Mixed in before a model of RecBole."""

    calculate_loss: Callable[..., Any]  # RecBole's
    full_sort_predict: Callable[..., Any]

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
        "Options": _options(name),
        "variable_length": name in VARIABLE_LENGTH,
        "family": "semantic-enhanced" if name in SEMANTIC_ENHANCED else "item ID",
    }
    return type(name, (interface, recbole_compat.load_sequential_model(name)), attributes)


def _options(name: str) -> type[Options]:
    """General keys, and those of RecBoleOptions that RecBole's file of the model has."""
    of_model: dict[str, Any] = {key: (field.annotation, field) for key, field in RecBoleOptions.model_fields.items()}
    read = {key: of_model[key] for key in recbole_defaults(name) if key in of_model}
    return create_model(f"{name}Options", __base__=(GeneralOptions, HeadsDivideWidth), **read)

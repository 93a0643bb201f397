"""The keys that RecBole's own models read."""

from functools import cache
from typing import Any, Literal

from pydantic import Field, create_model

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


@cache
def recbole_options(name: str) -> type[Options]:
    """General keys, and those of RecBoleOptions that RecBole's file of the model has."""
    of_model: dict[str, Any] = {key: (field.annotation, field) for key, field in RecBoleOptions.model_fields.items()}
    read = {key: of_model[key] for key in recbole_defaults(name) if key in of_model}
    return create_model(f"{name}Options", __base__=(GeneralOptions, HeadsDivideWidth), **read)

"""The keys that RecBole's own models read."""

from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field, create_model, model_validator

from recbole_diffgrm.config.layers import recbole_defaults
from recbole_diffgrm.config.options import (
    GeneralOptions,
    HeadsDivideWidth,
    Names,
    NonNegativeInt,
    Options,
    PositiveInt,
    Probability,
    SmallInt,
    Temperature,
    Text,
    Weight,
    Width,
    option,
)
from recbole_diffgrm.errors import UserError, show

Share = Annotated[float, Field(ge=0, le=1)]
Facets = Annotated[int, Field(ge=0, le=1000)]


class RecBoleOptions(Options):
    """RecBole's models: keys that several of them read"""

    loss_type: Literal["CE", "BPR"] = option("Softmax over all items, or pairs with sampled negative items.")
    n_layers: SmallInt = option("Number of layers.")
    num_layers: SmallInt = option("Number of layers.")
    n_heads: SmallInt = option("Number of attention heads.")
    hidden_size: Width = option("Width of the model, a multiple of n_heads.")
    inner_size: Width = option("Inner width of the feed-forward layers.")
    embedding_size: Width = option("Width of the item embeddings.")
    hidden_dropout_prob: Probability = option("Dropout of hidden states.")
    attn_dropout_prob: Probability = option("Dropout of attention weights.")
    dropout_prob: Probability = option("Dropout.")
    hidden_act: Literal["gelu", "relu", "swish", "tanh", "sigmoid"] = option("Activation of the feed-forward layers.")
    layer_norm_eps: Annotated[float, Field(gt=0, le=1)] = option("Epsilon of layer normalization.")
    initializer_range: Annotated[float, Field(gt=0, le=100)] = option("Standard deviation of the initial weights.")
    mask_ratio: Annotated[float, Field(gt=0, le=1)] = option("Share of the items of a history that are masked.")
    ft_ratio: Share = option("Share of samples trained by masking the last item only.")
    pooling_type: Literal["average", "max"] = option("How item vectors are pooled.")
    pooling_mode: Literal["mean", "max", "sum"] = option("How feature vectors are pooled.")
    selected_features: Names = option("Item features that the model reads; load_col must load them.")
    item_attribute: Text = option("Item feature of the pre-training tasks; load_col must load it.")
    pretrain_epochs: NonNegativeInt = option("Epochs of pre-training before `epochs` of fine-tuning.")
    aap_weight: Weight = option("Weight of associated attribute prediction.")
    mip_weight: Weight = option("Weight of masked item prediction.")
    map_weight: Weight = option("Weight of masked attribute prediction.")
    sp_weight: Weight = option("Weight of segment prediction.")
    dnn_type: Literal["trm", "ave"] = option("A transformer, or the mean of the items.")
    sess_dropout: Probability = option("Dropout of sessions.")
    item_dropout: Probability = option("Dropout of items.")
    temperature: Temperature = option("Scores are divided by this.")
    nv: SmallInt = option("Number of vertical filters.")
    nh: SmallInt = option("Number of horizontal filters.")
    order_len: PositiveInt = option("Items of a history that a Markov chain looks back to.")
    high_order: PositiveInt = option("Items of a history that are pooled.")
    short_item_length: PositiveInt = option("Items of a history that are its short-term part.")
    pooling_type_layer_1: Literal["max", "average"] = option("How items are pooled.")
    pooling_type_layer_2: Literal["max", "average"] = option("How items and user are pooled.")
    alpha: Annotated[float, Field(ge=0, le=100)] = option("Exponent of the length of a history.")
    weight: Share = option("Share of self-attention in the representation of a session.")
    step: SmallInt = option("Steps of the graph network.")
    k_interests: PositiveInt = option("Number of interests.")
    dropout_probs: Annotated[list[Probability], Field(min_length=2, max_length=2)] = option(
        "Dropout before and after the encoder.", expected="two numbers of at least 0 and below 1"
    )
    kernel_size: SmallInt = option("Width of the convolutions.")
    block_num: SmallInt = option("Number of residual blocks.")
    dilations: Annotated[list[SmallInt], Field(min_length=1, max_length=100)] = option("Dilations of a block.")
    prototype_size: PositiveInt = option("Number of prototypes of interests.")
    interest_size: PositiveInt = option("Number of interests of a user.")
    tau_ratio: Temperature = option("Temperature of the aggregation of interests.")
    reg_loss_ratio: Weight = option("Weight of the regularisation.")
    reranker_CAN_NUM: PositiveInt | Text = option(
        "How many of the best items are ranked again: one number, or several as 100,20.",
        expected="a whole number from 1 to 999999999, or several with commas between",
    )
    n_facet_all: SmallInt = option("Number of all facets, the sum of the others.")
    n_facet: SmallInt = option("Facets of the softmax.")
    n_facet_context: Facets = option("Facets of the items of the history.")
    n_facet_reranker: Facets = option("Facets of each number of reranker_CAN_NUM.")
    n_facet_emb: Literal[0, 2] = option("Facets of the pointer network.")
    n_facet_hidden: SmallInt = option("Hidden layers that facets read.")
    n_facet_window: Annotated[int, Field(ge=-1000, le=0)] = option("Minus the number of earlier states that are read.")
    n_facet_MLP: Literal[-1, 0] = option("-1: a layer before the facets.")


class _FitsHistory(Options):
    """A part of a history is no longer than a history."""

    @model_validator(mode="after")
    def _check_lengths(self) -> "_FitsHistory":
        longest = getattr(self, "MAX_ITEM_LIST_LENGTH", 1)
        for key in ("order_len", "high_order", "short_item_length"):
            if getattr(self, key, 1) > longest:
                raise UserError(f"{key} ({getattr(self, key)}) must be at most MAX_ITEM_LIST_LENGTH ({longest})")
        return self


class _MasksItems(Options):
    """BERT4Rec: RecBole makes room for mask_ratio * MAX_ITEM_LIST_LENGTH masks."""

    @model_validator(mode="after")
    def _check_masks(self) -> "_MasksItems":
        ratio, longest = getattr(self, "mask_ratio", 1), getattr(self, "MAX_ITEM_LIST_LENGTH", 1)
        if int(ratio * longest) < 1:
            raise UserError(
                f"mask_ratio ({ratio:g}) of MAX_ITEM_LIST_LENGTH ({longest}) is less than an item: raise either"
            )
        return self


class _Facets(Options):
    """Softmax-CPR, as its code asserts."""

    @model_validator(mode="after")
    def _check_facets(self) -> "_Facets":
        of = {key: getattr(self, key) for key in type(self).model_fields if key.startswith("n_facet")}
        sizes = reranked(getattr(self, "reranker_CAN_NUM", 1))
        total = of["n_facet"] + of["n_facet_context"] + of["n_facet_reranker"] * len(sizes) + of["n_facet_emb"]
        if total != of["n_facet_all"]:
            raise UserError(
                f"n_facet_all ({of['n_facet_all']}) must be n_facet + n_facet_context + n_facet_reranker * (numbers of "
                f"reranker_CAN_NUM) + n_facet_emb = {total}"
            )
        if max(of["n_facet_context"], of["n_facet_reranker"]) > of["n_facet"]:
            raise UserError("n_facet_context and n_facet_reranker must be at most n_facet")
        if getattr(self, "loss_type", "CE") != "CE":
            raise UserError("loss_type: Softmax-CPR has only CE")
        return self


def reranked(sizes: int | str) -> list[int]:
    """reranker_CAN_NUM: how many items each of the rerankers reads."""
    parts = [part.strip() for part in str(sizes).split(",")]
    if not all(part.isdecimal() and len(part) <= 9 and int(part) for part in parts):
        raise UserError(f"reranker_CAN_NUM must be whole numbers above 0, such as 100 or 100,20, not {show(sizes)}")
    return [int(part) for part in parts]


@cache
def recbole_options(name: str) -> type[Options]:
    """General keys, and those of RecBoleOptions that RecBole's file of the model has."""
    of_model: dict[str, Any] = {key: (field.annotation, field) for key, field in RecBoleOptions.model_fields.items()}
    defaults = recbole_defaults(name)
    read = {key: of_model[key] for key in defaults if key in of_model}
    checks: list[type[Options]] = [HeadsDivideWidth, _FitsHistory]
    if defaults["transform"] == "mask_itemseq":
        checks.append(_MasksItems)
    if "n_facet_all" in defaults:
        checks.append(_Facets)
    return create_model(f"{name}Options", __base__=(GeneralOptions, *checks), **read)

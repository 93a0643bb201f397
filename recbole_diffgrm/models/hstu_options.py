"""The keys that HSTU reads."""

from typing import Literal

from pydantic import ValidationInfo, model_validator

from recbole_diffgrm.config.options import (
    GeneralOptions,
    HeadsDivideWidth,
    PositiveInt,
    Probability,
    SmallInt,
    Temperature,
    Width,
    option,
)
from recbole_diffgrm.models.item_softmax_options import ItemSoftmaxOptions
from recbole_diffgrm.tokenizer.options import TokenizerOptions


class HSTUOptions(GeneralOptions, HeadsDivideWidth, ItemSoftmaxOptions, TokenizerOptions):
    """HSTU"""

    item_input: Literal["ids", "codes"] = option(
        "An item is an embedding of its own, or the mean of the embeddings of its semantic ID's codes; in the history "
        "and as what is scored."
    )
    hidden_size: Width = option("Width of the model, a multiple of n_heads.")
    n_layers: SmallInt = option("Number of layers.")
    n_heads: SmallInt = option("Number of attention heads.")
    embedding_dropout_prob: Probability = option("Dropout of the embedded items.")
    hidden_dropout_prob: Probability = option("Dropout in the layers.")
    time_bias: bool | Literal["auto"] = option(
        "Attention depends on the time between interactions. auto: where timestamps are clocks, not the position in a "
        "sequence or the like; True refuses data without clocks.",
        expected="auto, True or False",
    )
    temperature: Temperature = option("Items are scored by their cosine with a state, divided by this.")
    num_negatives: PositiveInt | None = option(
        "The softmax of training is over the target and this many random items, drawn anew for each batch, as "
        "published; ~ is over the items of item_softmax."
    )

    @model_validator(mode="after")
    def _check_sids(self, info: ValidationInfo) -> "HSTUOptions":
        if self.item_input == "codes":
            self.check_collision_order_unused(info)
        if self.num_negatives is not None:
            self.check_item_softmax_unused(info, "num_negatives: ~")
        return self

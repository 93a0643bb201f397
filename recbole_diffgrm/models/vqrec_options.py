"""The keys that VQ-Rec reads."""

from pydantic import ValidationInfo, model_validator

from recbole_diffgrm.config.options import (
    GeneralOptions,
    HeadsDivideWidth,
    Probability,
    SmallInt,
    Temperature,
    Width,
    option,
)
from recbole_diffgrm.models.item_softmax_options import ItemSoftmaxOptions
from recbole_diffgrm.tokenizer.options import TokenizerOptions


class VQRecOptions(GeneralOptions, HeadsDivideWidth, ItemSoftmaxOptions, TokenizerOptions):
    """VQRec"""

    hidden_size: Width = option("Width of the model, a multiple of n_heads.")
    inner_size: Width = option("Inner width of the feed-forward layers.")
    n_layers: SmallInt = option("Number of layers.")
    n_heads: SmallInt = option("Number of attention heads.")
    hidden_dropout_prob: Probability = option("Dropout of the embedded items and of the output of every sub-layer.")
    attn_dropout_prob: Probability = option("Dropout of attention weights.")
    temperature: Temperature = option("Items are scored by their cosine with a state, divided by this.")

    @model_validator(mode="after")
    def _check_unused(self, info: ValidationInfo) -> "VQRecOptions":
        self.check_collision_order_unused(info)
        return self

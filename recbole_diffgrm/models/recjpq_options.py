"""The keys that RecJPQ reads."""

from typing import Literal

from pydantic import ValidationInfo, model_validator

from recbole_diffgrm.config.options import GeneralOptions, HeadsDivideWidth, Probability, SmallInt, Width, option
from recbole_diffgrm.models.item_softmax_options import ItemSoftmaxOptions
from recbole_diffgrm.tokenizer.options import TokenizerOptions


class RecJPQOptions(GeneralOptions, HeadsDivideWidth, ItemSoftmaxOptions, TokenizerOptions):
    """RecJPQ"""

    hidden_size: Width = option("Width of the model, a multiple of n_heads and of the digits of a SID.")
    n_layers: SmallInt = option("Number of layers.")
    n_heads: SmallInt = option("Number of attention heads.")
    dropout_prob: Probability = option("Dropout of the embedded items, attention weights and feed-forward layers.")
    loss_type: Literal["BCE", "CE"] = option(
        "BCE (published): binary cross-entropy of the target and one random item. CE: softmax over the items of "
        "item_softmax."
    )
    scoring: Literal["pqtopk", "prune"] = option(
        "How the best items are found: by the scores of all, or by a search that stops once no other item can be among "
        "them. Both are exact; prune pays with millions of items. Ranks of targets take the scores of all.",
        affects="evaluation",
    )

    @model_validator(mode="after")
    def _check_unused(self, info: ValidationInfo) -> "RecJPQOptions":
        self.check_collision_order_unused(info)
        if self.loss_type != "CE":
            self.check_item_softmax_unused(info, "loss_type: CE")
        return self

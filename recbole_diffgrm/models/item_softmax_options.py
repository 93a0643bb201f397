"""Keys of models that train a softmax over items."""

from typing import Literal

from pydantic import ValidationInfo

from recbole_diffgrm.config.options import Options, PositiveInt, option


class ItemSoftmaxOptions(Options):
    """Softmax over items"""

    item_softmax: Literal["auto", "full", "sampled"] = option(
        "Which items the softmax of training is over. full: all, with the logits of some of the targets in memory at a "
        "time. sampled: the target and softmax_items others, drawn for each batch, half by popularity, with log-Q "
        "correction. auto: all of up to 100,000."
    )
    softmax_items: PositiveInt = option("item_softmax sampled: items drawn for each batch.")

    def check_item_softmax_unused(self, info: ValidationInfo, needed: str) -> None:
        for key in ItemSoftmaxOptions.model_fields:
            self.check_unused(info, key, f"read only with {needed}")

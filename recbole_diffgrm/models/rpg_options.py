"""The keys that RPG reads."""

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, model_validator

from recbole_diffgrm.config.options import (
    GeneralOptions,
    HeadsDivideWidth,
    ListLength,
    Probability,
    SmallInt,
    Temperature,
    Width,
    option,
)
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.tokenizer.options import TokenizerOptions


class RPGOptions(GeneralOptions, HeadsDivideWidth, TokenizerOptions):
    """RPG"""

    hidden_size: Width = option("Width of the model, a multiple of n_heads.")
    inner_size: Width = option("Inner width of the feed-forward layers.")
    n_layers: SmallInt = option("Number of layers.")
    n_heads: SmallInt = option("Number of attention heads.")
    embedding_dropout_prob: Probability = option("Dropout of the embedded items.")
    attn_dropout_prob: Probability = option("Dropout of attention weights.")
    temperature: Temperature = option("Codes are scored by their cosine with a head's output, divided by this.")
    scoring: Literal["exhaustive", "graph"] = option(
        "What the test ranks: all items, or those met on a walk over the graph of similar SIDs. Validation ranks all.",
        affects="evaluation",
    )
    graph_edges: Annotated[int, Field(ge=0, le=100_000)] = option(
        "Neighbours of each SID in the graph, which is built after training and saved with the weights; its time grows "
        "with the square of the catalogue. 0 builds none."
    )
    graph_beams: ListLength = option("scoring graph: SIDs that a walk holds, at least max(topk).", affects="evaluation")
    graph_steps: SmallInt = option("scoring graph: steps of a walk.", affects="evaluation")

    @model_validator(mode="after")
    def _check_graph(self, info: ValidationInfo) -> "RPGOptions":
        if self.scoring == "exhaustive":
            self.check_unused(info, "sid_collision_order", "read only with scoring: graph; equal scores rank by number")
            return self
        if not self.graph_edges:
            raise UserError("scoring: graph needs graph_edges, the neighbours of each SID")
        list_length = (info.context or {}).get("list_length") or max(self.topk)
        if self.graph_beams < list_length:
            raise UserError(f"graph_beams: {self.graph_beams} SIDs are too few for topk {list_length}")
        return self

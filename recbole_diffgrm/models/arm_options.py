"""The keys that ARM reads."""

from recbole_diffgrm.config.options import HeadsDivideWidth, Probability, SmallInt, Width, option
from recbole_diffgrm.models.search_options import SearchOptions


class ARMOptions(SearchOptions, HeadsDivideWidth):
    """ARM"""

    hidden_size: Width = option("Width of the model, a multiple of n_heads.")
    inner_size: Width = option("Inner width of the feed-forward layers.")
    n_heads: SmallInt = option("Number of attention heads.")
    encoder_layers: SmallInt = option("Transformer layers over the items of the history.")
    decoder_layers: SmallInt = option("Transformer layers over the digits of the SID.")
    dropout_prob: Probability = option("Dropout of inputs, attention weights and the output of every sub-layer.")
    label_smoothing: Probability = option("Label smoothing of the digits' cross-entropy.")

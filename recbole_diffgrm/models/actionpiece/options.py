"""The keys that ActionPiece reads."""

from recbole_diffgrm.config.options import PositiveInt, Probability, option
from recbole_diffgrm.models.beam_options import SearchOptions


class ActionPieceOptions(SearchOptions):
    """ActionPiece"""

    vocabulary_size: PositiveInt = option(
        "Tokens: padding, the codes of all digits, then merged pairs up to this number. BOS and EOS come on top."
    )
    hidden_size: PositiveInt = option("Width of the model, d_model of T5.")
    inner_size: PositiveInt = option("Inner width of the feed-forward layers, d_ff of T5.")
    n_heads: PositiveInt = option("Number of attention heads.")
    head_size: PositiveInt = option("Width of a head, d_kv of T5.")
    encoder_layers: PositiveInt = option("T5 layers over the tokens of the history.")
    decoder_layers: PositiveInt = option("T5 layers over the tokens of the next item.")
    dropout_prob: Probability = option("Dropout, in all of T5's places.")
    num_segmentations: PositiveInt = option(
        "Random segmentations of a history in the test, whose rankings are combined; q in the paper.",
        affects="evaluation",
    )
    valid_num_segmentations: PositiveInt = option("The same in validation.", affects="validation")

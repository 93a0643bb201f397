"""Keys of models whose network is a T5."""

from typing import TYPE_CHECKING

from recbole_diffgrm.config.options import Options, Probability, SmallInt, Width, option

if TYPE_CHECKING:
    from recbole_diffgrm.nn.t5 import T5Config


class T5Options(Options):
    """T5: TIGER and ActionPiece"""

    hidden_size: Width = option("Width of the model, d_model of T5.")
    inner_size: Width = option("Inner width of the feed-forward layers, d_ff of T5.")
    n_heads: SmallInt = option("Number of attention heads.")
    head_size: Width = option("Width of a head, d_kv of T5.")
    encoder_layers: SmallInt = option("T5 layers over the tokens of the history.")
    decoder_layers: SmallInt = option("T5 layers over the tokens of the next item.")
    dropout_prob: Probability = option("Dropout, in all of T5's places.")


def t5_config(config) -> "T5Config":
    from recbole_diffgrm.nn.t5 import T5Config  # here: keys are checked before torch is loaded

    return T5Config(
        hidden_size=config["hidden_size"],
        inner_size=config["inner_size"],
        num_heads=config["n_heads"],
        head_size=config["head_size"],
        encoder_layers=config["encoder_layers"],
        decoder_layers=config["decoder_layers"],
        dropout=config["dropout_prob"],
    )

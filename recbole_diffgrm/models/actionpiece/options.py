"""The keys that ActionPiece reads."""

from recbole_diffgrm.config.options import PositiveInt, SmallInt, option
from recbole_diffgrm.models.search_options import SearchOptions
from recbole_diffgrm.models.t5_options import T5Options


class ActionPieceOptions(SearchOptions, T5Options):
    """ActionPiece"""

    vocabulary_size: PositiveInt = option(
        "Tokens: padding, the codes of all digits, then merged pairs up to this number. BOS and EOS come on top."
    )
    num_segmentations: SmallInt = option(
        "Random segmentations of a history in the test, whose rankings are combined; q in the paper.",
        affects="evaluation",
    )
    valid_num_segmentations: SmallInt = option("The same in validation.", affects="validation")

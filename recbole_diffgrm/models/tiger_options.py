"""The keys that TIGER reads."""

from recbole_diffgrm.config.options import NonNegativeInt, option
from recbole_diffgrm.models.search_options import SearchOptions
from recbole_diffgrm.models.t5_options import T5Options


class TIGEROptions(SearchOptions, T5Options):
    """TIGER"""

    user_tokens: NonNegativeInt = option(
        "A history begins with one of this many user tokens, by the user's number modulo this; 0: with its first item."
    )

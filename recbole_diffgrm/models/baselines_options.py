"""The keys that the baselines read: none of their own."""

from recbole_diffgrm.config.options import GeneralOptions
from recbole_diffgrm.tokenizer.options import TokenizerOptions


class HistoryCopyOptions(GeneralOptions, TokenizerOptions):
    """HistoryCopy"""


class PopOptions(GeneralOptions):
    """Pop"""

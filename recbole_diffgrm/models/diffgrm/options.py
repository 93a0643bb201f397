"""The keys that DiffGRM reads, and how they depend on each other. Those of a noising are fields of its class."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ValidationInfo, create_model, model_validator

from recbole_diffgrm.config.options import (
    HeadsDivideWidth,
    Options,
    PositiveInt,
    Probability,
    SmallInt,
    Width,
    option,
)
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.models.diffgrm.noising import NOISINGS, Noising
from recbole_diffgrm.models.item_softmax_options import ItemSoftmaxOptions
from recbole_diffgrm.models.search_options import SearchOptions


class NetworkOptions(HeadsDivideWidth):
    """DiffGRM: network"""

    hidden_size: Width = option("Width of the model, a multiple of n_heads.")
    inner_size: Width = option("Inner width of the feed-forward layers.")
    n_heads: SmallInt = option("Number of attention heads.")
    encoder_layers: SmallInt = option("Transformer layers over the items of the history.")
    decoder_layers: SmallInt = option("Transformer layers over the digits of the SID.")
    dropout_prob: Probability = option("Dropout of inputs, attention weights and the output of every sub-layer.")
    encoder_dropout_prob: Probability | None = option("The same in the encoder; ~ uses dropout_prob.")
    cross_attention_sink: bool = option(
        "Padded positions of the history take part of the decoder's attention, as in the authors' release; False masks "
        "them."
    )


class ItemHeadOptions(Options):
    """DiffGRM: items beside their SIDs (not in the paper)"""

    item_head: bool = option(
        "Every item has an embedding of its own beside those of its digits, and a softmax over items (item_softmax) is "
        "trained on the encoder's states, which ranks them (item_scoring)."
    )
    item_text: bool = option("item_head: the projected text vector of an item is part of its embedding.")
    code_prior: bool = option(
        "item_head: a digit's logits are the decoder's plus what the item head says of it to first order: the state "
        "times the mean vector of each code's items, plus the log of their number."
    )
    item_scoring: Literal["auto", "full", "generated", "none"] = option(
        "item_head: which items it scores and ranks. full: all. generated: those below the branches at which beam "
        "search ends, whatever the size of the catalogue. auto: all of up to 100,000, else generated. none: items are "
        "ranked as their SIDs are generated.",
        affects="evaluation",
    )
    leaf_size: PositiveInt = option(
        "item_scoring generated: a branch with at most this many SIDs below it is not divided further: all their items "
        "are scored.",
        affects="evaluation",
    )
    decoder_targets: PositiveInt | None = option(
        "sample_unit sequence: train the decoder on this many random targets of each sample; ~ on all, which takes "
        "memory: keys and values are held for each of them."
    )


def _is_noising(name: str) -> str:
    if name not in NOISINGS:
        raise ValueError
    return name


def _describe_noisings() -> str:
    """From the first line of each class's docstring."""
    return " ".join(f"{name}: {(kind.__doc__ or '').strip().splitlines()[0]}" for name, kind in NOISINGS.items())


class NoisingOptions(Options):
    """DiffGRM: noising"""

    noising: Annotated[str, AfterValidator(_is_noising)] = option(
        f"Which digits of the target are masked in its views. {_describe_noisings()}",
        expected="one of " + ", ".join(NOISINGS),
    )


class LossOptions(Options):
    """DiffGRM: loss"""

    loss_weighting: Literal["view_mean", "token_mean"] = option(
        "Mean over views of the mean over their masked digits (paper), or mean over all masked digits (authors' "
        "release)."
    )
    label_smoothing: Probability = option("Label smoothing of the digits' cross-entropy.")
    mask_absent_codes: bool = option(
        "Leave codes that no item has together with one of the shown digits out of the softmax. False: all codes are "
        "in it, as in the paper."
    )


class DecodingOptions(Options):
    """DiffGRM: decoding"""

    decoding: Literal["constrained", "unconstrained", "unconstrained_greedy_last", "fixed_order"] = option(
        "What beam search (CPD) goes over. constrained: partial SIDs that exist, each once. unconstrained (paper): all "
        "SIDs; those that do not exist are dropped at the end. unconstrained_greedy_last (authors' release): each "
        "branch takes the best code for its last digit. fixed_order (paper's w/o CPD): one random order of the digits.",
        affects="evaluation",
    )
    path_merge: Literal["max", "logsumexp"] = option(
        "constrained: score of a partial SID that is reached in several orders: the best one's, or the sum.",
        affects="evaluation",
    )


class _DiffGRMOptions(
    SearchOptions, NetworkOptions, ItemHeadOptions, ItemSoftmaxOptions, NoisingOptions, LossOptions, DecodingOptions
):
    @model_validator(mode="after")
    def _check_samples(self) -> "_DiffGRMOptions":
        if self.decoder_targets is not None and self.sample_unit != "sequence":
            raise UserError("decoder_targets: read only with sample_unit: sequence")
        return self

    @model_validator(mode="after")
    def _check_item_head(self, info: ValidationInfo) -> "_DiffGRMOptions":
        if not self.item_head:
            for key in ("item_text", "code_prior", "item_scoring", "leaf_size"):
                self.check_unused(info, key, "read only with item_head")
            self.check_item_softmax_unused(info, "item_head")
        elif self.decoding != "constrained":
            raise UserError("item_head: needs decoding: constrained, which bounds the score of every SID")
        else:
            reason = "not read with item_head, which ranks items by their own scores"
            self.check_unused(info, "sid_collision_order", reason)
            if self.item_scoring in ("full", "none"):
                self.check_unused(info, "leaf_size", f"not read with item_scoring: {self.item_scoring}")
        return self

    @model_validator(mode="after")
    def _check_noising(self, info: ValidationInfo) -> "_DiffGRMOptions":
        chosen = NOISINGS[self.noising]
        for key in noising_keys() - chosen.keys():
            readers = [name for name, noising in NOISINGS.items() if key in noising.model_fields]
            self.check_unused(info, key, f"read only by noising {' and '.join(readers)}, not by {self.noising}")
        make_noising(self.model_dump()).check(self.num_digits)
        return self

    @model_validator(mode="after")
    def _check_path_merge(self, info: ValidationInfo) -> "_DiffGRMOptions":
        if self.decoding != "constrained":
            for key in ("path_merge", "normalize_codes"):
                self.check_unused(info, key, f"read only with decoding: constrained, not {self.decoding}")
        return self


def noising_keys() -> set[str]:
    return set().union(*(noising.keys() for noising in NOISINGS.values()))


def make_noising(settings: Any) -> Noising:
    """The chosen noising with its options; `settings` is a configuration, or a dictionary of options."""
    noising = NOISINGS[settings["noising"]]
    return noising(**{key: settings[key] for key in noising.model_fields})


def build_options() -> type[_DiffGRMOptions]:
    """All keys, those of every registered noising among them."""
    fields: dict[str, Any] = {}
    for noising in NOISINGS.values():
        fields |= {key: (field.annotation, field) for key, field in noising.model_fields.items()}
    return create_model("DiffGRMOptions", __base__=_DiffGRMOptions, __doc__="DiffGRM: keys of the noisings", **fields)


DiffGRMOptions = build_options()

"""Keys of models that generate semantic IDs by beam search."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from recbole_diffgrm.config.options import GeneralOptions, ListLength, Options, option
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.tokenizer.options import TokenizerOptions
from recbole_diffgrm.words import count


def _is_narrowing(widths: int | list[int]) -> int | list[int]:
    if isinstance(widths, list) and widths != sorted(widths, reverse=True):
        raise ValueError
    return widths


BEAM = "a whole number from 1 to 100000, or a list with one per step, none larger than the one before, such as [32, 16]"
BeamSize = Annotated[
    ListLength | Annotated[list[ListLength], Field(min_length=1, max_length=100)],
    AfterValidator(_is_narrowing),
    Field(json_schema_extra={"expected": BEAM}),
]


class BeamOptions(Options):
    """Beam search"""

    beam_size: BeamSize = option(
        "Branches per user in the test, or a list with the number after each step (the last one holds for further "
        "steps). At least max(topk) at the end.",
        affects="evaluation",
        expected=BEAM,
    )
    valid_beam_size: BeamSize = option("The same in validation.", affects="validation", expected=BEAM)
    normalize_codes: bool = option(
        "Search over existing SIDs: probabilities of a digit's codes sum to 1 over those that exist below a branch, "
        "and a branch with one SID left is finished. False: over the whole codebook, as in the papers.",
        affects="evaluation",
    )
    decoding_memory: Annotated[float, Field(gt=0, le=2**30)] = option(
        "MiB, roughly, for the beams that are decoded at once; on a GPU an eighth of its free memory, if that is more.",
        affects="evaluation",
    )


class SearchOptions(GeneralOptions, TokenizerOptions, BeamOptions):
    """Base of the Options of a SearchModel."""

    @property
    def num_digits(self) -> int | None:
        """Digits of a SID that is made here; None for those of a file, known once it is read."""
        return None if self.sid_file is not None else self.sid_num_digits + self.sid_collisions.endswith("_digit")

    @model_validator(mode="after")
    def _check_beams(self, info: ValidationInfo) -> "SearchOptions":
        list_length = (info.context or {}).get("list_length") or max(self.topk)
        for key in ("beam_size", "valid_beam_size"):
            widths = as_widths(getattr(self, key))
            if self.num_digits is not None and len(widths) > self.num_digits:
                raise UserError(f"{key}: {len(widths)} widths, but a SID has {count(self.num_digits, 'digit')}")
            if widths[-1] < list_length:
                raise UserError(f"{key}: {widths[-1]} SIDs are too few for topk {list_length}")
        return self


def as_widths(beam_size: int | Sequence[int]) -> tuple[int, ...]:
    return (beam_size,) if isinstance(beam_size, int) else tuple(beam_size)

"""Keys of the tokenizer: types, ranges and descriptions. Defaults are in properties/tokenizer.yaml."""

from string import Formatter
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, GetJsonSchemaHandler, ValidationInfo, model_validator

from recbole_diffgrm.config.options import Names, Options, PositiveInt, Text, Width, option
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.tokenizer.quantizers import QUANTIZERS


def _is_template(value: str) -> str:
    """Without widths ({text:>99999999999}), attributes and the like."""
    parts = list(Formatter().parse(value))
    names = {name for _, name, _, _ in parts if name is not None}
    if not {"text"} <= names <= {"label", "text"} or any(spec or conversion for _, _, spec, conversion in parts):
        raise ValueError
    return value


def _is_power_of_two(value: int) -> int:
    if value & (value - 1):
        raise ValueError
    return value


class _IsQuantizer:
    """One of the registry, as it is when a value is checked or a schema is made: quantizers may register later."""

    @staticmethod
    def check(value: str) -> str:
        if value not in QUANTIZERS:
            raise ValueError
        return value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return handler(schema) | {"enum": list(QUANTIZERS)}


class TokenizerOptions(Options):
    """Semantic IDs"""

    sid_text_fields: Names | Annotated[dict[Text, Text], Field(min_length=1)] = option(
        "Columns of .item that make up an item's text, in order: a list, or {column: label}. Columns that the file "
        "does not have are left out.",
        expected="columns such as [title, brand] or {title: Title, brand: Brand}",
    )
    sid_text_template: Annotated[str, AfterValidator(_is_template)] = option(
        "How one field is written. Fields are joined by spaces; empty ones are left out.",
        expected="text with {text}, and with {label} if labels are to be shown",
    )
    sid_text_encoder: Text = option(
        "Source of item vectors: bundled (all-MiniLM-L6-v2, no network), a sentence-transformers model by hub name or "
        "folder, or a file of embeddings: FILE.npz with arrays item_id and embedding, or FILE.npy with the item ids, "
        "one per line, in FILE.ids.txt."
    )
    sid_trust_remote_code: bool = option("Let a text encoder run program code that comes with it.")
    sid_file: Text | None = option(
        "Ready SIDs instead of new ones: a table with columns item_id:token and sid:token_seq, or the tokenizer.npz of "
        "an earlier run, whose items keep their SIDs while new items are added.",
        affects="file",
    )
    sid_quantizer: Annotated[str, AfterValidator(_IsQuantizer.check), _IsQuantizer] = option(
        f"How item vectors become codes: {', '.join(f'{name} ({kind.summary})' for name, kind in QUANTIZERS.items())}."
    )
    sid_num_digits: int = option(
        "Digits of a SID, n in the paper.", ge=1, le=64, expected="a whole number from 1 to 64"
    )
    sid_codebook_size: Annotated[int, AfterValidator(_is_power_of_two)] = option(
        "Codes per digit, M in the paper.", ge=2, le=4096, expected="a power of two from 2 to 4096"
    )
    sid_pca_dim: Width | None = option(
        "Most dimensions that whitened PCA keeps before quantization; ~ quantizes the raw embeddings."
    )
    rq_vae_epochs: PositiveInt = option("Quantizer rq_vae: passes over the training items.")
    rq_vae_latent_dim: Width = option("Quantizer rq_vae: dimensions of the latent space that codes divide.")
    sid_collisions: Literal["keep", "reassign", "extra_digit", "random_digit"] = option(
        "Items with the same codes: keep lets them share a SID, as in the paper; reassign moves as few as possible to "
        "the nearest free SIDs; extra_digit numbers them in one more digit; random_digit tells them apart by one more "
        "digit that is random, as in ActionPiece."
    )
    sid_hash_size: PositiveInt = option(
        "random_digit: values of the digit, so at most this many items may have the same codes."
    )
    sid_collision_order: Literal["popularity", "number"] = option(
        "Items that share a SID: most popular in training first, or by item number."
    )
    sid_seed: int = option(
        "Random seed of the quantizer, separate from `seed` so that runs with different seeds share their SIDs.",
        ge=0,
        lt=2**31,
        expected="a whole number from 0 to 2147483647",
    )
    cache_dir: Text = option(
        "Embeddings, codes and SIDs are cached below this folder, by dataset. It may be deleted.", affects="nothing"
    )

    def check_collision_order_unused(self, info: ValidationInfo) -> None:
        """For models that score items themselves."""
        self.check_unused(info, "sid_collision_order", "not read: items are ranked by their scores, then their numbers")

    @model_validator(mode="after")
    def _enough_dimensions(self) -> "TokenizerOptions":
        if self.sid_pca_dim is not None and self.sid_pca_dim < self.sid_num_digits:
            raise UserError(
                f"sid_pca_dim ({self.sid_pca_dim}) must be at least sid_num_digits ({self.sid_num_digits}), or ~"
            )
        return self

    @model_validator(mode="after")
    def _hash_fits_codebook(self) -> "TokenizerOptions":
        if self.sid_collisions == "random_digit" and self.sid_hash_size > self.sid_codebook_size:
            raise UserError(
                f"sid_hash_size ({self.sid_hash_size}) must be at most sid_codebook_size ({self.sid_codebook_size})"
            )
        return self

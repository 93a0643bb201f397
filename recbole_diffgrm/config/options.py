"""What a key may hold: its type, range and description, each declared once, here or beside the component that reads it.

A group of keys is a subclass of `Options`; a model's `Options` inherits the groups it reads. Defaults are in
properties/*.yaml; docs/configuration.md, properties/schema.json and `--help KEY` are made from both (config.reference).
"""

import re
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator
from pydantic.fields import FieldInfo

from recbole_diffgrm.errors import UserError

# What of a run a key can change. A finished run may be tested again with other `validation` and `evaluation` keys,
# recommends with other `evaluation` keys, and is the same run whatever the keys that affect `nothing`. A `file` counts
# by its content, which is hashed with the data, not by its path.
Affects = Literal["training", "validation", "evaluation", "nothing", "file"]


def option(description: str, *, affects: Affects = "training", expected: str | None = None, **constraints: Any) -> Any:
    """A key. `expected`: its values in words, where the type cannot say it; `constraints` are pydantic's (ge, ...)."""
    extra: dict[str, Any] = {"affects": affects} | ({"expected": expected} if expected else {})
    return Field(description=description, json_schema_extra=extra, **constraints)


class Options(BaseModel):
    """Strict: a text is not a number, True is not 1."""

    # Built when first used: many groups are only inherited from.
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    @classmethod
    def keys(cls, *affects: Affects) -> set[str]:
        """All of them, or those that affect something named."""
        return {name for name, field in cls.model_fields.items() if not affects or what_it_affects(field) in affects}

    def check_unused(self, info: ValidationInfo, key: str, reason: str) -> None:
        """Refuse a key that is set, to another value than its default, where nothing reads it."""
        defaults = (info.context or {}).get("defaults", {})
        if key in defaults and getattr(self, key) != defaults[key]:
            raise UserError(f"{key}: {reason}")


def what_it_affects(field: FieldInfo) -> Affects:
    extra = field.json_schema_extra
    return extra.get("affects", "training") if isinstance(extra, dict) else "training"  # type: ignore[return-value]


def is_text(field: FieldInfo) -> bool:
    """Does a key hold a text, of whatever form, or ~?"""
    kind = field.annotation
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return {get_args(part)[0] if get_origin(part) is Annotated else part for part in parts} - {NoneType} == {str}


def expected_words(schema: Mapping[str, Any]) -> str:
    """The values that a key's JSON schema allows, in words: `a whole number of at least 1, or ~`."""
    if "expected" in schema:
        return str(schema["expected"])
    if "anyOf" in schema:
        parts = [part for part in schema["anyOf"] if part.get("type") != "null"]
        words = " or ".join(map(expected_words, parts))
        return words + ", or ~" if len(parts) < len(schema["anyOf"]) else words
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    if schema.get("type") == "array":
        return f"a list, each {expected_words(schema.get('items', {}))}" if schema.get("items") else "a list"
    kinds = {
        "integer": "a whole number",
        "number": "a number",
        "boolean": "True or False",
        "string": "text",
        "object": "a mapping such as {key: value}",
    }
    words = kinds.get(str(schema.get("type")), "a value")
    if "minimum" in schema and "maximum" in schema:
        return f"{words} from {_number(schema['minimum'])} to {_number(schema['maximum'])}"
    limits = [
        f"{phrase} {_number(schema[name])}"
        for name, phrase in (
            ("minimum", "of at least"),
            ("exclusiveMinimum", "above"),
            ("maximum", "at most"),
            ("exclusiveMaximum", "below"),
        )
        if name in schema
    ]
    return " ".join([words, " and ".join(limits)]).strip()


def _number(limit: float) -> str:
    return str(int(limit)) if limit == int(limit) else f"{limit:g}"


# Types that several groups use

# No number is without a limit: what nobody means would end in an overflow, or in memory that no machine has.
LARGEST = 10**9

PositiveInt = Annotated[int, Field(ge=1, le=LARGEST)]
NonNegativeInt = Annotated[int, Field(ge=0, le=LARGEST)]
PositiveFloat = Annotated[float, Field(gt=0, le=LARGEST)]
NonNegativeFloat = Annotated[float, Field(ge=0, le=LARGEST)]
Width = Annotated[int, Field(ge=1, le=65536)]  # of a layer
ListLength = Annotated[int, Field(ge=1, le=100_000)]  # of lists that are made for every user
SmallInt = Annotated[int, Field(ge=1, le=1000)]  # layers, heads and the like, made one by one
Rate = Annotated[float, Field(gt=0, le=1000)]  # of learning
Temperature = Annotated[float, Field(ge=1e-6, le=10**6)]  # that scores are divided by
Weight = Annotated[float, Field(ge=0, le=10**6)]  # of a part of a loss or score
Probability = Annotated[float, Field(ge=0, lt=1)]
Text = Annotated[str, Field(min_length=1)]
Names = Annotated[list[Text], Field(min_length=1, json_schema_extra={"expected": "a list of names"})]


def _as_list(value: Any) -> Any:
    """YAML people write `topk: 10` and Python people (5, 10)."""
    return list(value) if isinstance(value, tuple) else [value] if isinstance(value, str | int) else value


_INTERVALS = re.compile(r"[\[(]\s*{n}\s*,\s*{n}\s*[\])]".replace("{n}", r"-?(?:inf|\d+\.?\d*(?:[eE][-+]?\d+)?)"))


def _is_value_filter(value: str | list[str]) -> str | list[str]:
    if isinstance(value, str) and not all(_INTERVALS.fullmatch(part) for part in value.split(";")):
        raise ValueError
    return value


def _is_interval(value: str) -> str:
    if not re.fullmatch(r"[\[(]\s*\d+\s*,\s*(\d+|inf)\s*[\])]", value):
        raise ValueError
    return value


def _is_url(value: str) -> str:
    if not re.match(r"https?://.", value):
        raise ValueError
    return value


def _has_inter(value: dict[str, list[str]]) -> dict[str, list[str]]:
    if "inter" not in value:
        raise ValueError
    return value


def _clip_limit(value: Any) -> Any:
    """RecBole writes {max_norm: 1.0, norm_type: 2}."""
    if isinstance(value, dict) and {"max_norm"} <= set(value) <= {"max_norm", "norm_type"}:
        return value["max_norm"] if value.get("norm_type", 2) == 2 else value
    return value


def _without_dynamic(value: Any) -> Any:
    """RecBole's default says that negative items are not chosen among candidates."""
    if isinstance(value, dict) and not value.get("dynamic") and not value.get("candidate_num"):
        return {key: part for key, part in value.items() if key not in ("dynamic", "candidate_num")}
    return value


def _is_neg_sampling(value: dict[str, Any]) -> dict[str, Any]:
    def is_int(v: Any) -> bool:
        return isinstance(v, int) and not isinstance(v, bool) and 1 <= v <= 10**6

    def is_number(v: Any) -> bool:
        return isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v <= 10

    checks = {"distribution": {"uniform", "popularity"}.__contains__, "sample_num": is_int, "alpha": is_number}
    if not set(value) <= set(checks) or not all(checks[key](part) for key, part in value.items()):
        raise ValueError
    return value


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


Url = Annotated[str, AfterValidator(_is_url), Field(json_schema_extra={"expected": "an address http(s)://..."})]
Interval = Annotated[
    str, AfterValidator(_is_interval), Field(json_schema_extra={"expected": "an interval such as [5,inf)"})
]
COLUMNS = "lists of columns such as {inter: [user_id, item_id, timestamp]}"


class HeadsDivideWidth(Options):
    """For models with the keys hidden_size and n_heads; those without are passed over."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> "HeadsDivideWidth":
        width, heads = getattr(self, "hidden_size", 0), getattr(self, "n_heads", 1)
        if width % heads:
            raise UserError(f"hidden_size ({width}) must be a multiple of n_heads ({heads})")
        return self


# A training sample is a history and its next item, or a user's sequence with a target at every position.
SampleUnit = Literal["prefix", "sequence"]


# Groups of keys that every model reads


class DataOptions(Options):
    """Data"""

    data_path: Text = option("Folder that holds one folder of atomic files per dataset.", affects="nothing")
    amazon_url: Url = option("Where Amazon_<Category> archives (2014) are downloaded from.", affects="nothing")
    amazon_2023_url: Url = option("Where Amazon_2023_<Category> archives are downloaded from.", affects="nothing")
    recbole_url: Url = option("Where the datasets of RecBole's url.yaml are downloaded from.", affects="nothing")
    USER_ID_FIELD: Text = option("Column of .inter with the user.")
    ITEM_ID_FIELD: Text = option("Column of .inter and .item with the item.")
    TIME_FIELD: Text = option("Column of .inter with the time.")
    LIST_SUFFIX: Text = option("RecBole's name for the history of a column in a batch ends so.")
    NEG_PREFIX: Text = option("RecBole's name for negative items in a batch begins so.")
    ITEM_LIST_LENGTH_FIELD: Text = option("RecBole's name for the length of a history in a batch.")
    seq_separator: Text = option("What separates the values of a list in atomic files.")
    MAX_ITEM_LIST_LENGTH: Annotated[int, Field(ge=1, le=10000)] = option(
        "Length of the history a model sees: its most recent items."
    )
    load_col: Annotated[dict[str, Names], AfterValidator(_has_inter)] = option(
        "Columns that RecBole loads. Item text for semantic IDs is read separately.", expected=COLUMNS
    )
    unload_col: dict[str, Names] | None = option("Columns not to load, instead of load_col.", expected=COLUMNS)
    seq_len: dict[str, PositiveInt] | None = option(
        "Longest list kept of each list column, such as {categories: 5}.",
        expected="a mapping such as {column: 5}, or ~",
    )
    filter_inter_by_user_or_item: bool = option("Drop interactions whose user or item has no line in .user or .item.")
    user_inter_num_interval: Interval | None = option("Keep users with this many interactions; ~ keeps all.")
    item_inter_num_interval: Interval | None = option("Keep items with this many interactions; ~ keeps all.")
    rm_dup_inter: Literal["first", "last"] | None = option("Which of repeated user-item pairs to keep; ~ keeps all.")
    val_interval: dict[str, Annotated[str | list[Text], AfterValidator(_is_value_filter)]] | None = option(
        "RecBole's filter by value: intervals of a column of numbers, such as {rating: '[3,inf)'} or '[1,2];[4,5]', or "
        "the tokens to keep, such as {city: [Rome, Paris]}.",
        expected="a mapping such as {rating: '[3,inf)'} or {city: [Rome, Paris]}, or ~",
    )
    benchmark_filename: Names | None = option(
        "A ready-made split: [train, valid, test] reads <dataset>.train.inter and so on, instead of eval_args' split."
    )
    normalize_all: bool | None = option("Scale every float column to 0..1.")
    normalize_field: Names | None = option("Scale these float columns to 0..1.")

    @model_validator(mode="after")
    def _columns_differ(self) -> "DataOptions":
        """What a batch holds under one name is one thing."""
        if len({self.USER_ID_FIELD, self.ITEM_ID_FIELD, self.TIME_FIELD}) < 3:
            raise UserError("USER_ID_FIELD, ITEM_ID_FIELD and TIME_FIELD must be three columns")
        columns = dict.fromkeys([self.USER_ID_FIELD, self.ITEM_ID_FIELD, self.TIME_FIELD, *self.load_col["inter"]])
        made = [("LIST_SUFFIX", column + self.LIST_SUFFIX) for column in columns]
        made += [("NEG_PREFIX", self.NEG_PREFIX + self.ITEM_ID_FIELD)]
        made += [("ITEM_LIST_LENGTH_FIELD", self.ITEM_LIST_LENGTH_FIELD)]
        taken = set(columns)
        for key, name in made:
            if name in taken:
                raise UserError(f"{key}: {name} would be the name of two columns of a batch; choose another one")
            taken.add(name)
        return self


class SampleOptions(Options):
    """Training samples"""

    sample_unit: SampleUnit = option(
        "prefix: a sample is a target and the items before it. sequence: a user's sequence (in chunks of "
        "MAX_ITEM_LIST_LENGTH) with a target at every position, in one pass; train_batch_size counts these. Models "
        "whose encoder is causal train on sequences, at a fraction of the cost."
    )
    train_repeat: SmallInt = option("Every training sample occurs this many times in an epoch.")
    sliding_window: bool = option("Every item of a user is a target in turn; False: only the last one.")
    min_history: PositiveInt = option("Fewest items before a target.")
    max_history: PositiveInt | None = option(
        "Sliding window: most items before a target; a user's later targets are left out. ~ takes all (models see "
        "MAX_ITEM_LIST_LENGTH of them)."
    )

    @model_validator(mode="after")
    def _history_range(self) -> "SampleOptions":
        selects = not self.sliding_window or self.min_history > 1 or self.max_history is not None
        if self.sample_unit == "sequence" and selects:
            raise UserError(
                "sample_unit: sequence makes every item a target: sliding_window: True, min_history: 1, max_history: ~"
            )
        if self.sliding_window and self.max_history is not None and self.max_history < self.min_history:
            raise UserError(f"max_history ({self.max_history}) is below min_history ({self.min_history})")
        return self


class EvaluationOptions(Options):
    """Evaluation"""

    eval_args: dict[str, Any] = option(
        "RecBole's evaluation protocol: {split: ..., group_by: user, order: TO, mode: full}. split: {LS: "
        "valid_and_test | valid_only | test_only} leaves the last items of each user out, {TS: [0.8, 0.1, 0.1]} or "
        "{TS: [2014-01-01, 2014-04-01]} cuts at two points in time, {RS: [0.8, 0.1, 0.1]} cuts each user's sequence. "
        "mode: full ranks the whole catalogue; uni100, pop100 or {valid: uni100, test: full}: against sampled items."
    )
    repeatable: bool = option(
        "Rank all items in validation and first in the test; False filters seen items (those of the user's history) "
        "out of every ranking.",
        affects="evaluation",
    )
    metrics: Annotated[Names, BeforeValidator(_as_list)] = option(
        "RecBole's ranking metrics.", affects="validation", expected="a list of metric names"
    )
    topk: Annotated[list[ListLength], BeforeValidator(_as_list)] = option(
        "Cut-offs of the metrics.",
        affects="validation",
        min_length=1,
        max_length=100,
        expected="a list of whole numbers from 1 to 100000, such as [5, 10]",
    )
    valid_metric: Text = option(
        "Selects the best epoch: a metric, or a weighted sum such as 0.8*NDCG@10+0.2*Recall@10; compared unrounded.",
        affects="validation",
    )
    eval_batch_size: PositiveInt = option(
        "Users per evaluation batch (fewer where the catalogue is large).", affects="evaluation"
    )
    num_valid_users: PositiveInt | None = option(
        "Validate on a random subset of this many users, the same in every epoch; ~ on all.", affects="validation"
    )
    num_test_users: PositiveInt | None = option(
        "Test on a random subset of this many users, the same for every model and seed, with an interval for each "
        "metric; ~ on all.",
        affects="validation",
    )


class TrainingOptions(Options):
    """Training"""

    epochs: NonNegativeInt = option("Most passes over the training samples.")
    stopping_step: PositiveInt = option("Early-stopping patience: evaluations without a better score.")
    eval_step: PositiveInt = option("Epochs between evaluations.")
    eval_from: PositiveInt = option("First epoch that is evaluated.")
    train_batch_size: PositiveInt = option("Training samples per step.")
    learner: Annotated[Literal["adam", "adamw", "sgd", "adagrad", "rmsprop"], BeforeValidator(_lower)] = option(
        "Optimizer."
    )
    learning_rate: Rate = option("Peak learning rate.")
    scheduler: Literal["constant", "linear", "cosine"] = option(
        "Learning rate after warm-up: constant, or decaying to 0 at the last epoch."
    )
    warmup_steps: NonNegativeInt = option("Steps in which the learning rate grows linearly from 0.")
    clip_grad_norm: Annotated[PositiveFloat | None, BeforeValidator(_clip_limit)] = option(
        "Largest gradient norm; ~ does not clip.",
        expected="a number above 0 and at most 1000000000, {max_norm: 1.0, norm_type: 2}, or ~",
    )
    weight_decay: Annotated[float, Field(ge=0, le=1000)] = option("Weight decay of the optimizer.")
    train_neg_sample_args: (
        Annotated[dict[str, Any], BeforeValidator(_without_dynamic), AfterValidator(_is_neg_sampling)] | None
    ) = option(
        "Negative items for pairwise losses (loss_type BPR); ~ samples one uniformly where a model needs it.",
        expected="a mapping such as {distribution: uniform, sample_num: 1, alpha: 1.0}, alpha from 0 to 10, or ~",
    )
    ema_decay: Probability | None = option(
        "Evaluate and keep an exponential moving average of the weights, such as 0.999; ~ the weights themselves."
    )
    enable_amp: bool = option(
        "Mixed precision: bfloat16, or float16 on a GPU that has no bfloat16. Faster on a CPU that has avx512_bf16 or "
        "amx_bf16."
    )
    compile: bool = option("torch.compile, for GPUs; on a CPU compiling takes many minutes.")
    shuffle: bool = option("Shuffle the training samples in every epoch.")


class RunOptions(Options):
    """Running"""

    seed: Annotated[int, Field(ge=0, lt=2**32)] = option("Random seed.", expected="a whole number from 0 to 4294967295")
    output_dir: Text = option("Run directories are created below this folder.", affects="nothing")
    checkpoint_seconds: PositiveFloat = option(
        "Seconds between checkpoints inside an epoch; there is one at the end of every epoch anyway.", affects="nothing"
    )
    save_topk: Annotated[int, Field(ge=0, le=100_000)] = option(
        "Save this many best items of every test user.", affects="nothing"
    )
    show_progress: bool = option(
        "Progress bars on a terminal, elsewhere a line every 30 seconds of longer work; False shows neither.",
        affects="nothing",
    )
    use_gpu: bool = option("Use a GPU where there is one.")
    gpu_id: Annotated[int, Field(ge=-1, le=1023)] | str = option(
        "Which of the visible GPUs, from 0; processes have those of a list (0,2), or the following ones; -1: none.",
        affects="nothing",
        expected="the number of a GPU",
    )
    reproducibility: bool = option("Deterministic algorithms where the device has them.")
    log_wandb: bool = option("Log the run to Weights & Biases too.", affects="nothing")
    wandb_project: Text = option("Project of log_wandb.", affects="nothing")
    log_mlflow: bool = option(
        "Log the run to MLflow too: to MLFLOW_TRACKING_URI, or else to mlflow.db in output_dir.", affects="nothing"
    )
    state: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], BeforeValidator(_upper)] = option(
        "Log level.", affects="nothing"
    )


class GeneralOptions(DataOptions, SampleOptions, EvaluationOptions, TrainingOptions, RunOptions):
    """Every model reads these."""

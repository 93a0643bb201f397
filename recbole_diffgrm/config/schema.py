"""What a configuration may hold: known keys, types and ranges. Every complaint is one line."""

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from recbole_diffgrm.errors import UserError


@dataclass(frozen=True)
class Rule:
    accepts: Callable[[Any], bool]
    expected: str


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def integer(low: int) -> Rule:
    return Rule(lambda v: _is_int(v) and v >= low, f"a whole number of at least {low}")


def number(low: float, high: float = float("inf"), *, above: bool = False, below: bool = False) -> Rule:
    """low <= v <= high; `above` and `below` exclude the ends."""

    def accepts(v):
        return _is_number(v) and (v > low if above else v >= low) and (v < high if below else v <= high)

    words = f"a number {'above' if above else 'of at least'} {low:g}"
    if high != float("inf"):
        words += f" and {'below' if below else 'at most'} {high:g}"
    return Rule(accepts, words)


def choice(*options: str) -> Rule:
    return Rule(lambda v: v in options, "one of " + ", ".join(options))


def optional(rule: Rule) -> Rule:
    return Rule(lambda v: v is None or rule.accepts(v), rule.expected + ", or ~")


def list_of(rule: Rule, words: str) -> Rule:
    return Rule(lambda v: isinstance(v, list) and v != [] and all(map(rule.accepts, v)), words)


BOOLEAN = Rule(lambda v: isinstance(v, bool), "True or False")
TEXT = Rule(lambda v: isinstance(v, str) and v != "", "a text")
NAMES = list_of(TEXT, "a list of names")
MAPPING = Rule(lambda v: isinstance(v, dict), "a mapping such as {key: value}")
PROBABILITY = number(0, 1, below=True)
INTERVAL = Rule(
    lambda v: isinstance(v, str) and re.fullmatch(r"[\[(]\s*\d+\s*,\s*(\d+|inf)\s*[\])]", v) is not None,
    "an interval such as [5,inf)",
)
ADDRESS = Rule(lambda v: isinstance(v, str) and re.match(r"https?://.", v) is not None, "an address http(s)://...")


POWER_OF_TWO = Rule(lambda v: _is_int(v) and 2 <= v <= 4096 and v & (v - 1) == 0, "a power of two from 2 to 4096")


def _is_text_fields(v: Any) -> bool:
    names = list(v) + list(v.values()) if isinstance(v, dict) else v
    return NAMES.accepts(names)


def _is_template(v: Any) -> bool:
    try:
        return isinstance(v, str) and "\0" in v.format(label="", text="\0")
    except (KeyError, IndexError, ValueError, AttributeError, TypeError):
        return False


def columns(*required: str) -> Rule:
    def accepts(v):
        return isinstance(v, dict) and all(map(NAMES.accepts, v.values())) and set(required) <= set(v)

    return Rule(accepts, "lists of columns such as {inter: [user_id, item_id, timestamp]}")


def _is_sampling(v: Any) -> bool:
    rules = {"distribution": choice("uniform", "popularity"), "sample_num": integer(1), "alpha": number(0)}
    return isinstance(v, dict) and set(v) <= set(rules) and all(rules[key].accepts(part) for key, part in v.items())


def _is_clip(v: Any) -> bool:
    limit = v["max_norm"] if isinstance(v, dict) and set(v) == {"max_norm"} else v
    return _is_number(limit) and limit > 0


def _is_schedule(v: Any) -> bool:
    return isinstance(v, list) and all(map(_is_int, v)) and v != [] and v[0] >= 1 and v == sorted(set(v))


def _is_beam(v: Any) -> bool:
    widths = v if isinstance(v, list) else [v]
    return widths != [] and all(_is_int(w) and w >= 1 for w in widths) and widths == sorted(widths, reverse=True)


BEAM = Rule(
    _is_beam, "a whole number of at least 1, or one for each step, none larger than the one before, as [32, 16]"
)

RULES: dict[str, Rule] = {
    # data
    "data_path": TEXT,
    "amazon_url": ADDRESS,
    "MAX_ITEM_LIST_LENGTH": integer(1),
    "load_col": columns("inter"),
    "unload_col": optional(columns()),
    "seq_len": optional(MAPPING),
    "filter_inter_by_user_or_item": BOOLEAN,
    "user_inter_num_interval": optional(INTERVAL),
    "item_inter_num_interval": optional(INTERVAL),
    "rm_dup_inter": optional(choice("first", "last")),
    "val_interval": optional(MAPPING),
    "threshold": optional(MAPPING),
    "normalize_all": optional(BOOLEAN),
    "normalize_field": optional(NAMES),
    # training samples
    "sliding_window": BOOLEAN,
    "min_history": integer(1),
    "max_history": optional(integer(1)),
    # evaluation
    "eval_args": MAPPING,
    "repeatable": BOOLEAN,
    "metrics": NAMES,
    "topk": list_of(integer(1), "a list of whole numbers of at least 1, such as [5, 10]"),
    "valid_metric": TEXT,
    "eval_batch_size": integer(1),
    # training
    "epochs": integer(0),
    "stopping_step": integer(1),
    "eval_step": integer(1),
    "eval_from": integer(1),
    "train_batch_size": integer(1),
    "learner": choice("adam", "adamw", "sgd", "adagrad", "rmsprop"),
    "learning_rate": number(0, above=True),
    "scheduler": choice("constant", "linear", "cosine"),
    "warmup_steps": integer(0),
    "clip_grad_norm": optional(Rule(_is_clip, "a number above 0, or {max_norm: 1.0}")),
    "weight_decay": number(0),
    "train_neg_sample_args": optional(
        Rule(_is_sampling, "a mapping such as {distribution: uniform, sample_num: 1, alpha: 1.0}")
    ),
    "transform": optional(choice("mask_itemseq", "inverse_itemseq", "crop_itemseq", "reorder_itemseq")),
    "ema_decay": optional(number(0, 1, below=True)),
    "enable_amp": BOOLEAN,
    "compile": BOOLEAN,
    "shuffle": BOOLEAN,
    # running
    "seed": Rule(lambda v: _is_int(v) and 0 <= v < 2**32, "a whole number from 0 to 4294967295"),
    "output_dir": TEXT,
    "checkpoint_seconds": number(0, above=True),
    "save_topk": integer(0),
    "show_progress": BOOLEAN,
    "use_gpu": BOOLEAN,
    "gpu_id": Rule(lambda v: isinstance(v, str | int) and not isinstance(v, bool), "the number of a GPU"),
    "reproducibility": BOOLEAN,
    "state": choice("INFO", "DEBUG", "WARNING", "ERROR", "CRITICAL"),
    # semantic IDs
    "sid_text_fields": Rule(_is_text_fields, "columns such as [title, brand] or {title: Title, brand: Brand}"),
    "sid_text_template": Rule(_is_template, "a text with {text}, and {label} where wanted"),
    "sid_encoder": TEXT,
    "sid_trust_remote_code": BOOLEAN,
    "sid_file": optional(TEXT),
    "sid_quantiser": choice("opq", "pq", "rq_kmeans", "random"),
    "sid_digits": Rule(lambda v: _is_int(v) and 1 <= v <= 32, "a whole number from 1 to 32"),
    "sid_codes": POWER_OF_TWO,
    "sid_pca_dim": optional(integer(1)),
    "sid_collisions": choice("keep", "reassign", "extra_digit"),
    "sid_seed": Rule(lambda v: _is_int(v) and 0 <= v < 2**31, "a whole number from 0 to 2147483647"),
    "cache_dir": TEXT,
    # DiffGRM
    "encoder_layers": integer(1),
    "decoder_layers": integer(1),
    "cross_attention_sink": BOOLEAN,
    "encoder_dropout_prob": optional(PROBABILITY),
    "item_head": BOOLEAN,
    "item_text": BOOLEAN,
    "id_weight": number(0),
    "every_position": BOOLEAN,
    "id_targets": optional(integer(1)),
    "valid_users": optional(integer(1)),
    "noising": choice("ocn", "coherent", "random"),
    "n_views": optional(integer(1)),
    "mask_schedule": optional(Rule(_is_schedule, "ascending whole numbers from 1 on, such as [1, 2, 4]")),
    "ocn_select": choice("least", "most"),
    "ocn_refresh": BOOLEAN,
    "ocn_sample": BOOLEAN,
    "ocn_confidence": choice("msp", "entropy"),
    "coherent_paths": integer(1),
    "random_ratio": optional(number(0, 1, above=True)),
    "loss_weighting": choice("view_mean", "token_mean"),
    "label_smoothing": PROBABILITY,
    "decoding": choice("catalogue", "paper", "released", "fixed_order"),
    "merge": choice("logsumexp", "max"),
    "beam_size": BEAM,
    "valid_beam_size": BEAM,
    "decoding_memory": number(0, 2**30, above=True),
    "shared_id_order": choice("popularity", "number"),
    # models: RecBole's names of what the baselines have in common
    "loss_type": choice("CE", "BPR"),
    "n_layers": integer(1),
    "num_layers": integer(1),
    "n_heads": integer(1),
    "hidden_size": integer(1),
    "inner_size": integer(1),
    "embedding_size": integer(1),
    "hidden_dropout_prob": PROBABILITY,
    "attn_dropout_prob": PROBABILITY,
    "dropout_prob": PROBABILITY,
    "hidden_act": choice("gelu", "relu", "swish", "tanh", "sigmoid"),
    "layer_norm_eps": number(0, above=True),
    "initializer_range": number(0, above=True),
    "mask_ratio": number(0, 1, above=True),
    "ft_ratio": number(0, 1),
    "pooling_type": choice("average", "max"),
    "pooling_mode": choice("mean", "max", "sum"),
    "selected_features": NAMES,
    "item_attribute": TEXT,
    "pretrain_epochs": integer(0),
}

# Keys of RecBole that have no effect here: setting one would promise something that does not happen.
WITHOUT_EFFECT = {
    "field_separator": "columns of atomic files are separated by tabs",
    "checkpoint_dir": "checkpoints lie in the run directory; set output_dir",
    "save_dataset": "the atomic files are read at every run",
    "dataset_save_path": "the atomic files are read at every run",
    "save_dataloaders": "the atomic files are read at every run",
    "dataloaders_save_path": "the atomic files are read at every run",
    "log_wandb": "runs are logged in TensorBoard and result.json",
    "wandb_project": "runs are logged in TensorBoard and result.json",
    "metric_decimal_place": "metrics are kept at full precision",
    "loss_decimal_place": "losses are kept at full precision",
    "valid_metric_bigger": "it follows from valid_metric",
    "enable_scaler": "it follows from enable_amp",
    "worker": "batches are cut in the training process",
    "benchmark_filename": "the split is made by eval_args",
    "save_step": "a checkpoint is written every epoch",
    "train_stage": "pre-training and fine-tuning run one after the other",
    "pre_model_path": "pre-training and fine-tuning run one after the other",
    "config_file": "use config_files",
    "eval_type": "it follows from metrics",
    "additional_feat_suffix": "only .inter, .user and .item are loaded",
    "kg_reverse_r": "no knowledge graph is loaded",
    "entity_kg_num_interval": "no knowledge graph is loaded",
    "relation_kg_num_interval": "no knowledge graph is loaded",
    "alias_of_entity_id": "no knowledge graph is loaded",
    "alias_of_relation_id": "no knowledge graph is loaded",
}


def nearest(name: str, candidates: Iterable[str]) -> str:
    """` Did you mean X?`, or nothing when no name is close."""
    candidates = list(candidates)
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f" Did you mean {by_lower[close[0]]}?" if close else ""


def check_known(key: Any, known: Iterable[str], source: str) -> None:
    if not isinstance(key, str):
        raise UserError(f"{source}: keys are names, not {key!r}")
    if key in WITHOUT_EFFECT:
        raise UserError(f"{source}: {key} has no effect here: {WITHOUT_EFFECT[key]}")
    known = set(known)
    if key not in known:
        raise UserError(f"{source}: no one reads the key {key!r}.{nearest(key, known - set(WITHOUT_EFFECT))}")


def check_value(key: str, value: Any, default: Any, source: str) -> None:
    """Against the key's rule or, where there is none, against the type of its default."""
    rule = RULES.get(key) or _rule_from_default(default)
    if rule and not rule.accepts(value):
        raise UserError(f"{source}: {key} must be {rule.expected}, not {value!r}")


def _rule_from_default(default: Any) -> Rule | None:
    if isinstance(default, bool):
        return BOOLEAN
    if isinstance(default, int):
        return Rule(_is_int, "a whole number")
    if isinstance(default, float):
        return Rule(_is_number, "a number")
    if isinstance(default, str):
        return Rule(lambda v: isinstance(v, str), "a text")
    if isinstance(default, list):
        return Rule(lambda v: isinstance(v, list), "a list such as [a, b]")
    return None

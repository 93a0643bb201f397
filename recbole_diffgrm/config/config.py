"""The configuration of one run: layers merged and checked, then handed to RecBole as its Config."""

import copy
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recbole_diffgrm import compat
from recbole_diffgrm.config import layers, schema
from recbole_diffgrm.config.valid_metric import parse_valid_metric
from recbole_diffgrm.errors import UserError

from recbole.config import Config as RecBoleConfig  # isort: skip
from recbole.evaluator import metric_types, smaller_metrics  # isort: skip
from recbole.evaluator.register import metric_information, metrics_dict  # isort: skip
from recbole.utils import EvaluatorType, InputType  # isort: skip

COMMAND_LINE = "command line"

# Settings that change where and how loudly a run works, not what comes out of it: not part of its identity.
WITHOUT_INFLUENCE = {
    "data_path",
    "amazon_url",
    "output_dir",
    "checkpoint_seconds",
    "save_topk",
    "show_progress",
    "state",
    "gpu_id",
    "cache_dir",
}

# What validation and test read, and training does not.
READ_BY_TESTS = {
    "decoding",
    "merge",
    "beam_size",
    "valid_beam_size",
    "decoding_memory",
    "id_weight",
    "valid_users",
    "repeatable",
    "eval_batch_size",
}

READ_BY_NOISING = {
    "ocn_select": "ocn",
    "ocn_refresh": "ocn",
    "ocn_sample": "ocn",
    "ocn_confidence": "ocn",
    "coherent_paths": "coherent",
    "random_ratio": "random",
}

# What evaluation collects (evaluation.evaluate); a metric that needs more than this cannot be computed.
COLLECTED = {"rec.topk", "rec.items", "data.num_items", "data.count_items"}


class Config(RecBoleConfig):
    """RecBole's Config, filled with values that are merged and checked already.

    RecBole would read sys.argv, evaluate strings as Python and let its own files beat the data set's. Not here.
    """

    def __init__(self, model: str, dataset: str, values: dict[str, Any]):
        self.values = values  # plain data: what the user would have to write to get this run
        super().__init__(model=compat.model_class(model), dataset=dataset)

    def _build_yaml_loader(self):
        return layers.Loader

    def _load_config_files(self, file_list):
        return {}

    def _load_variable_config_dict(self, config_dict):
        return {}

    def _load_cmd_line(self):
        return {}

    def _load_internal_config_dict(self, model, model_class, dataset):
        self.internal_config_dict = copy.deepcopy(self.values)
        self.internal_config_dict["MODEL_TYPE"] = model_class.type

    def _set_default_parameters(self):
        # RecBole refuses `repeatable: False` for sequential models because it cannot mask histories; this project can.
        repeatable = self.final_config_dict["repeatable"]
        self.final_config_dict["repeatable"] = True
        super()._set_default_parameters()
        self.final_config_dict["repeatable"] = repeatable
        self.final_config_dict["data_path"] = str(dataset_dir(self.values["data_path"], self.dataset))
        self.final_config_dict["metric_decimal_place"] = 20  # RecBole rounds; never before a comparison of scores

    def _init_device(self):
        if not self.final_config_dict["use_gpu"]:  # RecBole looks at gpu_id alone
            self.final_config_dict["gpu_id"] = ""
        super()._init_device()

    @property
    def valid_metric_terms(self):
        return parse_valid_metric(self["valid_metric"], available_metrics(self.model, self.values), smaller_metrics)

    def identity(self, data_fingerprint: str) -> str:
        """Short hash of everything that decides the outcome of the run."""
        from recbole_diffgrm import __version__

        # Of sid_file the content counts, which is part of the fingerprint, not the place.
        decisive = {key: value for key, value in self.values.items() if key not in WITHOUT_INFLUENCE | {"sid_file"}}
        content = [self.model, self.dataset, data_fingerprint, __version__, decisive]
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:8]


def build_config(
    model: str,
    dataset: str,
    config_files: str | Path | Sequence[str | Path] = (),
    overrides: dict[str, Any] | None = None,
    compared_with: Sequence[str] = (),
) -> Config:
    """Merge and check the layers. In a comparison a key counts as read when one of the compared models reads it."""
    check_model_name(model)
    if not isinstance(dataset, str) or not dataset or Path(dataset).name != dataset:
        raise UserError(f"dataset must be the name of a folder below data_path, not {dataset!r}")
    if isinstance(config_files, str | Path):
        config_files = [config_files]
    user_layers = [(str(path), layers.read_yaml(Path(path))) for path in config_files]
    user_layers.append((COMMAND_LINE, dict(overrides or {})))
    for source, layer in user_layers:
        for name in layers.model_sections(source, layer):
            check_model_name(name, source)

    defaults = layers.recbole_defaults(model)
    about_sids = sid_keys()
    known = known_keys(model)
    known_to_any = known.union(*(known_keys(other) for other in compared_with))
    ours = layers.project_layers(model, dataset)
    values, origin = layers.merge(model, ours + user_layers)
    for key in list(values):
        if not (key in about_sids and origin[key] in dict(ours)):  # our files have them for every model
            schema.check_known(key, known_to_any, origin[key])
        if key not in known:  # another model of the comparison reads it
            del values[key]
            continue
        values[key] = _normalise(key, values[key])
        schema.check_value(key, values[key], defaults.get(key), origin[key])
    values = {**defaults, **values}
    _complete(model, values, in_comparison=bool(compared_with))
    _check_together(model, values)
    return Config(model, dataset, values)


def changed_config(
    model: str, dataset: str, values: dict[str, Any], changes: dict[str, Any], longest_list: bool = False
) -> Config:
    """A configuration that was checked once, with some values changed. `longest_list`: beams hold enough for topk."""
    values = {**values, **{key: _normalise(key, value) for key, value in changes.items()}}
    for key in changes:
        schema.check_value(key, values[key], None, COMMAND_LINE)
    if "item_head" in values:
        _check_positions(values)
    if "decoding" in values:
        _check_beams(values, longest=max(values["topk"]) if longest_list else 1)
    return Config(model, dataset, values)


def check_model_name(model: Any, source: str = COMMAND_LINE) -> None:
    names = compat.model_names()
    if model in names:
        return
    if model in compat.NEEDS_OTHER_DATA:
        raise UserError(f"{source}: {model} needs {compat.NEEDS_OTHER_DATA[model]}, which this project does not load")
    if model in compat.other_model_names():
        raise UserError(f"{source}: {model} is not a sequential recommender; those are {', '.join(names)}")
    raise UserError(f"{source}: there is no model {model!r}.{schema.nearest(str(model), names)}")


def known_keys(model: str) -> set[str]:
    own = [layers.properties_dir() / "overall.yaml", layers.properties_dir() / "model" / f"{model}.yaml"]
    from_files = {key for path in own if path.exists() for key in layers.read_yaml(path)} - {"models"}
    about_sids = sid_keys() if compat.uses_sids(compat.model_class(model)) else set()
    return set(layers.recbole_defaults(model)) | from_files | about_sids


def sid_keys() -> set[str]:
    """Keys of the tokenizer."""
    return set(layers.read_yaml(layers.properties_dir() / "tokenizer.yaml"))


def dataset_dir(data_path: str, dataset: str) -> Path:
    folder = Path(data_path) / dataset
    if dataset == "ml-100k" and not (folder / f"{dataset}.inter").exists():
        return compat.recbole_dir() / "dataset_example" / dataset
    return folder


def available_metrics(model: str, values: dict[str, Any]) -> list[str]:
    """All that is computed for a model: RecBole's, and those of IDs for models that have them."""
    of_ids = sid_metric_names(values["topk"]) if compat.uses_sids(compat.model_class(model)) else []
    return metric_names(values) + of_ids


def sid_metric_names(topk: Sequence[int]) -> list[str]:
    """Metrics on IDs (evaluation.sid_level)."""
    return [f"sid_{metric}@{k}" for metric in ("recall", "ndcg") for k in topk]


def metric_names(values: dict[str, Any]) -> list[str]:
    return [f"{metric}@{k}" for metric in values["metrics"] for k in values["topk"]]


def _normalise(key: str, value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        value = list(value)
    if key in ("metrics", "topk") and value is not None and not isinstance(value, list):
        return [value]
    if key == "learner" and isinstance(value, str):
        return value.lower()
    if key == "state" and isinstance(value, str):
        return value.upper()
    return value


def _complete(model: str, values: dict[str, Any], in_comparison: bool) -> None:
    """Fill in what follows from other settings."""
    overall = layers.read_yaml(layers.properties_dir() / "overall.yaml")
    values["eval_args"] = {**overall["eval_args"], **values["eval_args"]}
    if isinstance(values["clip_grad_norm"], dict):  # RecBole's way to write it
        values["clip_grad_norm"] = values["clip_grad_norm"]["max_norm"]
    default_loss = "BPR" if getattr(compat.model_class(model), "input_type", None) == InputType.PAIRWISE else None
    loss = values.get("loss_type", default_loss)
    if loss == "BPR" and values["train_neg_sample_args"] is None:
        values["train_neg_sample_args"] = {"distribution": "uniform", "sample_num": 1}
    if loss is None and in_comparison:
        values["train_neg_sample_args"] = None  # meant for the other models


def _check_together(model: str, values: dict[str, Any]) -> None:
    eval_args = values["eval_args"]
    if set(eval_args) - {"split", "group_by", "order", "mode"}:
        raise UserError(f"eval_args: knows split, group_by, order and mode, not {', '.join(eval_args)}")
    split = eval_args["split"]
    if not isinstance(split, dict) or split.get("LS") not in ("valid_and_test", "valid_only", "test_only"):
        raise UserError(f"eval_args: split must be {{LS: valid_and_test | valid_only | test_only}}, not {split!r}")
    for key, only in {"group_by": "user", "order": "TO", "mode": "full"}.items():
        if eval_args[key] != only:
            raise UserError(f"eval_args: {key} must be {only} for sequential models, not {eval_args[key]!r}")

    usable = [
        metrics_dict[name].__name__
        for name in metrics_dict
        if metric_types[name] == EvaluatorType.RANKING and set(metric_information[name]) <= COLLECTED
    ]
    for metric in values["metrics"]:
        if metric.lower() not in map(str.lower, usable):
            raise UserError(
                f"metrics: {metric} is not available.{schema.nearest(metric, usable)} ({', '.join(usable)})"
            )
    parse_valid_metric(values["valid_metric"], available_metrics(model, values), smaller_metrics)

    if values.get("sid_pca_dim") is not None and values["sid_pca_dim"] < values["sid_digits"]:
        raise UserError(
            f"sid_pca_dim ({values['sid_pca_dim']}) must be at least sid_digits ({values['sid_digits']}), or ~"
        )
    shortest, longest = values["min_history"], values["max_history"]
    if values["sliding_window"] and longest is not None and longest < shortest:
        raise UserError(f"max_history ({longest}) is below min_history ({shortest})")
    if "noising" in values:
        _check_positions(values)
        _check_views(values)
        _check_beams(values, longest=max(values["topk"]))
    if values.get("loss_type") == "CE" and values["train_neg_sample_args"] is not None:
        raise UserError("train_neg_sample_args: loss_type CE uses no negative items; set it to ~ or use loss_type BPR")
    if "hidden_size" in values and values["hidden_size"] % values.get("n_heads", 1):
        raise UserError(f"hidden_size ({values['hidden_size']}) must be a multiple of n_heads ({values['n_heads']})")


def _check_beams(values: dict[str, Any], longest: int) -> None:
    """Beams hold enough IDs for lists of `longest`, and have a step for each of their widths."""
    for key in ("beam_size", "valid_beam_size"):
        widths = values[key] if isinstance(values[key], list) else [values[key]]
        if values["sid_file"] is None and len(widths) > (digits := _digits(values)):
            raise UserError(f"{key}: {len(widths)} widths, but an ID has {digits} digits, one for each step")
        if widths[-1] < longest:
            raise UserError(f"{key}: {widths[-1]} IDs are too few for topk {longest}")
    if values["merge"] != _defaults("DiffGRM")["merge"] and values["decoding"] != "catalogue":
        raise UserError(f"merge: only decoding catalogue reads it, and decoding is {values['decoding']}")


def _digits(values: dict[str, Any]) -> int:
    """Of an ID that is made here; those of ready IDs are known when they are read."""
    return values["sid_digits"] + (values["sid_collisions"] == "extra_digit")


def _defaults(model: str) -> dict[str, Any]:
    return layers.read_yaml(layers.properties_dir() / "model" / f"{model}.yaml")


def _check_positions(values: dict[str, Any]) -> None:
    """Targets of DiffGRM's training fit the samples."""
    every = {"sliding_window": True, "min_history": 1, "max_history": None}
    if values["every_position"] and any(values[key] != value for key, value in every.items()):
        raise UserError("every_position: every item is a target: sliding_window: True, min_history: 1, max_history: ~")
    if values["id_targets"] is not None and not values["every_position"]:
        raise UserError("id_targets: only every_position reads it")
    if values["id_weight"] != _defaults("DiffGRM")["id_weight"] and not values["item_head"]:
        raise UserError("id_weight: only item_head reads it")
    if values["item_text"] and not values["item_head"]:
        raise UserError("item_text: only item_head reads it")
    if values["item_head"] and values["decoding"] != "catalogue":
        raise UserError("item_head: needs decoding catalogue, which says of every ID how good it can be at best")
    if values["item_head"] and values["shared_id_order"] != _defaults("DiffGRM")["shared_id_order"]:
        raise UserError("shared_id_order: not read with item_head, which ranks items by their own scores")


def _check_views(values: dict[str, Any]) -> None:
    """The views of DiffGRM's noising fit each other and the digits of an ID."""
    views, schedule = values["n_views"], values["mask_schedule"]
    if schedule is not None and views is not None:
        raise UserError("n_views and mask_schedule: give one of them")
    if schedule is not None and values["noising"] == "random":
        raise UserError("mask_schedule: noising random draws its masks; use n_views and random_ratio")
    defaults = _defaults("DiffGRM")
    for key, kind in READ_BY_NOISING.items():
        if values[key] != defaults[key] and values["noising"] != kind:
            raise UserError(f"{key}: only noising {kind} reads it, and noising is {values['noising']}")
    digits = _digits(values)
    if values["sid_file"] is None and values["noising"] != "random" and max(schedule or [views or 1]) > digits:
        raise UserError(f"n_views, mask_schedule: an ID has {digits} digits, so at most {digits} can be masked")

"""The configuration of one run: layers merged and checked, then handed to RecBole as its Config.

Knows models only through the class it is given: its name, `Options`, `needs_sids` and `sample_units`.
"""

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from recbole_diffgrm import recbole_compat
from recbole_diffgrm.config import layers
from recbole_diffgrm.config.options import expected_words
from recbole_diffgrm.config.protocol import check_protocol, eval_mode
from recbole_diffgrm.config.valid_metric import ValidMetric, parse_valid_metric
from recbole_diffgrm.errors import UserError, suggest

from recbole.config import Config as RecBoleConfig  # isort: skip
from recbole.evaluator import metric_types, smaller_metrics  # isort: skip
from recbole.evaluator.register import metric_information, metrics_dict  # isort: skip
from recbole.utils import EvaluatorType, InputType  # isort: skip

COMMAND_LINE = "command line"

# What evaluation collects (evaluation.evaluator); a metric that needs more than this cannot be computed.
COLLECTED = {"rec.topk", "rec.items", "rec.meanrank", "data.num_items", "data.count_items"}

# Keys of RecBole that have no effect here: setting one would promise something that does not happen.
WITHOUT_EFFECT = {
    "field_separator": "columns of atomic files are separated by tabs",
    "checkpoint_dir": "checkpoints are in the run directory; set output_dir",
    "save_dataset": "the atomic files are read at every run",
    "dataset_save_path": "the atomic files are read at every run",
    "save_dataloaders": "the atomic files are read at every run",
    "dataloaders_save_path": "the atomic files are read at every run",
    "metric_decimal_place": "metrics are kept at full precision",
    "loss_decimal_place": "losses are kept at full precision",
    "valid_metric_bigger": "it follows from valid_metric",
    "enable_scaler": "it follows from enable_amp",
    "worker": "batches are cut in the training process",
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

# Keys that only show a run, hashed at RecBole's defaults: runs from before they had an effect keep their hashes.
HASHED_AT_DEFAULT = {"log_wandb": False, "wandb_project": "recbole"}

# `Options`, `needs_sids` and `sample_units` are read of it (models.base.ModelInterface).
ModelClass = type[Any]


class Config(RecBoleConfig):
    """RecBole's Config, filled with values that are merged and checked already.

    RecBole would read sys.argv, evaluate strings as Python and let its own files beat the dataset's. Not here.
    """

    def __init__(self, model_class: ModelClass, dataset: str, values: dict[str, Any]):
        self.values = values  # plain data: what the user would have to write to get this run
        super().__init__(model=model_class, dataset=dataset)

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
    def valid_metric_terms(self) -> ValidMetric:
        available = available_metrics(self.model_class, self.values)
        return parse_valid_metric(self["valid_metric"], available, smaller_metrics)

    def run_hash(self, data_fingerprint: str) -> str:
        """Short hash of everything that decides the outcome of the run."""
        from recbole_diffgrm import __version__

        not_hashed = self.model_class.Options.keys("nothing", "file")
        decisive = {key: value for key, value in self.values.items() if key not in not_hashed}
        decisive |= HASHED_AT_DEFAULT
        content = [self.model, self.dataset, data_fingerprint, __version__, decisive]
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:8]


def build_config(
    model_class: ModelClass,
    dataset: str,
    user_layers: Sequence[layers.Layer],
    compared_with: Sequence[ModelClass] = (),
    dataset_settings: Mapping[str, Any] | None = None,
) -> Config:
    """Merge and check the layers. In a comparison a key counts as known when one of the compared models reads it.
    `dataset_settings` are what a dataset that is not a file of properties/dataset says of itself."""
    if not isinstance(dataset, str) or not dataset or Path(dataset).name != dataset:
        raise UserError(f"dataset must be the name of a folder below data_path, not {dataset!r}")
    model = model_class.__name__
    defaults = layers.recbole_defaults(model)
    known = known_keys(model_class)
    known_to_any = known.union(*map(known_keys, compared_with))
    ours = [*layers.project_layers(model, dataset), (f"dataset {dataset}", dict(dataset_settings or {}))]
    sources_of_ours = {source for source, _ in ours}
    values, origin = layers.merge(model, [*ours, *user_layers])
    for key in list(values):
        if origin[key] not in sources_of_ours:  # our own files hold keys of other models too
            _check_known(key, known_to_any, origin[key])
        if key not in known:
            del values[key]
    values = _validate(model_class, {**defaults, **values}, defaults, origin)
    _complete(model_class, values, in_comparison=bool(compared_with))
    _check_samples(model_class, values)
    _check_evaluation(model_class, values)
    _check_negatives(values)
    return Config(model_class, dataset, values)


def change_config(
    model_class: ModelClass,
    dataset: str,
    values: Mapping[str, Any],
    changes: Mapping[str, Any],
    list_length: int | None = None,
) -> Config:
    """A configuration that was checked before, with some values changed. `list_length`: how many items a list must
    hold, where that is not max(topk)."""
    origin = dict.fromkeys(changes, COMMAND_LINE)
    # A key that affects nothing may be younger than the run that was checked.
    neutral = model_class.Options.keys("nothing")
    defaults = layers.declared_defaults(model_class.__name__)
    values = {key: value for key, value in defaults.items() if key in neutral} | dict(values)
    return Config(model_class, dataset, _validate(model_class, {**values, **changes}, {}, origin, list_length))


def known_keys(model_class: ModelClass) -> set[str]:
    return set(layers.recbole_defaults(model_class.__name__)) | model_class.Options.keys()


def dataset_dir(data_path: str, dataset: str) -> Path:
    folder = Path(data_path) / dataset
    if dataset == "ml-100k" and not any(folder.glob(f"{dataset}*.inter")):
        return recbole_compat.recbole_dir() / "dataset_example" / dataset
    return folder


def available_metrics(model_class: ModelClass, values: Mapping[str, Any]) -> list[str]:
    """All that is computed in validation: RecBole's, and those on SIDs for models that have them (sampled items have
    no ranking of SIDs)."""
    has_sids = model_class.needs_sids(values) and eval_mode(values, "valid") == "full"
    return metric_names(values) + (sid_metric_names(values["topk"]) if has_sids else [])


def sid_metric_names(topk: Sequence[int]) -> list[str]:
    """Metrics on SIDs (evaluation.sid_metrics)."""
    return [f"sid_{metric}@{k}" for metric in ("recall", "ndcg") for k in topk]


def metric_names(values: Mapping[str, Any]) -> list[str]:
    """metrics x topk, and GAUC, which has no cut-off."""
    cut_offs = [f"@{k}" for k in values["topk"]]
    return [
        metric + cut_off for metric in values["metrics"] for cut_off in ([""] if metric.lower() == "gauc" else cut_offs)
    ]


def _check_known(key: Any, known: set[str], source: str) -> None:
    if not isinstance(key, str):
        raise UserError(f"{source}: keys are names, not {key!r}")
    if key in WITHOUT_EFFECT:
        raise UserError(f"{source}: {key} has no effect here: {WITHOUT_EFFECT[key]}")
    if key not in known:
        raise UserError(f"{source}: unknown key {key!r}.{suggest(key, known - set(WITHOUT_EFFECT))}")


def _validate(
    model_class: ModelClass,
    values: Mapping[str, Any],
    recbole_defaults: Mapping[str, Any],
    origin: Mapping[str, str],
    list_length: int | None = None,
) -> dict[str, Any]:
    """Values of the model's Options as these read them; other keys of RecBole's have the type of its default."""
    values = {key: str(value) if isinstance(value, Path) else value for key, value in values.items()}
    options = model_class.Options
    declared = {key: value for key, value in values.items() if key in options.model_fields}
    context = {"defaults": layers.declared_defaults(model_class.__name__), "list_length": list_length}
    try:
        checked = options.model_validate(declared, context=context)
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:  # a check across keys
            raise first["ctx"]["error"] from None
        key = str(first["loc"][0])
        if first["type"] == "missing":
            raise UserError(f"{key} has no value: set it") from None
        words = expected_words(options.model_json_schema(by_alias=False)["properties"][key])
        source = origin.get(key, "RecBole's defaults")
        raise UserError(f"{source}: {key} must be {words}, not {values[key]!r}") from None
    for key in set(values) - set(declared):
        _check_type(key, values[key], recbole_defaults.get(key), origin.get(key, "RecBole's defaults"))
    return {**values, **checked.model_dump()}


def _check_type(key: str, value: Any, default: Any, source: str) -> None:
    """Of a key that only RecBole declares, by its default."""
    words = {bool: "True or False", int: "a whole number", float: "a number", str: "text", list: "a list"}
    kind = type(default)
    if kind not in words:
        return
    is_right = isinstance(value, kind) or (kind is float and isinstance(value, int))
    if not is_right or (kind in (int, float) and isinstance(value, bool)) or value != value:
        raise UserError(f"{source}: {key} must be {words[kind]}, not {value!r}")


def _complete(model_class: ModelClass, values: dict[str, Any], in_comparison: bool) -> None:
    """Fill in what follows from other settings."""
    overall = layers.read_yaml(layers.properties_dir() / "overall.yaml")
    check_protocol(values, overall["eval_args"])
    default_loss = "BPR" if getattr(model_class, "input_type", None) == InputType.PAIRWISE else None
    loss = values.get("loss_type", default_loss)
    if loss == "BPR" and values["train_neg_sample_args"] is None:
        values["train_neg_sample_args"] = {"distribution": "uniform", "sample_num": 1}
    if loss is None and in_comparison:
        values["train_neg_sample_args"] = None  # meant for the other models


def _check_samples(model_class: ModelClass, values: dict[str, Any]) -> None:
    units = model_class.sample_units
    if values["sample_unit"] not in units:
        raise UserError(
            f"sample_unit: {model_class.__name__} trains on {' or '.join(units)}, not {values['sample_unit']}"
        )


def _check_evaluation(model_class: ModelClass, values: dict[str, Any]) -> None:
    usable = [
        metrics_dict[name].__name__
        for name in metrics_dict
        if metric_types[name] == EvaluatorType.RANKING and set(metric_information[name]) <= COLLECTED
    ]
    for metric in values["metrics"]:
        if metric.lower() not in map(str.lower, usable):
            raise UserError(f"metrics: {metric} is not available.{suggest(metric, usable)} ({', '.join(usable)})")
        for part in ("valid", "test"):
            if eval_mode(values, part) != "full" and "rec.items" in metric_information[metric.lower()]:
                raise UserError(f"metrics: {metric} reads whole lists, which mode {eval_mode(values, part)} has not")
    parse_valid_metric(values["valid_metric"], available_metrics(model_class, values), smaller_metrics)


def _check_negatives(values: dict[str, Any]) -> None:
    if values.get("loss_type") == "CE" and values["train_neg_sample_args"] is not None:
        raise UserError("train_neg_sample_args: loss_type CE uses no negative items; set it to ~ or use loss_type BPR")

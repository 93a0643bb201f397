"""The configuration of one run: layers merged and checked, then handed to RecBole as its Config.

All but the last step works without torch and RecBole, which take seconds to import: a mistake is answered at once.
Knows models only through the class it is given (its name, `Options`, `needs_sids` and `sample_units`), or through its
name and `Options` before that is loaded.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from recbole_diffgrm import recbole_compat
from recbole_diffgrm.config import layers
from recbole_diffgrm.config.options import LARGEST, Options, expected_words
from recbole_diffgrm.config.other_keys import settle, suggest_key, suggest_synonym, warn_once
from recbole_diffgrm.config.protocol import check_protocol, eval_mode
from recbole_diffgrm.config.recbole_metrics import recbole_metrics, smaller_metrics
from recbole_diffgrm.config.valid_metric import parse_valid_metric
from recbole_diffgrm.errors import UserError, show, suggest

if TYPE_CHECKING:
    from recbole_diffgrm.config.recbole_config import Config

COMMAND_LINE = "command line"
FOR_THIS_RUN = (COMMAND_LINE, "config_dict")  # layers that serve one run, as config.recbole_arguments names them too

# What evaluation collects (evaluation.evaluator); a metric that needs more than this cannot be computed.
COLLECTED = {"rec.topk", "rec.items", "rec.meanrank", "data.num_items", "data.count_items"}

# Atomic files that are loaded.
LOADED = ("inter", "user", "item")

# `Options`, `needs_sids` and `sample_units` are read of it (models.base.ModelInterface).
ModelClass = type[Any]

# Models that read a key, with their Options.
FindReaders = Callable[[str], Mapping[str, type[Options]]]


def build_config(
    model_class: ModelClass,
    dataset: str,
    user_layers: Sequence[layers.Layer],
    compared_with: Sequence[ModelClass] = (),
    find_readers: FindReaders = lambda key: {},
    dataset_settings: Mapping[str, Any] | None = None,
) -> "Config":
    """Merge and check the layers. In a comparison a key counts as known when one of the compared models reads it.
    `dataset_settings` are what a dataset that is not a file of properties/dataset says of itself."""
    from recbole_diffgrm.config.recbole_config import Config

    compared = {other.__name__: other.Options for other in compared_with}
    values = check_values(
        model_class.__name__,
        model_class.Options,
        dataset,
        user_layers,
        compared,
        find_readers,
        dataset_settings=dataset_settings,
    )
    _complete_negatives(model_class, values, in_comparison=bool(compared_with))
    _check_samples(model_class, values)
    parse_valid_metric(values["valid_metric"], available_metrics(model_class, values), smaller_metrics())
    return Config(model_class, dataset, values)


def check_values(
    model: str,
    options: type[Options],
    dataset: str,
    user_layers: Sequence[layers.Layer],
    compared_with: Mapping[str, type[Options]],
    find_readers: FindReaders,
    other_words: Collection[str] = (),
    dataset_settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Merge the layers, and check all that can be checked without the class of the model. `other_words` may be meant by
    a misspelt key as well."""
    if not isinstance(dataset, str) or not dataset or Path(dataset).name != dataset:
        raise UserError(f"dataset must be the name of a folder below data_path, not {show(dataset)}")
    defaults = layers.recbole_defaults(model)
    known = known_keys(model, options)
    of_compared = set().union(*(known_keys(*other) for other in compared_with.items()))
    ours = [*layers.project_layers(model, dataset), (f"dataset {dataset}", dict(dataset_settings or {}))]
    sources_of_ours = {source for source, _ in ours}
    values, origin = layers.merge(model, [*ours, *user_layers])
    meant_for_model = {key for layer in user_layers for key in layers.model_sections(*layer).get(model, {})}
    for key in list(values):
        value, source = values[key], origin[key]
        if source in sources_of_ours:  # our own files hold keys of other models too
            if key not in known:
                del values[key]
            continue
        if not isinstance(key, str):
            raise UserError(f"{source}: keys are names, not {show(key)}")
        if key in ("model", "dataset"):
            _check_same(key, value, source, dataset if key == "dataset" else [model, *compared_with])
        elif not settle(key, value, source, defaults):
            if key in known:
                continue
            if key not in of_compared:
                strict = source in FOR_THIS_RUN or key in meant_for_model
                _check_unread(key, source, model, known, find_readers(key), strict, other_words)
        del values[key]
    values = _validate(model, options, {**defaults, **values}, defaults, origin)
    _complete_data(values)
    _check_metrics(values)
    _check_valid_metric(options, values)
    _check_negatives(values)
    return values


def check_changes(
    model: str,
    options: type[Options],
    values: Mapping[str, Any],
    changes: Mapping[str, Any],
    list_length: int | None = None,
) -> dict[str, Any]:
    """A configuration that was checked before, with some values changed. `list_length`: how many items a list must
    hold, where that is not max(topk)."""
    origin = dict.fromkeys(changes, COMMAND_LINE)
    # A key that affects nothing may be younger than the run that was checked.
    neutral = options.keys("nothing")
    defaults = {key: value for key, value in layers.declared_defaults(model).items() if key in neutral}
    changed = _validate(model, options, {**defaults, **values, **layers.plain(changes)}, {}, origin, list_length)
    check_protocol(changed, values["eval_args"])
    _check_metrics(changed)
    if "valid_metric" in changes:  # else it stays what has selected the best epoch, with whatever cut-off
        _check_valid_metric(options, changed)
    return changed


def known_keys(model: str, options: type[Options]) -> set[str]:
    return set(layers.recbole_defaults(model)) | options.keys()


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


def _check_same(key: str, value: Any, source: str, running: str | Sequence[str]) -> None:
    """RecBole's files may name a model and a dataset; here the command line does."""
    if value not in ([running] if isinstance(running, str) else running):
        names = running if isinstance(running, str) else ", ".join(dict.fromkeys(running))
        raise UserError(f"{source}: {key} is {value!r}, but this run is of {names}: set it with --{key}")


def _check_unread(
    key: str,
    source: str,
    model: str,
    known: set[str],
    readers: Mapping[str, type[Options]],
    strict: bool,
    other_words: Collection[str],
) -> None:
    """A file may serve several models, so a key that another one reads is passed over. What is set for this run or this
    model must be read by it, or affect nothing."""
    if not readers:
        words = known | set(other_words) if source == COMMAND_LINE else known
        raise UserError(f"{source}: unknown key {key!r}.{suggest_key(key, words)}")
    if strict and not any(key in options.keys("nothing") for options in readers.values()):
        names = list(readers)
        others = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        raise UserError(f"{source}: {model} does not read {key!r}, which is for {others}.{suggest_synonym(key, known)}")


def _validate(
    model: str,
    options: type[Options],
    values: Mapping[str, Any],
    recbole_defaults: Mapping[str, Any],
    origin: Mapping[str, str],
    list_length: int | None = None,
) -> dict[str, Any]:
    """Values of the model's Options as these read them; other keys of RecBole's have the type of its default."""
    declared = {key: value for key, value in values.items() if key in options.model_fields}
    context = {"defaults": layers.declared_defaults(model), "list_length": list_length}
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
        raise UserError(f"{source}: {key} must be {words}, not {show(values[key])}") from None
    for key in set(values) - set(declared):
        _check_type(key, values[key], recbole_defaults.get(key), origin.get(key, "RecBole's defaults"))
    return {**values, **checked.model_dump()}


def _check_type(key: str, value: Any, default: Any, source: str) -> None:
    """Of a key that only RecBole declares, by its default: finite numbers, lists as long as its own."""
    words = {bool: "True or False", int: "a whole number", float: "a number", str: "text", list: "a list"}
    kind = type(default)
    if not _is_like(value, default):
        limit = f" of at most {LARGEST}" if kind in (int, float) else f" such as {default}" if default else ""
        raise UserError(f"{source}: {key} must be {words[kind]}{limit}, not {show(value)}")


def _is_like(value: Any, default: Any) -> bool:
    kind = type(default)
    if kind is list:
        fits = not default or (isinstance(value, list) and len(value) == len(default))
        return isinstance(value, list) and fits and all(map(_is_like, value, default))
    if kind in (int, float):
        is_number = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
        return is_number and abs(value) <= LARGEST
    return kind not in (bool, str) or isinstance(value, kind)


def _complete_data(values: dict[str, Any]) -> None:
    """Fill in what RecBole's files may leave out for other kinds of models."""
    overall = layers.read_yaml(layers.properties_dir() / "overall.yaml")
    check_protocol(values, overall["eval_args"])
    load_col = values["load_col"]
    for suffix in set(load_col) - set(LOADED):
        warn_once(f"load_col: .{suffix} is not loaded, only {', '.join(f'.{name}' for name in LOADED)}")
    columns = load_col["inter"]
    needed = [values[f"{field}_FIELD"] for field in ("USER_ID", "ITEM_ID", "TIME")]
    values["load_col"] = {suffix: load_col[suffix] for suffix in load_col if suffix in LOADED} | {
        "inter": [*columns, *(name for name in needed if name not in columns)]
    }


def _complete_negatives(model_class: ModelClass, values: dict[str, Any], in_comparison: bool) -> None:
    input_type = getattr(model_class, "input_type", None)
    default_loss = "BPR" if input_type is not None and input_type.name == "PAIRWISE" else None
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


def _check_metrics(values: dict[str, Any]) -> None:
    metrics = recbole_metrics()
    usable = [metric.name for metric in metrics.values() if metric.is_ranking and metric.needs <= COLLECTED]
    for metric in values["metrics"]:
        if metric.lower() not in map(str.lower, usable):
            raise UserError(f"metrics: {metric} is not available.{suggest(metric, usable)} ({', '.join(usable)})")
        for part in ("valid", "test"):
            if eval_mode(values, part) != "full" and "rec.items" in metrics[metric.lower()].needs:
                raise UserError(f"metrics: {metric} reads whole lists, which mode {eval_mode(values, part)} has not")


def _check_valid_metric(options: type[Options], values: dict[str, Any]) -> None:
    # Whether the model has SIDs is asked of its class, once it is loaded.
    may_have_sids = "sid_num_digits" in options.model_fields and eval_mode(values, "valid") == "full"
    available = metric_names(values) + (sid_metric_names(values["topk"]) if may_have_sids else [])
    parse_valid_metric(values["valid_metric"], available, smaller_metrics())


def _check_negatives(values: dict[str, Any]) -> None:
    if values.get("loss_type") == "CE" and values["train_neg_sample_args"] is not None:
        raise UserError("train_neg_sample_args: loss_type CE uses no negative items; set it to ~ or use loss_type BPR")

"""The models of the bench. A model of ours is a line in MODELS; the others are RecBole's (models.recbole)."""

import importlib
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recbole_diffgrm.config import build, layers
from recbole_diffgrm.config.layers import Layer, preset_names
from recbole_diffgrm.config.options import Options, is_text
from recbole_diffgrm.errors import UserError, suggest
from recbole_diffgrm.models.recbole_options import RecBoleOptions, recbole_options

if TYPE_CHECKING:
    from recbole_diffgrm.data.frame import Dataset

__all__ = [
    "MODELS",
    "build_config",
    "build_from_layers",
    "check_config",
    "check_model_name",
    "find_readers",
    "get_model",
    "get_options",
    "model_names",
    "preset_names",
    "text_keys",
]

# name: module that has a class of this name
MODELS = {
    "ARM": "recbole_diffgrm.models.arm",
    "ActionPiece": "recbole_diffgrm.models.actionpiece.model",
    "DiffGRM": "recbole_diffgrm.models.diffgrm.model",
    "HSTU": "recbole_diffgrm.models.hstu",
    "HistoryCopy": "recbole_diffgrm.models.baselines",
    "Pop": "recbole_diffgrm.models.baselines",
    "RPG": "recbole_diffgrm.models.rpg",
    "RecJPQ": "recbole_diffgrm.models.recjpq",
    "TIGER": "recbole_diffgrm.models.tiger",
    "VQRec": "recbole_diffgrm.models.vqrec",
}

# name: module that has its Options (<name>Options) and does not import torch: wrong keys and values are answered at
# once. The class of a model that is not here is loaded to see what it reads.
OPTIONS = {
    "ARM": "recbole_diffgrm.models.arm_options",
    "ActionPiece": "recbole_diffgrm.models.actionpiece.options",
    "DiffGRM": "recbole_diffgrm.models.diffgrm.options",
    "HSTU": "recbole_diffgrm.models.hstu_options",
    "HistoryCopy": "recbole_diffgrm.models.baselines_options",
    "Pop": "recbole_diffgrm.models.baselines_options",
    "RPG": "recbole_diffgrm.models.rpg_options",
    "RecJPQ": "recbole_diffgrm.models.recjpq_options",
    "TIGER": "recbole_diffgrm.models.tiger_options",
    "VQRec": "recbole_diffgrm.models.vqrec_options",
}


def model_names() -> list[str]:
    """Models that can be run: ours, and RecBole's as it spells them. Loads none of them."""
    from recbole_diffgrm.models.recbole_names import sequential_model_names

    return sorted({*MODELS, *sequential_model_names()})


def get_model(name: Any, source: str = "command line") -> type[Any]:
    """The class of a model, ours or RecBole's."""
    if isinstance(name, str) and name in MODELS:
        return getattr(importlib.import_module(MODELS[name]), name)
    check_model_name(name, source)
    return _adapt(name)


@cache
def _adapt(name: str) -> type[Any]:
    from recbole_diffgrm.models.recbole import adapt

    return adapt(name)


def get_options(name: Any, source: str = "command line") -> type[Options]:
    """The keys that a model reads, without loading it where that is possible."""
    if isinstance(name, str) and name in OPTIONS:
        return getattr(importlib.import_module(OPTIONS[name]), f"{name}Options")
    if isinstance(name, str) and name in MODELS:
        return get_model(name).Options
    check_model_name(name, source)
    return recbole_options(name)


def find_readers(key: str) -> dict[str, type[Options]]:
    """Models that read a key, with their Options; models that have to be loaded are asked if no other one reads it."""
    at_once = [name for name in model_names() if name in OPTIONS or name not in MODELS]
    for names in (at_once, [name for name in MODELS if name not in OPTIONS]):
        readers = [name for name in names if _reads(name, key)]
        if readers:
            return {name: get_options(name) for name in readers}
    return {}


@cache
def text_keys() -> set[str]:
    """Keys that hold a text. Of models whose Options are known without loading them."""
    declared: list[type[Options]] = [RecBoleOptions, *map(get_options, OPTIONS)]
    return {key for options in declared for key, field in options.model_fields.items() if is_text(field)}


def _reads(name: str, key: str) -> bool:
    return key in layers.recbole_defaults(name) or (name in MODELS and key in get_options(name).model_fields)


def check_model_name(name: Any, source: str = "command line") -> None:
    from recbole_diffgrm.models.recbole_names import NEEDS_OTHER_DATA, all_model_names

    names = model_names()
    if not isinstance(name, str):
        raise UserError(f"{source}: model must be a name, not {name!r}")
    if name in names:
        return
    if name in NEEDS_OTHER_DATA:
        raise UserError(f"{source}: {name} needs {NEEDS_OTHER_DATA[name]}, which this project does not load")
    if name in all_model_names():
        raise UserError(f"{source}: {name} is not a sequential recommender; those are {', '.join(names)}")
    raise UserError(f"{source}: unknown model {name!r}.{suggest(str(name), names)}")


def build_config(
    model: str,
    dataset: "str | Dataset",
    config_files: str | Path | Sequence[str | Path] = (),
    overrides: dict[str, Any] | None = None,
    presets: str | Sequence[str] = (),
    compared_with: Sequence[str] = (),
):
    """The checked configuration of a run. `presets` are names, in a list or with commas between; in a comparison a key
    or preset counts as known when one of the models `compared_with` has it."""
    from recbole_diffgrm.data.frame import Dataset

    overrides, settings = dict(overrides or {}), None
    if isinstance(dataset, Dataset):
        if "data_path" in overrides:
            raise UserError(f"data_path: {dataset.name} is in {dataset.data_path}; leave data_path out")
        overrides["data_path"], settings, dataset = dataset.data_path, dataset.settings, dataset.name
    user_layers = _read_layers(config_files, overrides)
    return build_from_layers(model, dataset, user_layers, presets, compared_with, settings)


def build_from_layers(
    model: str,
    dataset: str,
    user_layers: Sequence[Layer],
    presets: str | Sequence[str] = (),
    compared_with: Sequence[str] = (),
    dataset_settings: Mapping[str, Any] | None = None,
):
    """The same from layers that were read already, weakest first."""
    model_class = get_model(model)
    user_layers = _with_presets(model, dataset, user_layers, presets, compared_with)
    compared_classes = [get_model(name) for name in compared_with]
    return build.build_config(model_class, dataset, user_layers, compared_classes, find_readers, dataset_settings)


def check_config(
    model: str,
    dataset: str,
    config_files: str | Path | Sequence[str | Path] = (),
    overrides: dict[str, Any] | None = None,
    presets: str | Sequence[str] = (),
    compared_with: Sequence[str] = (),
    other_words: Collection[str] = (),
) -> dict[str, Any]:
    """What of `build_config` needs no torch, which takes seconds to import: names, keys and values are checked."""
    options = get_options(model)
    compared = {name: get_options(name) for name in compared_with}
    user_layers = _with_presets(model, dataset, _read_layers(config_files, overrides), presets, compared_with)
    return build.check_values(model, options, dataset, user_layers, compared, find_readers, other_words)


def _read_layers(config_files: str | Path | Sequence[str | Path], overrides: Mapping[str, Any] | None) -> list[Layer]:
    config_files = [config_files] if isinstance(config_files, str | Path) else config_files
    of_files = [(str(path), layers.read_yaml(Path(path))) for path in config_files]
    return [*of_files, (build.COMMAND_LINE, dict(overrides or {}))]


def _with_presets(
    model: str,
    dataset: str,
    user_layers: Sequence[Layer],
    presets: str | Sequence[str],
    compared_with: Sequence[str],
) -> list[Layer]:
    """The presets and, above them, the layers; names of models in them are checked."""
    presets = presets.split(",") if isinstance(presets, str) else presets
    if not isinstance(presets, Sequence) or not all(isinstance(name, str) for name in presets):
        raise UserError("preset: give names, with commas between")
    presets = [name.strip() for name in presets if name.strip()]
    all_layers = [*layers.preset_layers(model, presets, compared_with, dataset), *user_layers]
    for source, layer in all_layers:
        for name in layers.model_sections(source, layer):
            check_model_name(name, source)
    return all_layers

"""The models of the bench. A model of ours is a line in MODELS; the others are RecBole's (models.recbole)."""

import importlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recbole_diffgrm.config.layers import Layer, preset_names
from recbole_diffgrm.errors import UserError, suggest

if TYPE_CHECKING:
    from recbole_diffgrm.data.frame import Dataset

__all__ = [
    "MODELS",
    "build_config",
    "build_from_layers",
    "check_model_name",
    "get_model",
    "model_names",
    "preset_names",
]

# name: module that has a class of this name
MODELS = {
    "ARM": "recbole_diffgrm.models.arm",
    "ActionPiece": "recbole_diffgrm.models.actionpiece",
    "DiffGRM": "recbole_diffgrm.models.diffgrm",
    "HSTU": "recbole_diffgrm.models.hstu",
    "HistoryCopy": "recbole_diffgrm.models.baselines",
    "Pop": "recbole_diffgrm.models.baselines",
    "RPG": "recbole_diffgrm.models.rpg",
    "RecJPQ": "recbole_diffgrm.models.recjpq",
    "TIGER": "recbole_diffgrm.models.tiger",
    "VQRec": "recbole_diffgrm.models.vqrec",
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
    from recbole_diffgrm.config import build, layers
    from recbole_diffgrm.data.frame import Dataset

    overrides, settings = dict(overrides or {}), None
    if isinstance(dataset, Dataset):
        if "data_path" in overrides:
            raise UserError(f"data_path: {dataset.name} is in {dataset.data_path}; leave data_path out")
        overrides["data_path"], settings, dataset = dataset.data_path, dataset.settings, dataset.name
    config_files = [config_files] if isinstance(config_files, str | Path) else config_files
    user_layers = [(str(path), layers.read_yaml(Path(path))) for path in config_files]
    user_layers.append((build.COMMAND_LINE, overrides))
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
    from recbole_diffgrm.config import build, layers

    model_class = get_model(model)
    presets = presets.split(",") if isinstance(presets, str) else presets
    presets = [name.strip() for name in presets if name.strip()]
    user_layers = [*layers.preset_layers(model, presets, compared_with, dataset), *user_layers]
    for source, layer in user_layers:
        for name in layers.model_sections(source, layer):
            check_model_name(name, source)
    compared_classes = [get_model(name) for name in compared_with]
    return build.build_config(model_class, dataset, user_layers, compared_classes, dataset_settings)

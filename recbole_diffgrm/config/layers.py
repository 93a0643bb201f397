"""Reading the layers of a configuration. Later layers win, key by key:

RecBole's defaults < properties/overall.yaml < properties/tokenizer.yaml < properties/model/<Model>.yaml
< properties/dataset/<dataset>.yaml < presets in order < config files in order < command line.

A preset `name` is properties/preset/<Model>/<name>.yaml; its section `datasets: {<dataset>: {...}}` beats its other
keys, for that dataset only. In every other file the section `models: {<Model>: {...}}`
beats the file's other keys, for that model only.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from recbole_diffgrm.config import yaml_text
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.files import reading
from recbole_diffgrm.recbole_compat import recbole_dir

Layer = tuple[str, dict[str, Any]]  # (where the values come from, values)


def read_yaml(path: Path) -> dict[str, Any]:
    with reading(path):
        try:
            content = yaml_text.load(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            raise
        except ValueError as error:
            raise UserError(f"{path} is not valid YAML: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected lines `key: value`, found a {type(content).__name__}")
    return content


def properties_dir() -> Path:
    """properties/ inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "properties"
    return inside if (inside / "overall.yaml").exists() else package.parent / "properties"


def recbole_defaults(model: str) -> dict[str, Any]:
    """What RecBole itself would start from for a sequential model."""
    names = ["overall", "dataset/sample", "quick_start_config/sequential", f"model/{model}"]
    return {key: value for name in names for key, value in _recbole_file(name).items()}


@cache
def _recbole_file(name: str) -> dict[str, Any]:
    path = recbole_dir() / "properties" / f"{name}.yaml"
    return read_yaml(path) if path.exists() else {}


def project_layers(model: str, dataset: str) -> list[Layer]:
    """This project's files for a model and a dataset."""
    root = properties_dir()
    paths = [root / "overall.yaml", root / "tokenizer.yaml", root / "model" / f"{model}.yaml"]
    families = [name for name in ("Amazon", "Amazon_2023") if dataset.startswith(f"{name}_")]  # what categories share
    paths += [root / "dataset" / f"{name}.yaml" for name in [*families, dataset]]
    return [(str(path), read_yaml(path)) for path in paths if path.exists()]


def preset_layers(
    model: str, presets: Sequence[str], compared_models: Sequence[str] = (), dataset: str | None = None
) -> list[Layer]:
    """The model's presets; in a comparison those that another model has are passed over. With a `dataset` their
    sections `datasets` are resolved."""
    root = properties_dir() / "preset"
    layers = []
    for name in presets:
        path = root / model / f"{name}.yaml"
        if path.exists():
            layers.append((str(path), _of_dataset(str(path), read_yaml(path), dataset)))
        elif not any((root / other / f"{name}.yaml").exists() for other in compared_models):
            known = preset_names(model)
            has = f"{model} has {', '.join(known)}" if known else f"{model} has none"
            raise UserError(f"preset: there is no preset {name!r}: {has}")
    return layers


def _of_dataset(source: str, preset: dict[str, Any], dataset: str | None) -> dict[str, Any]:
    """A preset as it is for a dataset: with its section of that name, if it has one; None: as it is written."""
    sections = preset.get("datasets", {})
    if not isinstance(sections, dict) or not all(isinstance(section, dict) for section in sections.values()):
        raise UserError(
            f"{source}: datasets must map names of datasets to settings, such as {{ml-100k: {{epochs: 4}}}}"
        )
    if dataset is None:
        return preset
    return {key: value for key, value in preset.items() if key != "datasets"} | sections.get(dataset, {})


def preset_names(model: str) -> list[str]:
    return sorted(path.stem for path in (properties_dir() / "preset" / model).glob("*.yaml"))


def declared_defaults(model: str) -> dict[str, Any]:
    """What this project's files say for every dataset."""
    root = properties_dir()
    paths = [root / "overall.yaml", root / "tokenizer.yaml", root / "model" / f"{model}.yaml"]
    return {key: value for path in paths if path.exists() for key, value in read_yaml(path).items()}


def merge(model: str, layers: Iterable[Layer]) -> tuple[dict[str, Any], dict[str, str]]:
    """Merge layers for one model. Returns the values and, for each key, where it came from."""
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for source, layer in layers:
        per_model = model_sections(source, layer)
        general = {key: value for key, value in layer.items() if key != "models"}
        for part in (general, per_model.get(model, {})):
            values.update(plain(part))
            origin.update(dict.fromkeys(part, source))
    return values, origin


def plain(value: Any) -> Any:
    """As YAML would have it: numpy's numbers and texts as Python's, paths as texts, inside lists and mappings too."""
    if isinstance(value, Mapping):
        return {plain(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return str(value) if isinstance(value, PurePath) else value


def model_sections(source: str, layer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    sections = layer.get("models") or {}
    if not isinstance(sections, dict) or not all(isinstance(section, dict) for section in sections.values()):
        raise UserError(f"{source}: models must map model names to settings, such as {{SASRec: {{n_layers: 1}}}}")
    return sections

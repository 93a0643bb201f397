"""Reading the layers of a configuration. Later layers win, key by key:

RecBole's defaults < properties/overall.yaml < properties/tokenizer.yaml (models with semantic IDs)
< properties/model/<Model>.yaml < properties/dataset/<dataset>.yaml < config files in order < command line.

In each file the section `models: {<Model>: {...}}` stands above the file's other keys, for that model only.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from recbole_diffgrm.compat import recbole_dir
from recbole_diffgrm.errors import UserError


class Loader(yaml.SafeLoader):
    """YAML without code execution, in which 1e-3 is a number (YAML 1.1 reads a string)."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9_]+)[eE][-+]?[0-9]+$"),
    list("-+0123456789."),
)


def parse_value(text: str, name: str) -> Any:
    """A command-line value as YAML."""
    try:
        return yaml.load(text, Loader=Loader)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: 2024-02-30 looks like a date
        raise UserError(f"--{name}: {text!r} is not a YAML value ({_first_line(error)})") from None


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"configuration file {path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"configuration file {path} cannot be read: {error}") from None
    try:
        content = yaml.load(text, Loader=Loader)
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{path} is not valid YAML: {_first_line(error)}") from None
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
    root = recbole_dir() / "properties"
    merged: dict[str, Any] = {}
    names = ["overall", "dataset/sample", "quick_start_config/sequential", f"model/{model}"]
    for name in names:
        path = root / f"{name}.yaml"
        if path.exists():
            merged.update(read_yaml(path))
    return merged


def project_layers(model: str, dataset: str) -> list[tuple[str, dict[str, Any]]]:
    """This project's files for a model and a data set: (where a value comes from, values)."""
    root = properties_dir()
    paths = [root / "overall.yaml", root / "tokenizer.yaml", root / "model" / f"{model}.yaml"]
    if dataset.startswith("Amazon_"):  # what all categories of the release share
        paths.append(root / "dataset" / "Amazon.yaml")
    paths.append(root / "dataset" / f"{dataset}.yaml")
    return [(str(path), read_yaml(path)) for path in paths if path.exists()]


def merge(model: str, layers: Iterable[tuple[str, dict[str, Any]]]) -> tuple[dict[str, Any], dict[str, str]]:
    """Merge layers for one model. Returns the values and, for each key, where it came from."""
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for source, layer in layers:
        per_model = model_sections(source, layer)
        general = {key: value for key, value in layer.items() if key != "models"}
        for part in (general, per_model.get(model, {})):
            values.update(part)
            origin.update(dict.fromkeys(part, source))
    return values, origin


def model_sections(source: str, layer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    sections = layer.get("models") or {}
    if not isinstance(sections, dict) or not all(isinstance(section, dict) for section in sections.values()):
        raise UserError(f"{source}: models must map model names to settings, such as {{SASRec: {{n_layers: 1}}}}")
    return sections


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:160]

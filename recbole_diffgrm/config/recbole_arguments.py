"""Settings as RecBole's functions take them: config_file_list, config_dict and the program's own command line."""

import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from recbole_diffgrm.config.argument_values import VERBATIM, parse_argument, parse_value
from recbole_diffgrm.config.layers import Layer, read_yaml
from recbole_diffgrm.errors import UserError

# Keys of a file or dictionary that are arguments of build_config, not settings.
RUN_KEYS = ("model", "dataset", "preset")


class Arguments(NamedTuple):
    model: Any  # name or class
    dataset: str
    presets: Any  # a name, or several
    user_layers: list[Layer]  # weakest first


def read_arguments(
    model=None, dataset=None, config_file_list=None, config_dict=None, command_line: dict[str, Any] | None = None
) -> Arguments:
    """As in RecBole the command line beats the dictionary, and this the files; arguments beat all of them."""
    user_layers = [(str(path), read_yaml(Path(path))) for path in config_file_list or []]
    user_layers.append(("config_dict", {key: _unquote(key, value) for key, value in (config_dict or {}).items()}))
    user_layers.append(("command line", dict(command_line or {})))
    found: dict[str, Any] = {}
    for _, layer in user_layers:
        found |= {key: layer.pop(key) for key in RUN_KEYS if key in layer}
    for key, value in {"model": model, "dataset": dataset}.items():
        if value is not None:
            found[key] = value
        elif key not in found:
            raise UserError(f"{key} is not given: pass it as an argument, in config_dict or in a file")
    return Arguments(found["model"], found["dataset"], found.get("preset") or (), user_layers)


def read_command_line(text_keys: Collection[str] = ()) -> dict[str, Any]:
    """What RecBole reads of the program that runs it: all --key=value. Values are YAML, where RecBole has eval(), but
    for `text_keys`."""
    if "ipykernel_launcher" in sys.argv[0]:
        return {}
    split = [argument[2:].split("=") for argument in sys.argv[1:] if argument.startswith("--")]
    given = {part[0]: part[1] for part in split if len(part) == 2}
    return {key: parse_argument(key, text, text_keys) for key, text in given.items()}


def _unquote(key: str, value: Any) -> Any:
    """RecBole's HyperTuning hands lists over in quotes."""
    is_text = key in VERBATIM or key.endswith("_num_interval")  # [5,inf) is no YAML
    is_quoted = isinstance(value, str) and value.strip()[:1] in ("[", "{") and not is_text
    return parse_value(value, key) if is_quoted else value

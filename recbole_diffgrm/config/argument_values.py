"""Values of the command line: YAML, but for texts, which are taken as they are typed."""

from collections.abc import Collection
from typing import Any

from recbole_diffgrm.config import yaml_text
from recbole_diffgrm.errors import UserError, show

# Words of the command line that are no keys, or whose quotes belong to the text: never YAML.
VERBATIM = {"model", "dataset", "preset", "config_files", "sid_text_template", "recommend", "retest", "history"}


def parse_argument(key: str, text: str, text_keys: Collection[str] = ()) -> Any:
    """`text_keys` are those that hold a text: `|` and `010` are no YAML then; ~ is nothing, and quotes may be put
    around, as around a blank."""
    if key in VERBATIM:
        return text
    if key not in text_keys and not key.endswith("_num_interval"):  # RecBole has more of these than are declared
        return parse_value(text, key)
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return parse_value(text, key) if is_quoted or text in ("~", "null") else text


def parse_value(text: str, name: str) -> Any:
    """As YAML."""
    return _load(text, name, yaml_text.Loader)


def parse_texts(text: str, name: str) -> list[str]:
    """A YAML list of texts: 007 and 1e5 stay what they are."""
    values = _load(text, name, yaml_text.TextLoader)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise UserError(f'--{name} must be a list such as ["one", "another one"], not {show(text)}')
    return values


def _load(text: str, name: str, loader: type) -> Any:
    try:
        return yaml_text.load(text, loader)
    except ValueError as error:
        raise UserError(f"--{name}: {show(text)} is not a YAML value ({error})") from None

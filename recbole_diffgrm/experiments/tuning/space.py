"""The space of a search: for each key the values to try. A YAML file:

    learning_rate: {log_uniform: [1e-4, 1e-2]}
    dropout_prob: {uniform: [0.1, 0.5]}     # {uniform: [0.1, 0.5, 0.1]}: in steps of 0.1
    n_layers: {int: [1, 4]}                 # {int: [64, 256, 64]}: in steps of 64
    hidden_size: [64, 128]                  # one of these
    models:
      SASRec: {n_heads: [1, 2]}             # of one model; beats the other keys

A file with another suffix is read as RecBole's hyper.test, lines of `key choice [64,128]`, `key uniform low,high`,
`key loguniform low,high` (exponents of e) and `key quniform low,high,step`.
"""

import ast
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError, create_model

from recbole_diffgrm.config.argument_values import parse_value
from recbole_diffgrm.config.build import known_keys
from recbole_diffgrm.config.layers import merge, model_sections, properties_dir, read_yaml
from recbole_diffgrm.config.options import DataOptions, EvaluationOptions, Options, expected_words
from recbole_diffgrm.config.other_keys import WITHOUT_EFFECT, suggest_key
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.files import read_text
from recbole_diffgrm.models import check_model_name, get_options

# Trials that differ in one of these have scores that cannot be compared, or differ by luck.
NOT_SEARCHED = (DataOptions.keys() - {"MAX_ITEM_LIST_LENGTH"}) | EvaluationOptions.keys() | {"seed"}


@dataclass(frozen=True)
class Choice:
    values: tuple[Any, ...]

    def suggest(self, trial: Any, key: str) -> None:
        trial.suggest_categorical(key, self.choices)

    @property
    def choices(self) -> list[Any]:
        return [self.encode(value) for value in self.values]

    def encode(self, value: Any) -> Any:
        """Optuna stores plain values only; lists and mappings are their JSON text."""
        return json.dumps(value, sort_keys=True) if isinstance(value, list | dict | tuple) else value

    def decode(self, stored: Any) -> Any:
        return self.values[self.choices.index(stored)]

    def contains(self, value: Any) -> bool:
        return value in self.values

    def examples(self) -> Sequence[Any]:
        return self.values


@dataclass(frozen=True)
class Range:
    low: float
    high: float
    step: float | None = None
    log: bool = False
    whole: bool = False  # whole numbers

    def suggest(self, trial: Any, key: str) -> None:
        if self.whole:
            trial.suggest_int(key, self.low, self.high, step=self.step or 1)
        else:
            trial.suggest_float(key, self.low, self.high, step=self.step, log=self.log)

    def encode(self, value: Any) -> Any:
        return value

    def decode(self, stored: Any) -> Any:
        return stored

    def contains(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float) or (self.whole and isinstance(value, float)):
            return False
        steps = (value - self.low) / self.step if self.step else 0.0
        return self.low <= value <= self.high and abs(steps - round(steps)) < 1e-9

    def examples(self) -> Sequence[Any]:
        return [self.low, self.high]


Space = dict[str, Choice | Range]


def read_spaces(models: Sequence[str], path: Path | None) -> dict[str, Space]:
    """{model: its space}, checked. Without a file those of properties/tune. A key that only some of the models read is
    searched for these."""
    known = {model: known_keys(model, get_options(model)) - set(WITHOUT_EFFECT) for model in models}
    spaces = {}
    for model in models:
        source = path or properties_dir() / "tune" / f"{model}.yaml"
        if path is None and not source.exists():
            raise UserError(f"{model} has no space in {source.parent}: give one with --space=FILE")
        content = read_yaml(source) if source.suffix in (".yaml", ".yml") else _read_hyper_test(source)
        sections = model_sections(str(source), content)
        for name in sections:
            check_model_name(name, str(source))
        known_to_any = set().union(*known.values())
        for key in content:
            if key != "models":
                _check_key(key, known_to_any, str(source))
        for key in sections.get(model, {}):
            _check_key(key, known[model], f"{source}: {model}")
        values, _ = merge(model, [(str(source), content)])
        space = {
            key: value if isinstance(value, Choice | Range) else _parse(value, f"{source}: {key}")
            for key, value in values.items()
            if key in known[model]
        }
        for key, searched in space.items():
            for value in searched.examples():
                _check_value(get_options(model), key, value, str(source))
        if not space:
            raise UserError(f"{source}: there is no key to search for {model}")
        spaces[model] = space
    return spaces


def _check_key(key: Any, known: Collection[str], source: str) -> None:
    if not isinstance(key, str):
        raise UserError(f"{source}: keys are names, not {key!r}")
    if key not in known:
        raise UserError(f"{source}: unknown key {key!r}.{suggest_key(key, known)}")
    if key in NOT_SEARCHED:
        raise UserError(f"{source}: {key} cannot be searched: scores of trials that differ in it cannot be compared")


def _check_value(options: type[Options], key: str, value: Any, source: str) -> None:
    """By itself: values that do not go together show when a trial has them."""
    if key not in options.model_fields:
        return
    if key in options.keys("nothing", "file"):
        raise UserError(f"{source}: {key} cannot be searched: it does not affect the score")
    field = options.model_fields[key]
    alone: type[Options] = create_model("Alone", __base__=Options, **{key: (field.annotation, field)})  # type: ignore[call-overload]
    try:
        alone.model_validate({key: value})
    except ValidationError:
        words = expected_words(alone.model_json_schema(by_alias=False)["properties"][key])
        raise UserError(f"{source}: {key} must be {words}, not {value!r}") from None


def _parse(value: Any, where: str) -> Choice | Range:
    if isinstance(value, list) and value:
        return Choice(tuple(value))
    if isinstance(value, dict) and len(value) == 1:
        [(kind, limits)] = value.items()
        if kind in ("uniform", "log_uniform", "int"):
            return _parse_range(kind, limits, where)
    raise UserError(
        f"{where} must be a list of values, {{uniform: [low, high]}}, {{log_uniform: [low, high]}} or "
        f"{{int: [low, high]}}, not {value!r}"
    )


def _parse_range(kind: str, limits: Any, where: str) -> Range:
    most = 2 if kind == "log_uniform" else 3
    types = int if kind == "int" else int | float
    is_list = isinstance(limits, list) and 2 <= len(limits) <= most
    if not is_list or not all(isinstance(n, types) and not isinstance(n, bool) and math.isfinite(n) for n in limits):
        words = "[low, high]" + (" or [low, high, step]" if most == 3 else "")
        raise UserError(f"{where}: {kind} must be {words}{', whole numbers' * (kind == 'int')}, not {limits!r}")
    low, high, step = (*limits, None)[:3]
    if low >= high or (step is not None and not 0 < step <= high - low) or (kind == "log_uniform" and low <= 0):
        above = " above 0" if kind == "log_uniform" else ""
        raise UserError(f"{where}: {kind}: low{above} must be below high, and a step must fit between, not {limits!r}")
    if kind != "int":
        low, high = float(low), float(high)
    return Range(low, high, step, log=kind == "log_uniform", whole=kind == "int")


def _read_hyper_test(path: Path) -> dict[str, Any]:
    """RecBole's format, as its HyperTuning reads it; but a line that it would pass over is an error here."""
    lines = read_text(path).splitlines()
    space: dict[str, Any] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            key, kind, text = (line.split(None, 2) + ["", ""])[:3]
            space[key] = _parse_hyper_test(kind, text, f"{path}, line {number}")
    return space


def _parse_hyper_test(kind: str, text: str, where: str) -> Choice | Range:
    try:
        if kind == "choice":
            values = ast.literal_eval(text)
            if isinstance(values, list | tuple) and values:
                # RecBole evaluates texts as Python: '[64,64]' is a list.
                return Choice(tuple(parse_value(v, "space") if isinstance(v, str) else v for v in values))
        numbers = [float(part) for part in text.split(",")]
        if kind == "uniform" and len(numbers) == 2:
            return _parse_range("uniform", numbers, where)
        if kind == "loguniform" and len(numbers) == 2:
            return _parse_range("log_uniform", [math.exp(exponent) for exponent in numbers], where)
        if kind == "quniform" and len(numbers) == 3:
            # hyperopt draws round(x / step) * step, a float even where it is whole.
            low, high, step = numbers
            low, high = round(low / step) * step, round(high / step) * step
            if all(number.is_integer() for number in (low, high, step)):
                return _parse_range("int", [int(low), int(high), int(step)], where)
            return _parse_range("uniform", [low, high, step], where)
    except (ValueError, SyntaxError, TypeError, ZeroDivisionError, OverflowError) as error:
        if isinstance(error, UserError):
            raise
    raise UserError(
        f"{where}: expected `key choice [1,2]`, `key uniform low,high`, `key loguniform low,high` or "
        f"`key quniform low,high,step`; a space in YAML ends in .yaml"
    )


def describe(searched: Choice | Range) -> str:
    """In the words of the YAML file."""
    if isinstance(searched, Choice):
        return ", ".join(map(str, searched.values))
    kind = "log-uniform" if searched.log else "whole numbers" if searched.whole else "uniform"
    steps = f" in steps of {searched.step:g}" if searched.step else ""
    return f"{kind}, {searched.low:g} to {searched.high:g}{steps}"


def as_plain_data(space: Mapping[str, Choice | Range]) -> dict[str, Any]:
    """For hashes and files."""
    return {key: {"kind": type(searched).__name__.lower(), **vars(searched)} for key, searched in space.items()}

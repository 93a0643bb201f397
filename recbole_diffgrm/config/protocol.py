"""The protocol of an evaluation, `eval_args` and `benchmark_filename`: how interactions are split into training,
validation and test, and against which items a target is ranked."""

import re
from collections.abc import Mapping
from datetime import date, datetime, timezone
from typing import Any, Literal, NamedTuple

from recbole_diffgrm.errors import UserError, show

LEAVE_LAST_OUT = {"valid_and_test": ("valid", "test"), "valid_only": ("valid",), "test_only": ("test",)}
SPLITS = (
    "{LS: valid_and_test | valid_only | test_only}, {TS: [0.8, 0.1, 0.1]}, {TS: [2014-01-01, 2014-04-01]} or "
    "{RS: [0.8, 0.1, 0.1]}"
)
_SAMPLED = re.compile(r"(uni|pop)([1-9]\d{0,8})")

# Filters of interactions, with the values that filter nothing. Ready-made files are taken as they are.
NO_FILTERS: dict[str, Any] = {
    "filter_inter_by_user_or_item": False,
    "user_inter_num_interval": None,
    "item_inter_num_interval": None,
    "rm_dup_inter": None,
    "val_interval": None,
}


class Sampling(NamedTuple):
    """Of the items that a target is ranked against."""

    distribution: Literal["uni", "pop"]
    num_items: int


def check_protocol(values: dict[str, Any], default: Mapping[str, Any]) -> None:
    """Refuse what cannot be done; write what means the same in one way. `default`: of eval_args."""
    eval_args = values["eval_args"] = {**default, **values["eval_args"]}
    unknown = set(eval_args) - {"split", "group_by", "order", "mode"}
    if unknown:
        raise UserError(f"eval_args: the keys are split, group_by, order and mode, not {', '.join(map(show, unknown))}")
    eval_args["split"] = _check_split(eval_args["split"])
    if "LS" in eval_args["split"] and eval_args["group_by"] in (None, "none", "None"):
        eval_args["group_by"] = "user"  # the last ones are left out of each user's items in any case
    for key, only in {"group_by": "user", "order": "TO"}.items():
        if eval_args[key] != only:
            raise UserError(f"eval_args: {key} must be {only} for sequential models, not {show(eval_args[key])}")
    eval_args["mode"] = _check_mode(eval_args["mode"])
    if values["benchmark_filename"] is not None:
        _check_ready_made(values, default)


def held_out_parts(values: Mapping[str, Any]) -> tuple[str, ...]:
    """`valid` and `test`, or the one of them that the split has."""
    split = values["eval_args"]["split"]
    if values["benchmark_filename"] is not None:
        return ("valid", "test")
    if "LS" in split:
        return LEAVE_LAST_OUT[split["LS"]]
    ((_, numbers),) = split.items()
    if len(numbers) == 2:
        return ("valid", "test") if numbers[0] != numbers[1] else ("test",)
    return tuple(part for part, share in zip(("valid", "test"), numbers[1:]) if share > 0)


def eval_mode(values: Mapping[str, Any], part: str) -> str:
    """`full`, or the sampled items that targets of a part are ranked against, such as uni100."""
    mode = values["eval_args"]["mode"]
    return mode if isinstance(mode, str) else mode[part]


def parse_mode(mode: str) -> Sampling | None:
    """None: all items are ranked."""
    sampled = _SAMPLED.fullmatch(mode)
    return Sampling(sampled[1], int(sampled[2])) if sampled else None  # type: ignore[arg-type]


def is_sampled(values: Mapping[str, Any]) -> bool:
    """Is a target ranked against sampled items anywhere?"""
    return any(eval_mode(values, part) != "full" for part in ("valid", "test"))


def to_seconds(point: str) -> float:
    """An ISO date or time as Unix time; without a time zone it is UTC."""
    moment = datetime.fromisoformat(point)
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def _check_split(split: Any) -> dict[str, Any]:
    if isinstance(split, dict) and len(split) == 1:
        ((kind, value),) = split.items()
        value = list(value) if isinstance(value, tuple) else value
        if kind == "LS" and value in list(LEAVE_LAST_OUT):  # of any type, lists too
            return split
        if kind in ("RS", "TS") and _are_shares(value):
            return {kind: value}
        if kind == "TS" and isinstance(value, list) and len(value) == 2:
            return {"TS": _check_points(value)}
    raise UserError(f"eval_args: split must be {SPLITS}, not {show(split)}")


def _are_shares(value: Any) -> bool:
    """Of training, validation and test; one of the last two may be 0."""
    if not isinstance(value, list) or len(value) != 3 or not all(map(_is_number, value)):
        return False
    return min(value) >= 0 and value[0] > 0 and value[1] + value[2] > 0


def _check_points(value: list[Any]) -> list[Any]:
    """Two numbers, or two dates as text (YAML reads 2014-01-01 as a date)."""
    points = [point.isoformat() if isinstance(point, date) else point for point in value]
    if all(map(_is_number, points)):
        times = points
    else:
        try:
            times = [to_seconds(point) for point in points]
        except (TypeError, ValueError):
            raise UserError(f"eval_args: TS must be two numbers or two ISO dates, not {show(value)}") from None
    if times[0] > times[1]:
        raise UserError(f"eval_args: TS: validation ({points[0]}) must begin before the test ({points[1]})")
    return points


def _is_number(value: Any) -> bool:
    """A finite one: a share, or a time in whatever unit."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e20


def _check_mode(mode: Any) -> str | dict[str, str]:
    """RecBole's {valid: ..., test: ...}, of which one is enough; one name where both are the same."""
    if isinstance(mode, dict) and mode and set(mode) <= {"valid", "test"}:
        either = next(iter(mode.values()))
        modes = {part: mode.get(part, either) for part in ("valid", "test")}
    else:
        modes = {"valid": mode, "test": mode}
    for name in modes.values():
        if name != "full" and not (isinstance(name, str) and parse_mode(name)):
            raise UserError(
                f"eval_args: mode must be full, or uni or pop and the number of sampled items, such as uni100, or "
                f"{{valid: ..., test: ...}} of these, not {show(mode)}"
            )
    return modes["valid"] if modes["valid"] == modes["test"] else modes


def _check_ready_made(values: Mapping[str, Any], default: Mapping[str, Any]) -> None:
    if len(values["benchmark_filename"]) != 3:
        raise UserError("benchmark_filename: three names are needed, such as [train, valid, test]")
    if values["eval_args"]["split"] != default["split"]:
        raise UserError("benchmark_filename and eval_args: the files are the split; leave split out")
    for key, nothing in NO_FILTERS.items():
        if values.get(key) not in (None, nothing):
            raise UserError(f"{key}: the files of benchmark_filename are taken as they are; set it to {nothing or '~'}")

"""Which keys of a finished run may be changed, and to what. Needs no torch: a mistake is answered at once."""

from collections.abc import Mapping
from typing import Any

from recbole_diffgrm.config.build import check_changes
from recbole_diffgrm.config.options import Options
from recbole_diffgrm.errors import UserError


def check_retest(
    model: str, options: type[Options], values: Mapping[str, Any], changes: Mapping[str, Any]
) -> dict[str, Any]:
    """The changed configuration. Only what the weights do not depend on once they are chosen may differ: of eval_args
    the mode, not the split."""
    usable = options.keys("validation", "evaluation", "nothing") | {"eval_args"}
    _check_usable(changes, usable & set(values), "without training again")
    changed = check_changes(model, options, values, changes)
    if changed["eval_args"] | {"mode": None} != values["eval_args"] | {"mode": None}:
        raise UserError("eval_args: only its mode can be changed without training again, not the split of the data")
    return changed


def check_recommend(
    model: str, options: type[Options], values: Mapping[str, Any], changes: Mapping[str, Any]
) -> dict[str, Any]:
    """The changed configuration. Lists may be as short as one item."""
    missing = options.keys() - set(values)
    if missing:
        raise UserError(f"the run is of another version: its configuration lacks {', '.join(sorted(missing))}")
    _check_usable(changes, options.keys("evaluation"), f"for recommendations of {model}")
    return check_changes(model, options, values, changes, list_length=1)


def _check_usable(changes: Mapping[str, Any], usable: set[str], purpose: str) -> None:
    for key in changes:
        if key not in usable:
            raise UserError(f"{key} cannot be changed {purpose}: only {', '.join(sorted(usable))} can")

"""python -m recbole_diffgrm.report: write the report of something finished again."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recbole_diffgrm.cli.arguments import exit_code, open_report, parse_arguments
from recbole_diffgrm.errors import UserError

USAGE = """\
Write report.html of a finished run or comparison, or <study>.html of a study, again.

  python -m recbole_diffgrm.report runs/ml-100k/DiffGRM-...
  python -m recbole_diffgrm.report runs/ml-100k/comparison-...
  python -m recbole_diffgrm.report results/ml-100k.json

  --open                 open it in the browser
"""
FLAGS = {"open"}


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if "--help" in arguments or "-h" in arguments or not arguments:
        print(USAGE, end="")
        return 0 if arguments else 2
    return exit_code(lambda: _main(arguments[0], parse_arguments(arguments[1:], FLAGS)))


def _main(place: str, options: dict[str, Any]) -> int:
    if place.startswith("--"):
        raise UserError("the first argument is the directory of a run or comparison, or a study's .json (see --help)")
    for key in options.keys() - FLAGS:
        raise UserError(f"--{key} is not an option of this command (see --help)")
    report = _write(Path(place))
    print(f"report: {report}")
    if "open" in options:
        open_report(report)
    return 0


def _write(place: Path) -> Path:
    if place.suffix == ".json":
        from recbole_diffgrm.experiments.reports import study
        from recbole_diffgrm.experiments.study.summary import Summary

        return study.write(Summary.load(place), place.stem, place.parent)
    if place.name.startswith("comparison-"):
        from recbole_diffgrm.experiments.comparison import load
        from recbole_diffgrm.experiments.reports import comparison

        return comparison.write(load(place))
    from recbole_diffgrm.experiments.result import RunResult

    result = RunResult.load(place)

    from recbole_diffgrm.experiments.reports import run

    return run.write(result)

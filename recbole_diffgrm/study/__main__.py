"""python -m recbole_diffgrm.study: run what is missing of a study, then write its page."""

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recbole_diffgrm.cli import exit_code, parse_arguments
from recbole_diffgrm.errors import Interrupted, UserError
from recbole_diffgrm.files import write_text

USAGE = """\
Run the runs of a study that are not finished, one after the other, and write what came of it.

  python -m recbole_diffgrm.study properties/study/Amazon_Beauty.yaml --data_path=FOLDER
  python -m recbole_diffgrm.study properties/study/Amazon_Beauty.yaml --data_path=FOLDER --only="SASRec; GRU4Rec"
  python -m recbole_diffgrm.study properties/study/Amazon_Beauty.yaml --render

  --only="NAME; NAME"    these runs only. What another process is at is passed over: two may share a plan,
                         with OMP_NUM_THREADS=1 for each on two cores
  --report               run nothing: gather what is finished, and write
  --render               the page alone, out of results/<study>.json, without data or runs
  --results=FOLDER       where <study>.json, .md and .png go (default: results)
  --readme=FILE          also put the short table between its marks in this file
  --data_path --output_dir --cache_dir ...   as for run_recbole_diffgrm.py, where they do not change an outcome

A run that was stopped goes on where it was; one whose directory is there and finished is kept. Where directories are
gone, the page still has their results, out of results/<study>.json, as long as the plan and its config files ask for
the same; without --only they are trained again.
Format of a plan: recbole_diffgrm/study/plan.py.
"""
FLAGS = {"report", "render"}


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if "--help" in arguments or "-h" in arguments or not arguments:
        print(USAGE, end="")
        return 0 if arguments else 2
    return exit_code(lambda: _main(arguments[0], parse_arguments(arguments[1:])))


def _main(study: str, options: dict[str, Any]) -> int:
    from recbole_diffgrm.study import page
    from recbole_diffgrm.study.plan import read_plan
    from recbole_diffgrm.study.summary import Summary

    if study.startswith("--"):
        raise UserError("the first argument is the YAML file of a study (see --help)")
    path = Path(study)
    plan = read_plan(path)
    for flag in FLAGS & set(options):
        if options[flag] is not True:
            raise UserError(f"--{flag} takes no value")
    report, render = options.pop("report", False), options.pop("render", False)
    results, readme = Path(_text(options, "results") or "results"), _text(options, "readme")
    if readme:
        page.check_marks(_read(Path(readme)), path.stem)
    if report or render:
        for key in {"only"} & set(options):
            raise UserError(f"--{key} is about running, and --report and --render run nothing")
    only = [name.strip() for name in _text(options, "only").split(";") if name.strip()]
    for name in only:
        if name not in plan.runs:
            raise UserError(f"--only: there is no run {name!r} in {path}")
    results.mkdir(parents=True, exist_ok=True)
    summary_path = results / f"{path.stem}.json"
    # Before hours of work: what is damaged has to be mended first.
    earlier = Summary.load(summary_path, with_ranks=True) if summary_path.exists() and not render else None
    failed = []
    if not report and not render:
        failed = _run([plan.runs[name] for name in only or plan.runs], plan.dataset, options)
    if not render:
        _gather(plan, options, summary_path, earlier)
    elif options:
        raise UserError(f"--{next(iter(options))}: --render reads {summary_path} alone")
    # From the file in either case: what is written can be written again by anyone who has it.
    _write(Summary.load(summary_path), path.stem, results, readme)
    for name, error in failed:
        print(f"error: {name}: {error}", file=sys.stderr)
    return 1 if failed else 0


def _gather(plan, options: dict[str, Any], path: Path, earlier) -> None:
    from recbole_diffgrm.study.summary import gather

    found = gather(plan, options, earlier)
    lost = [name for name in earlier.rows if name not in found.rows] if earlier else []
    if lost:
        print(f"given up, because the plan no longer has them so: {', '.join(lost)}")
    found.save(path)


def _run(planned: list, dataset: str, options: dict[str, Any]) -> list[tuple[str, Exception]]:
    from recbole_diffgrm.data.prepare import check_files
    from recbole_diffgrm.running import rundir
    from recbole_diffgrm.running.run import execute
    from recbole_diffgrm.study.summary import finished

    configs = {run.name: run.configs(dataset, options) for run in planned}  # all first: mistakes are found at once
    for config in (config for of_run in configs.values() for config in of_run):
        check_files(config)
    failed = []
    for number, run in enumerate(planned, start=1):
        for place, config in enumerate(configs[run.name]):
            print(f"{number} of {len(planned)}: {run.name}, seed {config['seed']}", flush=True)
            try:
                weights = finished(run.base, dataset, options)[place] if run.base else None
                if run.base and weights is None:
                    raise UserError(f"{run.base.name} has to be finished first")
                if rundir.is_running(config, rundir.identity(config, weights)):
                    print("  another process is at it")
                    continue
                execute(config, resume=True, reuse=True, weights=weights)
            except Interrupted:
                raise
            except Exception as error:  # one run failing must not lose the others
                if not isinstance(error, UserError):
                    traceback.print_exc()
                failed.append((run.name, error))
    return failed


def _text(options: dict[str, Any], key: str) -> str:
    value = options.pop(key, "")
    if value is True or not isinstance(value, str):
        raise UserError(f"--{key} needs a value")
    return value


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"--readme: {path} cannot be read ({error.strerror})") from None


def _write(summary, name: str, results: Path, readme: str) -> None:
    from recbole_diffgrm.study import charts, page

    page_path = results / f"{name}.md"
    write_text(page.render(summary, name), page_path)
    if summary.short_table:
        charts.draw_bars(summary, results / f"{name}-bars.png")
        charts.draw_curves(summary, results / f"{name}-curves.png")
    if readme:
        write_text(page.with_short_table(_read(Path(readme)), summary, name), Path(readme))
    print(f"results: {page_path}")


if __name__ == "__main__":
    sys.exit(main())

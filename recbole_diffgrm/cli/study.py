"""python -m recbole_diffgrm.study: run what is missing of a study, then write its page."""

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recbole_diffgrm.cli.arguments import check_alone, exit_code, open_report, parse_arguments, print_error, working
from recbole_diffgrm.config.layers import read_yaml
from recbole_diffgrm.errors import Interrupted, UserError
from recbole_diffgrm.files import make_folder, read_text, write_text

if TYPE_CHECKING:
    from recbole_diffgrm.experiments.study.plan import Plan, PlannedRun
    from recbole_diffgrm.experiments.study.summary import Summary

USAGE = """\
Run the unfinished runs of a study one after the other, then write its results.

  python -m recbole_diffgrm.study properties/study/Amazon_Beauty.yaml --data_path=FOLDER
  python -m recbole_diffgrm.study properties/study/Amazon_Beauty.yaml --data_path=FOLDER --only="SASRec; GRU4Rec"
  python -m recbole_diffgrm.study properties/study/Amazon_Beauty.yaml --render

  --only="NAME; NAME"    only these runs. Runs that another process is working on are skipped, so several processes
                         can share a plan (on two cores: two, each with OMP_NUM_THREADS=1)
  --report               run nothing: gather the finished runs, and write the results
  --render               write only the page and charts, from results/<study>.json; needs no data and no runs
  --results=FOLDER       where <study>.json, .md, .html and .png are written (default: results)
  --open                 open the report, <study>.html, in the browser at the end
  --readme=FILE          also update the table between <!-- <study> --> and <!-- end of <study> --> in this file
  --data_path --output_dir --cache_dir ...   as for run_recbole_diffgrm.py, if they do not affect results

A stopped run is resumed; a finished one is kept. The page also shows results of runs whose directories are gone, from
results/<study>.json, as long as the plan, its presets and its config files still ask for the same; without --only they
are trained again.
The format of a plan is in recbole_diffgrm/experiments/study/plan.py.
"""
FLAGS = {"report", "render", "open"}
TEXTS = {"only", "results", "readme"}


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if "--help" in arguments or "-h" in arguments or not arguments:
        print(USAGE, end="")
        return 0 if arguments else 2
    return exit_code(lambda: _main(arguments[0], parse_arguments(arguments[1:], FLAGS, TEXTS)))


def _main(study: str, options: dict[str, Any]) -> int:
    check_alone()
    if study.startswith("--"):
        raise UserError("the first argument is the YAML file of a study (see --help)")
    path = Path(study)
    read_yaml(path)  # can it be read? asked before torch is imported
    with working():
        return _run_study(path, options)


def _run_study(path: Path, options: dict[str, Any]) -> int:
    from recbole_diffgrm.experiments.study import page
    from recbole_diffgrm.experiments.study.plan import read_plan
    from recbole_diffgrm.experiments.study.summary import Summary

    plan = read_plan(path)
    report, render, is_open = (options.pop(flag, False) for flag in ("report", "render", "open"))
    results, readme = Path(_pop_text(options, "results") or "results"), _pop_text(options, "readme")
    if readme:
        page.check_marks(read_text(Path(readme), if_missing="--readme names a file with a table to update"), path.stem)
    if "only" in options and (report or render):
        raise UserError("--only selects runs to run, and --report and --render run nothing")
    only = [name.strip() for name in _pop_text(options, "only").split(";") if name.strip()]
    for name in only:
        if name not in plan.runs:
            raise UserError(f"--only: there is no run {name!r} in {path}")
    make_folder(results)
    summary_path = results / f"{path.stem}.json"
    failed = []
    if not render:
        plan.check_options(options)
        # Read before hours of work: a damaged file has to be fixed first.
        earlier = Summary.load(summary_path, with_ranks=True) if summary_path.exists() else None
        if not report:
            failed = _run([plan.runs[name] for name in only or plan.runs], plan.dataset, options)
        _gather(plan, options, summary_path, earlier)
    elif options:
        raise UserError(f"--{next(iter(options))}: --render reads only {summary_path}")
    # From the file in either case: whoever has it can write the same page.
    _write(Summary.load(summary_path), path.stem, results, readme, is_open)
    for name, error in failed:
        print_error(f"{name}: {error}")
    return 1 if failed else 0


def _run(planned: "list[PlannedRun]", dataset: str, options: dict[str, Any]) -> list[tuple[str, Exception]]:
    """Returns the runs that failed, with their errors."""
    from recbole_diffgrm.data.source import check_files
    from recbole_diffgrm.experiments import run_directory
    from recbole_diffgrm.experiments.pipeline import run_config
    from recbole_diffgrm.experiments.study.summary import find_finished
    from recbole_diffgrm.training.tracking import check_installed

    configs = {run.name: run.configs(dataset, options) for run in planned}  # all first: mistakes show at once
    for config in (config for of_run in configs.values() for config in of_run):
        check_files(config)
        check_installed(config)
    failed: list[tuple[str, Exception]] = []
    for number, run in enumerate(planned, start=1):
        for seed_number, config in enumerate(configs[run.name]):
            print(f"{number} of {len(planned)}: {run.name}, seed {config['seed']}", flush=True)
            try:
                weights = find_finished(run.base, dataset, options)[seed_number] if run.base else None
                if run.base and weights is None:
                    raise UserError(f"{run.base.name} has to be finished first")
                if run_directory.is_running(config, run_directory.run_hash(config, weights)):
                    print("  running in another process")
                    continue
                run_config(config, resume=True, reuse=True, weights=weights)
            except Interrupted:
                raise
            except Exception as error:  # one run failing must not lose the others
                if not isinstance(error, UserError):
                    traceback.print_exc()
                failed.append((run.name, error))
    return failed


def _gather(plan: "Plan", options: dict[str, Any], path: Path, earlier: "Summary | None") -> None:
    from recbole_diffgrm.experiments.study.summary import gather

    summary = gather(plan, options, earlier)
    dropped = [name for name in earlier.rows if name not in summary.rows] if earlier else []
    if dropped:
        print(f"dropped, because the plan no longer has them with these settings: {', '.join(dropped)}")
    summary.save(path)


def _write(summary: "Summary", name: str, results: Path, readme: str, is_open: bool) -> None:
    from recbole_diffgrm.experiments.reports import study as study_report
    from recbole_diffgrm.experiments.reports.page import try_to_write
    from recbole_diffgrm.experiments.study import charts, page

    page_path = results / f"{name}.md"
    write_text(page.render(summary, name), page_path)
    if summary.short_table:
        charts.draw_short_table(summary, results / f"{name}-bars.png")
        charts.draw_curves(summary, results / f"{name}-curves.png")
    if readme:
        write_text(page.update_readme(read_text(Path(readme)), summary, name), Path(readme))
    print(f"results: {page_path}")
    html = try_to_write(f"{name}.html", lambda: study_report.write(summary, name, results))
    if html:
        print(f"report: {html}")
    if html and is_open:
        open_report(html)


def _pop_text(options: dict[str, Any], key: str) -> str:
    value = options.pop(key, "")
    if value is True or not isinstance(value, str):
        raise UserError(f"--{key} needs a value")
    return value


if __name__ == "__main__":
    sys.exit(main())

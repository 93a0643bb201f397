"""python -m recbole_diffgrm.tune: search for the best settings of models, on Optuna."""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recbole_diffgrm.cli.arguments import check_alone, exit_code, parse_arguments, split_files, split_names, working
from recbole_diffgrm.errors import Interrupted, UserError

if TYPE_CHECKING:
    from recbole_diffgrm.config.recbole_config import Config
    from recbole_diffgrm.experiments.tuning.search import Search

USAGE = """\
Search for the settings of a model with the best validation score, then test these.

  python -m recbole_diffgrm.tune --model=SASRec --dataset=ml-100k
  python -m recbole_diffgrm.tune --model=SASRec,DiffGRM --dataset=Amazon_Beauty --preset=cpu --trials=50
  python -m recbole_diffgrm.tune --model=GRU4Rec --dataset=ml-100k --space=hyper.test --epochs=20 --sampler=random

  --model=NAME[,NAME...] what to search for, one model after the other
  --dataset=NAME         as for run_recbole_diffgrm.py (default: ml-100k)
  --space=FILE           the values to try, in YAML (.yaml) or RecBole's format (hyper.test); default:
                         properties/tune/<Model>.yaml
  --trials=N             of each model, those of earlier and other processes included (default: 20; grid: all)
  --timeout=SECONDS      start no trial after this time
  --sampler=NAME         tpe (default), random or grid (for spaces of lists only)
  --pruner=NAME          median (default): give up a trial whose score is below the median of the earlier ones after
                         as many epochs, from the sixth trial on and after a fifth of the epochs; or none
  --report               run nothing: write the results of the trials so far
  --preset --config_files --epochs ...   as for run_recbole_diffgrm.py. Presets and config files say where to start;
                         a key on the command line is fixed, and not searched

The same command goes on with the same search: after a stop, with more --trials, or in a second process at the same time
(on two cores: two, each with OMP_NUM_THREADS=1). Trials are run directories; the best one is tested, once all are done.
Results are in <output_dir>/<dataset>/tune-<Model>-<hash>: tune.md, .json, .csv, .png, and best.yaml for --config_files.
The format of a space is in recbole_diffgrm/experiments/tuning/space.py.
Exit codes: 0 done, 1 no trial of a model came to its end, 2 wrong input, 130 and 143 stopped by a signal (state saved).
"""
FLAGS = {"report"}
TEXTS = {"space", "sampler", "pruner"}
# Words of the command line that are not configuration keys.
WORDS = FLAGS | TEXTS | {"help", "model", "dataset", "preset", "config_files", "trials", "timeout"}


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if "--help" in arguments or "-h" in arguments or not arguments:
        print(USAGE, end="")
        return 0 if arguments else 2
    return exit_code(lambda: _main(parse_arguments(arguments, FLAGS, TEXTS)))


def _main(options: dict[str, Any]) -> int:
    check_alone()
    if options.get("model", True) is True:
        raise UserError("--model=NAME is missing: the models to search for, with commas between")
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise UserError('a search needs Optuna: pip install "recbole_diffgrm[tune]"') from None
    report = options.pop("report", False)
    num_trials = _pop_number(options, "trials", int)
    timeout = _pop_number(options, "timeout", float)
    with ExitStack() as stack:
        searches = _plan(split_names(options.pop("model"), "model"), options, stack)
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        if not report:
            try:
                for search in searches:
                    search.run(num_trials, deadline)
            except Interrupted as stop:
                words = f"stopped by signal {stop.signal_number}; the same command goes on with the search"
                print(words, file=sys.stderr)
                return 128 + stop.signal_number
        return max([_report(search, report) for search in searches])


def _plan(models: list[str], options: dict[str, Any], stack: ExitStack) -> "list[Search]":
    """The searches, checked: a mistake in the last one shows before the first one trains. `stack` keeps the log on the
    screen, which begins when what needs no torch is checked."""
    from recbole_diffgrm.experiments.tuning import PRUNERS, SAMPLERS

    dataset, presets = options.pop("dataset", "ml-100k"), options.pop("preset", ())
    config_files = split_files(options.pop("config_files", ""))
    chosen = {}
    for key, names in {"sampler": SAMPLERS, "pruner": PRUNERS}.items():
        chosen[key] = options.pop(key, names[0])
        if chosen[key] not in names:
            raise UserError(f"--{key} must be one of {', '.join(names)}, not {chosen[key]!r}")
    space_file = options.pop("space", None)
    if space_file in ("", True):
        raise UserError("--space=FILE needs the name of a file")
    compared = models if len(models) > 1 else []
    stack.enter_context(working(_check(models, dataset, config_files, options, presets, compared)))

    from recbole_diffgrm.data.source import check_files
    from recbole_diffgrm.experiments.tuning.search import Search
    from recbole_diffgrm.experiments.tuning.space import read_spaces
    from recbole_diffgrm.models import get_model

    for model in models:
        if not get_model(model).trainable:
            raise UserError(f"--model: {model} has nothing to train")
    searches = []
    for model, space in read_spaces(models, Path(space_file) if space_file else None).items():
        build = _builder(model, dataset, config_files, options, presets, compared)
        free = {key: searched for key, searched in space.items() if key not in options}
        if len(free) < len(space):
            print(f"{model}: fixed, not searched: {', '.join(key for key in space if key in options)}")
        if not free:
            raise UserError(f"{model}: every key of its space is fixed on the command line")
        search = Search(model, build({}), build, free, **chosen)
        search.check()
        check_files(search.base)
        searches.append(search)
    return searches


def _check(models, dataset, config_files, options, presets, compared_with) -> str:
    """Names, keys and values, before torch is imported: a mistake is answered at once. Returns the log level."""
    from recbole_diffgrm.config.build import dataset_dir
    from recbole_diffgrm.data.source import check_dataset
    from recbole_diffgrm.models import check_config

    for model in models:
        values = check_config(model, dataset, config_files, options, presets, compared_with, WORDS)
        check_dataset(dataset, dataset_dir(values["data_path"], dataset), values["benchmark_filename"])
    return values["state"]


def _builder(model, dataset, config_files, options, presets, compared_with) -> "Callable[[dict[str, Any]], Config]":
    from recbole_diffgrm.models import build_config

    return lambda values: build_config(
        model, dataset, config_files, {**options, **values}, presets=presets, compared_with=compared_with
    )


def _report(search: "Search", only_report: bool) -> int:
    from recbole_diffgrm.experiments.tuning.report import BEST_FILE, make_report, write_report

    if not search.folder.exists():
        raise UserError(f"{search.model}: there is no search with these settings in {search.folder.parent}")
    if search.is_done() and not only_report:
        search.test_best()
    report = make_report(search)
    write_report(report)
    print(f"\n{report}\n")
    if not report.test and not search.is_done():
        print("some trials are running in another process, or were stopped: the best is tested when all are done")
    print(f"results: {search.folder / 'tune.md'}")
    if report.best is None:
        print(f"error: {search.model}: no trial came to its end", file=sys.stderr)
        return 1
    print(f"best settings: {search.folder / BEST_FILE}")
    return 0


def _pop_number(options: dict[str, Any], key: str, kind: type) -> Any:
    value = options.pop(key, None)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int if kind is int else int | float) or value <= 0:
        raise UserError(f"--{key} must be a {'whole ' * (kind is int)}number above 0, not {value!r}")
    return value


if __name__ == "__main__":
    sys.exit(main())

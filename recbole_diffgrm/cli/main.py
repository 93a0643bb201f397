"""The command line: run_recbole_diffgrm.py, `recbole-diffgrm`, `python -m recbole_diffgrm`."""

import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from recbole_diffgrm import __version__, processes
from recbole_diffgrm.cli.arguments import (
    check_different,
    exit_code,
    open_report,
    parse_arguments,
    print_error,
    split_files,
    split_names,
    working,
)
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.experiments.reports.page import REPORT_FILE

USAGE = """\
Train, test and compare DiffGRM, other models of this project and RecBole's sequential recommenders.

  python run_recbole_diffgrm.py                                       DiffGRM on ml-100k (no download)
  python run_recbole_diffgrm.py --model=GRU4Rec --dataset=Amazon_Beauty
  python run_recbole_diffgrm.py --model=SASRec,BERT4Rec,GRU4Rec --dataset=Amazon_Beauty --seeds=1,2,3
  python run_recbole_diffgrm.py --dataset=Amazon_Beauty --preset=cpu --sid_text_encoder=bundled
  python run_recbole_diffgrm.py --dataset=mydata --config_files="mydata.yaml small.yaml" --epochs=20
  python run_recbole_diffgrm.py --recommend=runs/ml-100k/DiffGRM-... --history="50 172 181" --topk=5 --explain

What to run
  --model=NAME[,NAME...], -m {models};
                             several make a comparison
  --dataset=NAME, -d NAME    ml-100k (default); Amazon_<Category> (2014), Amazon_2023_<Category>, or a name of RecBole's
                             url.yaml such as ml-1m (downloaded if missing); or a folder of yours
  --data_path=FOLDER         where datasets are: FOLDER/NAME/NAME.inter (default: dataset)
  --seed=N, --seeds=N,N,...  random seed; several make a comparison with mean and standard deviation
  --preset=NAME[,NAME...]    properties/preset/<Model>/NAME.yaml: {presets}
  --config_files="A B"       YAML files; later ones win. Names with blanks: "'my file' B", or a list '["my file", B]'

How to run
  --resume                   continue the latest unfinished run of the same configuration
  --rerun                    in a comparison, train again what is finished
  --nproc=N                  share the work between N processes of this machine (several machines: torchrun)
  --output_dir=FOLDER        where run directories go (default: runs)
  --save_topk=K              save the K best items of every test user
  --repeatable=False         filter seen items (those of the user's history) out of every ranking
  --open                     open the report in the browser at the end

Use a finished run
  --retest=RUN               test its weights with other settings, without training: --beam_size=64 --topk=[5,20] ...
  --recommend=RUN            print recommended items with titles and scores
  --history="ID ID ..."      the user's items, most recent last; ids with spaces as a list: '["an id", "other"]'
  --topk=K                   how many to recommend (default: 10)
  --explain                  show in which order the digits of each SID were filled, and with what probability
  --export=FOLDER            with --recommend=RUN, instead of a history: write its model as programs of torch.export
  --skip_unknown             ignore item ids that the model does not know, instead of refusing them
  python -m recbole_diffgrm.report RUN     write its report again (--help says of what else)

Any key of properties/*.yaml or of RecBole can be set: --epochs=N --learning_rate=X --beam_size=N ...
  --help KEY                 describes one key; docs/configuration.md has them all
  --version                  name and version

Values are YAML, those of text keys as they are typed. Precedence: RecBole's defaults < properties/overall.yaml
< properties/tokenizer.yaml < properties/model/<Model>.yaml < properties/dataset/<dataset>.yaml < presets
< config files < command line.
Exit codes: 0 done, 1 a model of a comparison failed, 2 wrong input, 130 and 143 stopped by a signal (state saved).
"""

FLAGS = {"resume", "rerun", "explain", "skip_unknown", "open"}
# Words of the command line that are not configuration keys.
COMMANDS = FLAGS | {
    "help",
    "version",
    "model",
    "dataset",
    "seeds",
    "preset",
    "config_files",
    "retest",
    "recommend",
    "history",
    "nproc",
    "export",
}

# Of RecBole's run_recbole.py, for several machines.
OF_MACHINES = ("ip", "port", "world_size", "group_offset")


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if "--version" in arguments:
        print(f"recbole_diffgrm {__version__}")
        return 0
    asked = [index for index, word in enumerate(arguments) if word in ("--help", "-h")]
    if asked:
        return exit_code(lambda: _help(arguments[asked[0] + 1 :]))
    return exit_code(lambda: _main(parse_arguments(arguments, FLAGS), arguments))


def _help(keys: list[str]) -> int:
    from recbole_diffgrm.cli.reference import describe_key
    from recbole_diffgrm.models import MODELS, model_names, preset_names

    if keys:
        for key in keys:
            print(describe_key(key.lstrip("-")))
        return 0
    theirs = [name for name in ("SASRec", "BERT4Rec", "GRU4Rec", "HGN", "FDSA", "S3Rec") if name in model_names()]
    presets = [f"{', '.join(names)} ({model})" for model in MODELS if (names := preset_names(model))]
    models = f"{', '.join(MODELS)} and RecBole's {', '.join(theirs)} and more"
    print(USAGE.format(models=models, presets="; ".join(presets)), end="")
    return 0


def _main(options: dict[str, Any], arguments: Sequence[str]) -> int:
    num_processes = _parse_processes(options)
    if "retest" in options:
        return _retest(options.pop("retest"), options, num_processes, arguments)
    if "recommend" in options:
        if num_processes > 1 or processes.world() > 1:
            raise UserError("--recommend is the work of one process: leave nproc and torchrun out")
        if "open" in options:
            raise UserError("--open shows the report of a run: --recommend writes none")
        return _recommend(options.pop("recommend"), options)
    for key in {"history", "explain", "skip_unknown", "export"} & set(options):
        raise UserError(f"--{key} belongs to --recommend=RUN")
    models = split_names(options.pop("model", "DiffGRM"), "model")
    dataset = options.pop("dataset", "ml-100k")
    config_files = split_files(options.pop("config_files", ""))
    seeds = _parse_seeds(options.pop("seeds", []))
    if options.get("resume") and options.get("rerun"):
        raise UserError("--resume and --rerun: give one of them")
    if seeds and "seed" in options:
        raise UserError("--seed and --seeds: give one of them")
    is_open = options.pop("open", False)
    log_level = _check(models, dataset, config_files, seeds, options)
    if num_processes > 1:
        return _launch(num_processes, arguments)
    with working(log_level):
        if len(models) > 1 or len(seeds) > 1:
            return _compare(models, dataset, config_files, seeds, options, is_open)
        from recbole_diffgrm.experiments.pipeline import run

        options.pop("rerun", None)
        if seeds:
            options["seed"] = seeds[0]
        return _print_result(run(models[0], dataset, config_files, **options), is_open)


def _parse_processes(options: dict[str, Any]) -> int:
    """How many to start; 1 in a process that was started so."""
    for key in OF_MACHINES:
        if key in options:
            raise UserError(
                f"--{key}: torchrun starts processes on several machines, on each: torchrun --nnodes=2 "
                "--nproc_per_node=N --rdzv_backend=c10d --rdzv_endpoint=HOST:29500 run_recbole_diffgrm.py ..."
            )
    number = options.pop("nproc", 1)
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= 1024:
        raise UserError(f"--nproc must be a whole number from 1 to 1024, not {number!r}")
    if processes.world() == 1:
        return number
    if number not in (1, int(os.environ["LOCAL_WORLD_SIZE"])):
        raise UserError("--nproc: torchrun has started the processes already: leave it out")
    return 1


def _launch(num_processes: int, arguments: Sequence[str]) -> int:
    from recbole_diffgrm.cli.launch import launch

    return launch(num_processes, arguments)


def _check(models: list[str], dataset: str, config_files: list[str], seeds: list[int], options: dict[str, Any]) -> str:
    """Names, keys and values, before torch is imported: a mistake is answered at once. Returns the log level."""
    from recbole_diffgrm.config.build import dataset_dir
    from recbole_diffgrm.data.source import check_dataset
    from recbole_diffgrm.models import check_config

    keys = {key: value for key, value in options.items() if key not in COMMANDS}
    compared, presets = models if len(models) > 1 else [], options.get("preset", ())
    for model in models:
        # A seed has only to be within limits: all are if the least and the greatest are.
        for seed in [{"seed": seed} for seed in sorted({min(seeds), max(seeds)})] if seeds else [{}]:
            values = check_config(model, dataset, config_files, {**keys, **seed}, presets, compared, COMMANDS)
        check_dataset(dataset, dataset_dir(values["data_path"], dataset), values["benchmark_filename"])
    return values["state"]


def _compare(
    models: list[str], dataset: str, config_files: list[str], seeds: list[int], options: dict[str, Any], is_open: bool
) -> int:
    from recbole_diffgrm.experiments.comparison import compare

    comparison = compare(models, dataset, config_files, seeds=seeds, **options)
    failed = [(row.name, error) for row in comparison.rows for error in row.errors]
    if processes.is_first():
        print(f"\n{comparison}")
        if is_open and comparison.path:
            open_report(comparison.path / REPORT_FILE)
        if comparison.warning:
            print(f"warning: {comparison.warning}", file=sys.stderr)
        for name, error in failed:
            print_error(f"{name}: {error}")
    if not failed:
        return 0
    nothing_ran = not any(row.runs for row in comparison.rows)
    return 2 if nothing_ran and all(isinstance(error, UserError) for _, error in failed) else 1


def _retest(run_dir: Any, options: dict[str, Any], num_processes: int, arguments: Sequence[str]) -> int:
    from recbole_diffgrm.experiments.changes import check_retest

    is_open = options.pop("open", False)
    values = _check_changes("retest", run_dir, options, check_retest)
    if num_processes > 1:
        return _launch(num_processes, arguments)
    with working(values["state"]):
        from recbole_diffgrm.experiments.pipeline import retest

        return _print_result(retest(run_dir, **options), is_open)


def _check_changes(
    command: str, run_dir: Any, changes: dict[str, Any], check: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    """The changed configuration: that the run is there and its keys may be changed so, before torch is imported."""
    from recbole_diffgrm.experiments.result import RunResult
    from recbole_diffgrm.models import get_options

    if not isinstance(run_dir, str) or not run_dir:
        raise UserError(f"--{command}=RUN needs the directory of a finished run")
    finished = RunResult.load(Path(run_dir))
    return check(finished.model, get_options(finished.model, run_dir), finished.config, changes)


def _print_result(result: Any, is_open: bool) -> int:
    if processes.is_first():
        print(f"\n{result}")
        if is_open:
            open_report(result.run_dir / REPORT_FILE)
    return 0


def _recommend(run_dir: Any, options: dict[str, Any]) -> int:
    from recbole_diffgrm.experiments.changes import check_recommend

    if "export" in options:
        return _export(run_dir, options.pop("export"), options)
    history = _parse_history(options.pop("history", ""))
    k, explain = options.pop("topk", 10), options.pop("explain", False)
    skip_unknown = options.pop("skip_unknown", False)
    if isinstance(k, bool) or not isinstance(k, int):
        raise UserError(f"--topk must be a whole number for recommendations, not {k!r}")
    _check_changes("recommend", run_dir, options, check_recommend)

    from tabulate import tabulate

    from recbole_diffgrm.serving.recommender import Recommender

    recommender = Recommender.load(run_dir, **options)
    paths = recommender.explain(history, skip_unknown=skip_unknown) if explain else {}
    recommended = recommender.recommend([history], k, skip_unknown=skip_unknown)[0]
    print(
        tabulate(
            [(rank, one.item, one.title, one.score) for rank, one in enumerate(recommended, start=1)],
            ["", "item", "title", "score"],
            floatfmt=".4f",
            disable_numparse=[1, 2],
        )
    )
    if explain:
        print("\nHow their SIDs were filled, digit=code and the code's probability:")
        for rank, one in enumerate(recommended, start=1):
            path = paths.get(recommender.sid(one.item), [])
            steps = " -> ".join(f"{d.digit + 1}={d.code} ({d.probability:.0%})" for d in path)
            why = "popular, fills the list" if one.score == -math.inf else "ranked by its item score"
            print(f"{rank:>3}  {one.item}: {steps or f'not generated: {why}'}")
    return 0


def _export(run_dir: Any, folder: Any, options: dict[str, Any]) -> int:
    from recbole_diffgrm.experiments.changes import check_recommend

    if not isinstance(folder, str) or not folder:
        raise UserError("--export=FOLDER needs a folder to write to")
    _check_changes("recommend", run_dir, options, check_recommend)
    with working():
        from recbole_diffgrm.serving.recommender import Recommender

        Recommender.load(run_dir, **options).export(folder)
    print(f"exported: {folder}")
    return 0


def _parse_history(text: Any) -> list[str]:
    """ID ID ..., or a YAML list for ids with spaces in them."""
    from recbole_diffgrm.config.argument_values import parse_texts

    text = "" if text is True else str(text).strip()
    history = parse_texts(text, "history") if text.startswith("[") else text.split()
    if not history:
        raise UserError('--history="ID ID ..." is missing: the items of the user, most recent last')
    return history


def _parse_seeds(value: Any) -> list[int]:
    parts = value if isinstance(value, list) else str(value).split(",")
    try:
        seeds = [int(str(part)) for part in parts]
    except ValueError:
        raise UserError(f"--seeds must be whole numbers such as 1,2,3, not {value!r}") from None
    check_different(seeds, "seeds")
    return seeds

"""The command line of run_recbole_diffgrm.py."""

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

from recbole_diffgrm.errors import Interrupted, UserError

USAGE = """\
Train, test and compare DiffGRM and sequential recommenders of RecBole.

  python run_recbole_diffgrm.py                                       DiffGRM on ml-100k (no download)
  python run_recbole_diffgrm.py --model=GRU4Rec --dataset=Amazon_Beauty
  python run_recbole_diffgrm.py --model=SASRec,BERT4Rec,GRU4Rec --dataset=Amazon_Beauty --seeds=1,2,3
  python run_recbole_diffgrm.py --dataset=Amazon_Beauty --config_files=properties/preset/cpu.yaml --sid_encoder=bundled
  python run_recbole_diffgrm.py --dataset=mydata --config_files="mydata.yaml small.yaml" --epochs=20
  python run_recbole_diffgrm.py --recommend=runs/ml-100k/DiffGRM-... --history="50 172 181" --topk=5 --explain

What to run
  --model=NAME[,NAME...]     DiffGRM (default), SASRec, BERT4Rec, GRU4Rec, HGN, FDSA, S3Rec and more, and the floors
                             HistoryCopy and Pop; several make a comparison
  --dataset=NAME             ml-100k (default), Amazon_<Category> (downloaded when missing), or a folder of yours
  --data_path=FOLDER         where data sets lie: FOLDER/NAME/NAME.inter (default: dataset)
  --seed=N, --seeds=N,N,...  random seed; several make a comparison with mean and standard deviation
  --config_files="A B"       YAML files, later ones win

How to run
  --resume                   continue the latest unfinished run of the same configuration
  --rerun                    in a comparison, train again what is finished
  --output_dir=FOLDER        where run directories go (default: runs)
  --save_topk=K              keep every test user's K best items
  --repeatable=False         leave items of the user's history out of every ranking

Use a finished run
  --retest=RUN               test its weights with other settings, without training: --beam_size=64 --id_weight=0 ...
  --recommend=RUN            a run directory; prints items with titles and scores
  --history="ID ID ..."      the user's items, the most recent last; ids with spaces as a list: '["an id", "other"]'
  --topk=K                   how many to recommend (default: 10)
  --explain                  show how the digits of each ID were filled, in which order, how surely
  --skip_unknown             pass over item ids that the model has not seen, instead of refusing them
  --beam_size=N --decoding=... --repeatable=False   other than in the run

Training, and any other key of properties/*.yaml or of RecBole
  --epochs=N --train_batch_size=N --learning_rate=X --scheduler=constant|linear|cosine --warmup_steps=N
  --clip_grad_norm=X --ema_decay=X --stopping_step=N --valid_metric=0.8*NDCG@10+0.2*Recall@10 --topk=[5,10,20]
  DiffGRM: --hidden_size=N --decoder_layers=N --noising=ocn|coherent|random ... (properties/model/DiffGRM.yaml)
           --decoding=catalogue|paper|released|fixed_order --beam_size=N --valid_beam_size=N
  semantic IDs: --sid_encoder=... --sid_digits=N --sid_codes=N ... (properties/tokenizer.yaml)

Values are YAML. Precedence: RecBole's defaults < properties/overall.yaml < properties/model/<Model>.yaml
< properties/dataset/<dataset>.yaml < config files in order < command line.
Exit codes: 0 done, 1 a model of a comparison failed, 2 wrong input, 130 and 143 stopped by a signal (state saved).
"""

FLAGS = {"resume", "rerun", "explain", "skip_unknown"}
# Never read as YAML; those of the last line belong to a study.
TEXTS = {"model", "dataset", "config_files", "sid_text_template", "recommend", "retest", "history"}
TEXTS |= {"only", "results", "readme"}


def parse_arguments(arguments: Sequence[str]) -> dict[str, Any]:
    """--key=value or --key value, values as YAML; a bare --key is True."""
    from recbole_diffgrm.config.layers import parse_value

    parsed: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("--") or argument == "--":
            raise UserError(f"cannot read {argument!r}: options look like --key=value (see --help)")
        key, equals, text = argument[2:].partition("=")
        if not equals and key not in FLAGS and rest and not rest[0].startswith("--"):
            equals, text = "=", rest.pop(0)
        if key in parsed:
            raise UserError(f"--{key} is given twice")
        parsed[key] = True if not equals else text if is_read_as_text(key) else parse_value(text, key)
    return parsed


def is_read_as_text(key: str) -> bool:
    """Not as YAML."""
    return key in TEXTS or key.endswith("_num_interval")  # [5,inf) is no YAML


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if "--help" in arguments or "-h" in arguments:
        print(USAGE, end="")
        return 0
    return exit_code(lambda: _main(parse_arguments(arguments)))


def exit_code(work: Callable[[], int]) -> int:
    """Of `work`: a user's mistake or a signal is one line and a code of its own."""
    try:
        return work()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Interrupted as stop:
        print(stop, file=sys.stderr)
        return 128 + stop.signal_number
    except KeyboardInterrupt:  # before training began, or a second time
        print("stopped", file=sys.stderr)
        return 130


def _main(options: dict[str, Any]) -> int:
    for flag in FLAGS & set(options):
        if not isinstance(options[flag], bool):
            raise UserError(f"--{flag} takes no value")
    if "retest" in options:
        run_dir = options.pop("retest")
        if not isinstance(run_dir, str) or not run_dir:
            raise UserError("--retest=RUN needs the directory of a finished run")
        from recbole_diffgrm.running.run import retest

        return _show(retest(run_dir, **options))
    if "recommend" in options:
        return _recommend(options.pop("recommend"), options)
    for key in {"history", "explain", "skip_unknown"} & set(options):
        raise UserError(f"--{key} belongs to --recommend=RUN")
    models = _names(options.pop("model", "DiffGRM"), "model")
    dataset = options.pop("dataset", "ml-100k")
    config_files = str(options.pop("config_files", "")).split()
    seeds = _seeds(options.pop("seeds", []))

    resume, rerun = options.pop("resume", False), options.pop("rerun", False)
    if resume and rerun:
        raise UserError("--resume and --rerun: give one of them")
    if seeds and "seed" in options:
        raise UserError("--seed and --seeds: give one of them")
    if len(models) == 1 and len(seeds) <= 1:
        return _run_one(models[0], dataset, config_files, resume, {**options, **({"seed": seeds[0]} if seeds else {})})
    return _run_several(models, dataset, config_files, seeds, resume, rerun, options)


def _run_one(model: str, dataset: str, config_files: list[str], resume: bool, options: dict[str, Any]) -> int:
    from recbole_diffgrm.running.run import run

    return _show(run(model, dataset, config_files, resume=resume, **options))


def _show(result) -> int:
    from tabulate import tabulate

    from recbole_diffgrm.evaluation.sid_level import describe_shares, is_sid_metric

    print(f"\n{result.dataset}, seed {result.seed}, best epoch {result.best_epoch} of {result.epochs}")
    for level, is_its in (("item level", lambda name: not is_sid_metric(name)), ("SID level", is_sid_metric)):
        names = [name for name in (result.test or result.valid) if is_its(name)]
        if names:
            of_parts = {"validation": result.valid, "test": result.test, "test, history left out": result.test_new}
            parts = [(part, values) for part, values in of_parts.items() if values]
            rows = [(part, *(values[name] for name in names)) for part, values in parts]
            print("\n" + tabulate(rows, [f"{result.model}, {level}", *names], floatfmt=".4f"))
    if result.sid_shares:
        print("\n" + describe_shares(result.sid_shares))
    print(f"\nresults: {result.run_dir}")
    return 0


def _run_several(models, dataset, config_files, seeds, resume: bool, rerun: bool, options: dict[str, Any]) -> int:
    from recbole_diffgrm.running.comparison import compare

    comparison = compare(models, dataset, config_files, seeds=seeds, resume=resume, rerun=rerun, **options)
    for level, table in comparison.tables("simple").items():
        print(f"\n{dataset}: test metrics, {level}\n\n{table}")
    print()
    for row in comparison.rows:
        for run in row.runs:
            print(f"{row.model}, seed {run.seed}: {run.run_dir}")
    print(f"comparison: {comparison.path}")
    for row in comparison.rows:
        for error in row.errors:
            print(f"error: {row.model}: {error}", file=sys.stderr)
    errors = [error for row in comparison.rows for error in row.errors]
    if not errors:
        return 0
    return 2 if not any(row.runs for row in comparison.rows) and all(isinstance(e, UserError) for e in errors) else 1


def _recommend(run_dir: str, options: dict[str, Any]) -> int:
    from tabulate import tabulate

    from recbole_diffgrm.running.recommender import Recommender

    if not isinstance(run_dir, str) or not run_dir:
        raise UserError("--recommend=RUN needs the directory of a finished run")
    history = _history(options.pop("history", ""))
    count, explain = options.pop("topk", 10), options.pop("explain", False)
    skip_unknown = options.pop("skip_unknown", False)
    if isinstance(count, bool) or not isinstance(count, int):
        raise UserError(f"--topk must be a whole number for recommendations, not {count!r}")
    recommender = Recommender.load(run_dir, **options)
    ways = recommender.explain(history, skip_unknown=skip_unknown) if explain else {}
    found = recommender.recommend([history], count, skip_unknown=skip_unknown)[0]
    print(
        tabulate(
            [(rank, one.item, one.title, one.score) for rank, one in enumerate(found, start=1)],
            ["", "item", "title", "score"],
            floatfmt=".4f",
            disable_numparse=[1, 2],
        )
    )
    if explain:
        print("\nHow their IDs were filled, digit=code and the code's probability:")
        for rank, one in enumerate(found, start=1):
            way = ways.get(recommender.sid(one.item))
            steps = " -> ".join(f"{d.digit + 1}={d.code} ({d.probability:.0%})" for d in way or [])
            why = "popular, fills the list" if one.score == -math.inf else "ranked by its item score"
            print(f"{rank:>3}  {one.item}: {steps or f'not generated: {why}'}")
    return 0


def _history(text: Any) -> list[str]:
    """ID ID ..., or a YAML list for ids with spaces in them."""
    from recbole_diffgrm.config.layers import parse_value

    text = "" if text is True else str(text).strip()
    history = parse_value(text, "history") if text.startswith("[") else text.split()
    if not isinstance(history, list) or not history:
        raise UserError('--history="ID ID ..." is missing: the items of the user, the most recent last')
    return [str(item) for item in history]


def _names(text: str, key: str) -> list[str]:
    names = [name.strip() for name in str(text).split(",") if name.strip()]
    if not names:
        raise UserError(f"--{key} is empty")
    return names


def _seeds(value: Any) -> list[int]:
    parts = value if isinstance(value, list) else str(value).split(",")
    try:
        return [int(str(part)) for part in parts]
    except ValueError:
        raise UserError(f"--seeds must be whole numbers such as 1,2,3, not {value!r}") from None

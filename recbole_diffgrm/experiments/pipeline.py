"""One run: data, training, test, result. What the command line does, for Python."""

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from recbole.utils import init_seed

from recbole_diffgrm import checkpoint, memory, processes
from recbole_diffgrm.config.protocol import eval_mode, parse_mode
from recbole_diffgrm.config.recbole_config import Config
from recbole_diffgrm.config.recbole_metrics import recbole_metrics
from recbole_diffgrm.data.dataset import FlatSequentialDataset, load_dataset
from recbole_diffgrm.data.frame import Dataset
from recbole_diffgrm.data.loader import EvalLoader
from recbole_diffgrm.data.negatives import sample_negatives
from recbole_diffgrm.data.sequences import PrefixSamples
from recbole_diffgrm.data.source import check_files
from recbole_diffgrm.data.splits import Split, make_split, sample_test_users, sample_users
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.evaluation.evaluator import Evaluation, asked_ranking, evaluate
from recbole_diffgrm.evaluation.groups import group_metrics
from recbole_diffgrm.evaluation.intervals import Intervals, bootstrap_intervals, metric_of_targets
from recbole_diffgrm.evaluation.ranks import save_ranks
from recbole_diffgrm.evaluation.sid_metrics import is_sid_metric
from recbole_diffgrm.experiments import environment, examples, item_table, run_directory
from recbole_diffgrm.experiments.changes import check_retest
from recbole_diffgrm.experiments.examples import EXAMPLES_FILE
from recbole_diffgrm.experiments.item_data import attach_item_data, current_sid_digest, save_tokenizer
from recbole_diffgrm.experiments.reports import run as run_report
from recbole_diffgrm.experiments.reports.page import REPORT_FILE, try_to_write
from recbole_diffgrm.experiments.result import RunResult, hash_files
from recbole_diffgrm.experiments.run_directory import RunDirectory
from recbole_diffgrm.files import atomic_write, first_line
from recbole_diffgrm.models import build_config, get_model
from recbole_diffgrm.models.base import users_per_batch
from recbole_diffgrm.screen import logs_to_screen
from recbole_diffgrm.training.signals import StopSignal
from recbole_diffgrm.training.stages import train_stages
from recbole_diffgrm.training.tracking import Tracking, check_installed, start_tracking
from recbole_diffgrm.training.trainer import GiveUp, Progress
from recbole_diffgrm.words import count

logger = logging.getLogger(__name__)

SAMPLED_METRICS = (
    "metrics against sampled items are not those of the whole catalogue and may order models differently (Krichene & "
    "Rendle, KDD 2020); compare them with numbers of the same mode only"
)


def run(
    model: str,
    dataset: str | Dataset,
    config_files: str | Path | Sequence[str | Path] = (),
    *,
    preset: str | Sequence[str] = (),
    resume: bool = False,
    **overrides: Any,
) -> RunResult:
    """Train and test one model on a dataset, by its name or from frames (`Dataset`). `overrides` are configuration
    keys, as on the command line.

    >>> result = run("SASRec", "ml-100k", epochs=5)
    >>> result.test["all"]["ndcg@10"]
    """
    return run_config(build_config(model, dataset, config_files, overrides, preset), resume=resume)


def retest(run_dir: str | Path, **changes: Any) -> RunResult:
    """Test the weights of a finished run with other settings of validation and test, without training.

    >>> retest("runs/ml-100k/DiffGRM-...", beam_size=64)
    """
    finished = RunResult.load(Path(run_dir))
    config = retest_config(finished.model, finished.dataset, finished.config, changes)
    return run_config(config, weights=finished)


def retest_config(model: str, dataset: str, values: dict[str, Any], changes: dict[str, Any]) -> Config:
    """A configuration of which only what training does not read is changed."""
    model_class = get_model(model)
    return Config(model_class, dataset, check_retest(model, model_class.Options, values, changes))


@logs_to_screen
@memory.explain_shortage()
def run_config(
    config: Config, *, resume: bool = False, reuse: bool = False, weights: RunResult | None = None
) -> RunResult:
    """`resume` continues the latest unfinished run of this configuration; `reuse` returns a finished one. With the
    `weights` of another run nothing is trained."""
    processes.join(config["device"])
    check_files(config)
    check_installed(config)
    config_hash = run_directory.run_hash(config, weights)
    finished, unfinished = processes.from_first(lambda: _earlier_runs(config, config_hash, resume, reuse))
    if finished:
        if processes.is_first():
            _announce(config, finished)
        return finished
    with _open_run(config, config_hash, unfinished, weights) as opened:
        if resume and not unfinished:
            logger.info("no unfinished run of this configuration: started a new one")
        return _train_and_test(config, config_hash, opened, weights)


@logs_to_screen
@memory.explain_shortage()
def train_config(config: Config, give_up: GiveUp) -> tuple[Path, Progress]:
    """Train without testing. The run stays unfinished: `run_config` with `resume` tests it, or goes on where `give_up`
    ended it. What was trained with this configuration before is not trained again."""
    processes.join(config["device"])
    check_files(config)
    check_installed(config)
    config_hash = run_directory.run_hash(config)
    finished, unfinished = processes.from_first(lambda: _earlier_runs(config, config_hash, resume=True, reuse=True))
    if finished:
        return finished.run_dir, _progress_of(finished)
    with _open_run(config, config_hash, unfinished) as (split, valid, _, run_dir, tracker, stop, _):
        _prepare_process(config)
        _, progress = train_stages(config, split.train, valid, run_dir, tracker, stop, give_up)
        return run_dir, progress


class OpenRun(NamedTuple):
    split: Split
    valid: EvalLoader | None
    test: EvalLoader | None
    run_dir: Path
    tracker: Tracking
    stop: StopSignal
    sid_digest: str


@contextmanager
def _open_run(
    config: Config, config_hash: str, unfinished: RunDirectory | None, weights: RunResult | None = None
) -> Iterator[OpenRun]:
    """The data, and the directory of an unfinished run (acquired) or of a new one, with its log. Where nothing is
    trained, an error leaves no directory behind."""
    environment.reset_peak_memory()
    with ExitStack() as stack:
        if unfinished:
            stack.callback(unfinished.release)
        # Before there is a run directory: data that cannot be used leave none.
        split = make_split(config, load_dataset(config))
        valid = _valid_loader(config, split)
        test = _eval_loader(config, split, sample_test_users(config, split), "test")
        sid_digest = attach_item_data(config, split)
        if unfinished:
            run_directory.check_sids(unfinished.path, item_table.read_sid_digest(unfinished.path), sid_digest)
        if weights:
            run_directory.check_sids(weights.run_dir, weights.sid_digest, sid_digest)
        directory = unfinished or processes.from_first(lambda: run_directory.create(config, config_hash))
        run_dir = directory.path
        if not unfinished:
            stack.callback(directory.release)
            if weights and processes.is_first():
                stack.push(_discard(run_dir))
        if processes.is_first():
            stack.enter_context(run_directory.log_to(run_dir))
        started: list[Tracking] = []  # of the first process
        processes.from_first(lambda: started.append(_begin(config, split, run_dir)))
        tracker = stack.enter_context(started[0] if started else Tracking([]))  # closed when the result is saved
        stop = stack.enter_context(StopSignal(run_dir))
        logger.info(f"{config.model} on {config.dataset}, seed {config['seed']}: {run_dir}")
        for part, loader in {"valid": valid, "test": test}.items():
            if loader and loader.negatives is not None:
                logger.warning(f"{part}, mode {eval_mode(config, part)}: {SAMPLED_METRICS}")
        yield OpenRun(split, valid, test, run_dir, tracker, stop, sid_digest)


def _begin(config: Config, split: Split, run_dir: Path) -> Tracking:
    """Write what is known of a run before it is trained."""
    run_directory.write_settings(config, run_dir)
    item_table.save(config, split.dataset, run_dir)
    save_tokenizer(split.dataset, run_dir)
    return start_tracking(config, run_dir)


def _discard(folder: Path) -> Callable[..., None]:
    """On leaving with an error that the user can mend."""

    def leave(kind: type[BaseException] | None, *rest: Any) -> None:
        if kind and issubclass(kind, UserError):
            shutil.rmtree(folder, ignore_errors=True)

    return leave


def _train_and_test(config: Config, config_hash: str, opened: OpenRun, weights: RunResult | None) -> RunResult:
    split, valid, test, run_dir, tracker, stop, sid_digest = opened
    described = environment.describe()  # now: the checkout may change while the run goes on
    statistics = _describe_data(split, valid, test)
    _prepare_process(config)
    model, progress = _train(config, split, valid, run_dir, tracker, stop, weights)
    _load_weights(config, model, run_dir)
    if model.finish_training():
        _save_weights(model, run_dir)
    valid_metrics = progress.best_metrics or _validate(config, model, valid, stop)
    started = time.monotonic()
    tested = _test(config, model, test, stop)
    asked = tested.get(asked_ranking(config))
    of_targets = _describe_targets(split, test.samples) if test else {}
    result = RunResult(
        model=config.model,
        dataset=config.dataset,
        seed=config["seed"],
        config_hash=config_hash,
        run_dir=run_dir,
        valid=valid_metrics,
        test={ranking: evaluation.metrics for ranking, evaluation in tested.items()},
        test_intervals=_intervals(config, test, tested),
        groups={
            ranking: group_metrics(evaluation.ranks.numpy(), of_targets, config["topk"])
            for ranking, evaluation in tested.items()
        },
        weights_of=weights.config_hash if weights else "",
        sid_digest=sid_digest,
        sid_shares=asked.sid_shares if asked else _validation_shares(progress),
        best_epoch=progress.best_epoch,
        epochs=progress.epoch,
        curve=progress.curve,
        seconds={
            "train": progress.train_seconds,
            "valid": progress.valid_seconds,
            "test": time.monotonic() - started,
        },
        peak_memory_mib=environment.peak_memory_mib(),
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        statistics=statistics,
        config=config.values,
        environment=described,
    )
    return processes.from_first(lambda: _save_result(config, model, result, test, tested, of_targets, tracker))


def _save_result(
    config: Config,
    model: Any,
    result: RunResult,
    test: EvalLoader | None,
    tested: dict[str, Evaluation],
    of_targets: dict[str, np.ndarray],
    tracker: Tracking,
) -> RunResult:
    """With the rankings, the one asked for first, the checksums of all files, and a report."""
    test_metrics, run_dir = next(iter(result.test.values()), {}), result.run_dir
    if test:
        _save_rankings(run_dir, test.dataset, tested, of_targets)
    result = replace(result, sha256=hash_files(run_dir))
    if test_metrics:
        tracker.log({f"test/{name}": value for name, value in test_metrics.items()}, result.best_epoch or 0)
    result.save()
    if test_metrics:
        logger.info("test " + ", ".join(f"{name} {value:.4f}" for name, value in test_metrics.items()))
    if test:
        users = test.dataset
        try_to_write(EXAMPLES_FILE, lambda: examples.save(config, model, users, item_table.load(result), run_dir))
    try_to_write(REPORT_FILE, lambda: run_report.write(result))
    return result


def _train(config, split: Split, valid, run_dir: Path, tracker, stop: StopSignal, weights) -> tuple[Any, Progress]:
    """The model and its training; the best weights are in best.pt."""
    if config.model_class.trainable and weights is None:
        return train_stages(config, split.train, valid, run_dir, tracker, stop)
    model = config.model_class(config, split.train).to(config["device"])
    if weights is None:  # nothing to learn
        _save_weights(model, run_dir)
        return model, Progress(finished=True)
    _load_weights(config, model, weights.run_dir)
    weights.check_file("best.pt")  # of this model, but of this run?
    _save_weights(model, run_dir)
    done = Progress(finished=True, epoch=weights.epochs, curve=weights.curve, best_epoch=weights.best_epoch)
    return model, done


def _save_weights(model, run_dir: Path) -> None:
    processes.from_first(lambda: checkpoint.save({"state_dict": model.state_dict()}, run_dir / "best.pt"))


def _load_weights(config, model, run_dir: Path) -> None:
    """The best ones of a run."""
    path = run_dir / "best.pt"
    content = checkpoint.load(path)
    try:
        model.load_state_dict(content["state_dict"])
    except (RuntimeError, KeyError) as error:
        raise UserError(f"{path}: the weights are not those of this model ({first_line(error)})") from None


def _progress_of(finished: RunResult) -> Progress:
    """The training of a finished run."""
    return Progress(
        finished=True,
        epoch=finished.epochs,
        curve=finished.curve,
        best_epoch=finished.best_epoch,
        best_score=max((entry["score"] for entry in finished.curve if "score" in entry), default=None),
        train_seconds=finished.seconds["train"],
        valid_seconds=finished.seconds["valid"],
    )


def _test(config, model, test: EvalLoader | None, stop: StopSignal) -> dict[str, Evaluation]:
    """{ranking: evaluation}, the ranking asked for first; empty without test users."""
    if test is None:
        return {}
    rankings = list(dict.fromkeys([asked_ranking(config), "unseen"]))
    logger.info(f"testing on {count(len(test.samples), 'target')}")
    return evaluate(config, model, test, rankings, config["save_topk"], "test", stop.check)


def _validation_shares(progress: Progress) -> dict[str, float]:
    return next((e.get("sid_shares", {}) for e in progress.curve if e["epoch"] == progress.best_epoch), {})


def _validate(config, model, valid: EvalLoader | None, stop: StopSignal) -> dict[str, float]:
    if valid is None:
        return {}
    evaluated = evaluate(config, model, valid, check_stop=stop.check, validation=True)
    return evaluated[asked_ranking(config)].metrics


def _intervals(config, test: EvalLoader | None, tested: dict[str, Evaluation]) -> dict[str, Intervals]:
    """{ranking: interval of each metric}, of a test on drawn users."""
    if test is None or config["num_test_users"] is None:
        return {}
    users, found = test.samples[test.dataset.uid_field].numpy(), {}
    for ranking, evaluation in tested.items():
        of_targets: dict[str, Any] = {}
        for name in evaluation.metrics:
            ranks = evaluation.sid_ranks if is_sid_metric(name) else evaluation.ranks
            of_targets[name] = None if ranks is None else metric_of_targets(name, ranks.numpy())
        known = {name: values for name, values in of_targets.items() if values is not None}
        found[ranking] = bootstrap_intervals(known, users)
    return found


def _describe_targets(split: Split, samples: PrefixSamples) -> dict[str, np.ndarray]:
    """What test targets are grouped by (evaluation.groups): [targets] each."""
    return {
        "history_length": samples.flat.num_known[samples.rows.long()].numpy(),
        "popularity": split.popularity[samples[split.dataset.iid_field]].numpy(),
    }


def _valid_loader(config, split: Split) -> EvalLoader | None:
    subset = sample_users(split.valid, config["num_valid_users"], config["seed"])
    return _eval_loader(config, split, subset, "valid")


def _eval_loader(config, split: Split, part: FlatSequentialDataset, name: str) -> EvalLoader | None:
    if len(part) == 0:
        return None
    sampling = parse_mode(eval_mode(config, name))
    negatives = sample_negatives(part.inter_feat, split.popularity, sampling, config["seed"]) if sampling else None
    batch_size = users_per_batch(config, part.item_num)
    counts = split.target_counts if _needs_counts(config) else None
    return EvalLoader(config, part, config.model_class.variable_length, batch_size, counts, negatives)


def _needs_counts(config) -> bool:
    """Does a metric read how often items are targets in training? A dict of millions takes seconds and gigabytes."""
    return any("data.count_items" in recbole_metrics()[name.lower()].needs for name in config["metrics"])


def _describe_data(split: Split, valid: EvalLoader | None, test: EvalLoader | None) -> dict[str, Any]:
    statistics: dict[str, Any] = split.dataset.statistics() | {
        "train_samples": len(split.train),
        "valid_users": _count_users(valid),
        "test_users": _count_users(test),
        "all_test_users": len(split.test.inter_feat[split.dataset.uid_field].unique()),
        **split.statistics(),
    }
    nouns = {"users": "user", "items": "item", "interactions": "interaction", "train_samples": "training sample"}
    nouns |= {"valid_users": "validation user", "test_users": "test user"}
    logger.info(", ".join(count(statistics[name], noun) for name, noun in nouns.items()))
    nouns = {"valid_targets": "validation target", "test_targets": "test target"}
    logger.info(
        ", ".join(count(statistics[name], noun) for name, noun in nouns.items())
        + f" ({statistics['test_targets_not_in_training']:,} not in training); "
        + f"{count(statistics['held_out_without_history'], 'held-out interaction')} without history"
    )
    return statistics


def _count_users(loader: EvalLoader | None) -> int:
    return len(loader.samples[loader.dataset.uid_field].unique()) if loader else 0


def _prepare_process(config) -> None:
    if config["reproducibility"] and torch.cuda.is_available():
        torch.use_deterministic_algorithms(True, warn_only=True)
    on_cpu = torch.device(config["device"]).type == "cpu"
    if config["enable_amp"] and on_cpu and not environment.has_bfloat16():
        logger.warning("this processor has no bfloat16 instructions: --enable_amp=False may be faster")
    memory.keep_freed_memory()
    init_seed(config["seed"], config["reproducibility"])


def _earlier_runs(config, config_hash: str, resume: bool, reuse: bool) -> tuple[RunResult | None, RunDirectory | None]:
    """A finished run to return, or an unfinished one to go on with (opened), or neither."""
    finished = run_directory.latest_finished(config, config_hash) if reuse or resume else None
    if finished and not _has_same_sids(config, finished):
        finished = None
    if finished and config["save_topk"] > finished.config["save_topk"]:
        finished = None  # it lacks the lists that are asked for
    unfinished = run_directory.latest_unfinished(config, config_hash) if resume and not (reuse and finished) else None
    return (finished if unfinished is None else None), unfinished


def _has_same_sids(config, finished: RunResult) -> bool:
    """The hash is of what semantic IDs are made from; another version of the program may make others."""
    if not finished.sid_digest:  # no semantic IDs, or of an earlier version
        return True
    digest = current_sid_digest(config)
    if digest != finished.sid_digest:
        print(
            f"{finished.run_dir} is not used again: its semantic IDs (digest {finished.sid_digest}) are not those that "
            f"are made now ({digest})"
        )
    return digest == finished.sid_digest


def _announce(config: Config, finished: RunResult) -> None:
    """Say that a run is used again, and whether something it may depend on has changed since."""
    print(f"{finished.model} on {finished.dataset}, seed {finished.seed}: finished already, in {finished.run_dir}")
    now = environment.describe()
    for part in ("commit", "versions", "threads"):
        if finished.environment[part] != now[part]:
            print(f"  {part} then: {finished.environment[part]}; now: {now[part]}. --rerun trains it again")
    if config.model_class.needs_sids(config) and not finished.sid_digest:
        print("  it is of a version that may have made other semantic IDs. --rerun trains it again")


def _save_rankings(
    run_dir: Path, test_set: FlatSequentialDataset, tested: dict[str, Evaluation], of_targets: dict[str, np.ndarray]
) -> None:
    """ranks.npz, and topk.tsv where asked for."""
    samples = test_set.inter_feat
    users = np.asarray(test_set.id2token(test_set.uid_field, samples[test_set.uid_field]), dtype=str)
    targets = np.asarray(test_set.id2token(test_set.iid_field, samples[test_set.iid_field]), dtype=str)
    named: dict[str, np.ndarray] = {}
    for ranking, evaluation in tested.items():
        named |= {name: ranks.numpy() for name, ranks in evaluation.named_ranks(ranking).items()}
    save_ranks(run_dir, users, targets, named, of_targets)
    top = next(iter(tested.values())).top
    if top is None:
        return
    has_one_row = len(set(users)) == len(users)  # of each user; else the row in ranks.npz is written too
    with atomic_write(run_dir / "topk.tsv", "w") as file:
        file.write("user_id\trank\titem_id" + ("\n" if has_one_row else "\trow\n"))
        for row, (user, items) in enumerate(zip(users, test_set.id2token(test_set.iid_field, top))):
            end = "\n" if has_one_row else f"\t{row}\n"
            for rank, item in enumerate(items, start=1):
                if item != "[PAD]":
                    file.write(f"{user}\t{rank}\t{item}{end}")

"""One run: data, training, test, result. The same thing the command line does, for Python."""

import logging
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from recbole.utils import init_seed
from torch.utils.tensorboard import SummaryWriter

from recbole_diffgrm import compat
from recbole_diffgrm.config.config import READ_BY_TESTS, WITHOUT_INFLUENCE, Config, build_config, changed_config
from recbole_diffgrm.data.dataset import FlatSequentialDataset, load_dataset
from recbole_diffgrm.data.loader import EvalLoader, TrainLoader
from recbole_diffgrm.data.prepare import check_files
from recbole_diffgrm.data.sequences import training_rows
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.evaluation.evaluate import Evaluation, evaluate, evaluate_rankings
from recbole_diffgrm.running import environment, inputs, items, rundir
from recbole_diffgrm.running.result import RunResult
from recbole_diffgrm.training import checkpoint
from recbole_diffgrm.training.stop import StopSignal
from recbole_diffgrm.training.trainer import Progress, Trainer

logger = logging.getLogger(__name__)


def run(
    model: str,
    dataset: str,
    config_files: str | Path | Sequence[str | Path] = (),
    *,
    resume: bool = False,
    **overrides: Any,
) -> RunResult:
    """Train and test one model. `overrides` are configuration keys, as on the command line.

    >>> result = run("SASRec", "ml-100k", epochs=5)
    >>> result.test["ndcg@10"]
    """
    return execute(build_config(model, dataset, config_files, overrides), resume=resume)


def retest(run_dir: str | Path, **changes: Any) -> RunResult:
    """A finished run's weights with other settings of validation and test, without training.

    >>> retest("runs/ml-100k/DiffGRM-...", beam_size=64)
    """
    finished = RunResult.load(Path(run_dir))
    return execute(tested_differently(finished.model, finished.dataset, finished.config, changes), weights=finished)


def tested_differently(model: str, dataset: str, values: dict[str, Any], changes: dict[str, Any]) -> Config:
    """A configuration of which only what validation and test read is changed."""
    usable = sorted((READ_BY_TESTS | WITHOUT_INFLUENCE) & set(values))
    for key in changes:
        if key not in usable:
            raise UserError(f"{key} cannot be changed without training anew: only {', '.join(usable)} can")
    return changed_config(model, dataset, values, changes, longest_list=True)


def execute(
    config: Config, *, resume: bool = False, reuse: bool = False, weights: RunResult | None = None
) -> RunResult:
    """`resume` continues the latest unfinished run of this configuration; `reuse` returns a finished one. With the
    `weights` of another run nothing is trained."""
    check_files(config)
    config_hash = rundir.identity(config, weights)
    finished = rundir.latest_finished(config, config_hash) if reuse or resume else None
    if finished and config["save_topk"] > finished.config["save_topk"]:
        finished = None  # it lacks the lists that are asked for
    unfinished = rundir.latest_unfinished(config, config_hash) if resume and not (reuse and finished) else None
    if finished and unfinished is None:
        _announce(finished)
        return finished
    environment.reset_peak_memory()
    try:
        dataset = load_dataset(config)
        parts = dataset.build()  # before there is a run directory: data that cannot be used leave none
        inputs.attach(config, dataset, parts)
        directory = unfinished or rundir.create(config, config_hash)
    except BaseException:
        if unfinished:
            unfinished.close()
        raise
    try:
        with rundir.logging_to(directory.path, config["state"]), StopSignal(directory.path) as stop:
            logger.info(f"{config.model} on {config.dataset}, seed {config['seed']}: {directory.path}")
            if resume and unfinished is None:
                logger.info("no unfinished run of this configuration: started a new one")
            return _Run(config, config_hash, directory.path, stop, weights).finish(dataset, *parts)
    except Exception:
        with (directory.path / "log.txt").open("a", encoding="utf-8") as log:
            log.write(traceback.format_exc())
        raise
    finally:
        directory.close()


def _announce(finished: RunResult) -> None:
    """Say that a run is used again, and whether something it may depend on has changed since."""
    print(f"{finished.model} on {finished.dataset}, seed {finished.seed}: finished already, in {finished.run_dir}")
    now = environment.describe()
    for part in ("commit", "versions", "threads"):
        if finished.environment[part] != now[part]:
            print(f"  {part} then: {finished.environment[part]}; now: {now[part]}. --rerun trains it anew")


@dataclass
class _Run:
    config: Config
    config_hash: str
    path: Path
    stop: StopSignal
    weights: RunResult | None = None

    def finish(self, dataset: FlatSequentialDataset, train_set, valid_set, test_set) -> RunResult:
        """From wherever the run stands to its result."""
        config = self.config
        described = environment.describe()  # now: the checkout may change while the run goes on
        if config["reproducibility"] and torch.cuda.is_available():
            torch.use_deterministic_algorithms(True, warn_only=True)
        trim = compat.takes_variable_length(config.model_class)
        train = TrainLoader(config, train_set, trim)
        flat = dataset.inter_feat.flat
        rows = training_rows(flat, [valid_set.inter_feat, test_set.inter_feat])
        # Targets, as RecBole counts them; the same for all models, whichever of them they train on.
        counts = Counter(flat.item[rows[flat.position[rows] > 0]].tolist())
        if config["valid_users"]:
            valid_set = _drawn(valid_set, config["valid_users"], config["seed"])
        valid = EvalLoader(config, valid_set, trim, counts) if len(valid_set) else None
        test = EvalLoader(config, test_set, trim, counts) if len(test_set) else None
        statistics = dataset.statistics() | {
            "train_samples": len(train_set),
            "valid_users": len(valid_set),
            "test_users": len(test_set),
        }
        items.save(config, dataset, self.path)
        logger.info(
            "{users:,} users, {items:,} items, {interactions:,} interactions; {train_samples:,} training samples, "
            "{valid_users:,} validation and {test_users:,} test users".format(**statistics)
        )

        compat.keep_freed_memory()
        init_seed(config["seed"], config["reproducibility"])
        with SummaryWriter(str(self.path / "tensorboard")) as writer:
            model, progress = self._train(train, valid, train_set, writer)
            model.load_state_dict(checkpoint.load(self.path / "best.pt", config["device"])["state_dict"])
            valid_metrics = progress.best_metrics
            if valid and not valid_metrics:
                valid_metrics = evaluate(config, model, valid, check_stop=self.stop.check, validation=True).metrics
            started = time.monotonic()
            test_metrics: dict[str, float] = {}
            test_new: dict[str, float] = {}
            in_validation = {entry["epoch"]: entry.get("sid_shares", {}) for entry in progress.curve}
            sid_shares = in_validation.get(progress.best_epoch, {})
            if test:
                asked, new = evaluate_rankings(
                    config,
                    model,
                    test,
                    [not config["repeatable"], True],
                    config["save_topk"],
                    label="test",
                    check_stop=self.stop.check,
                )
                test_metrics, test_new, sid_shares = asked.metrics, new.metrics, asked.sid_shares
                self._save_rankings(test_set, asked, new)
                for name, value in test_metrics.items():
                    writer.add_scalar(f"test/{name}", value, progress.best_epoch or 0)
        result = RunResult(
            model=config.model,
            dataset=config.dataset,
            seed=config["seed"],
            config_hash=self.config_hash,
            run_dir=self.path,
            valid=valid_metrics,
            test=test_metrics,
            test_new=test_new,
            weights_of=self.weights.config_hash if self.weights else "",
            sid_shares=sid_shares,
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
        result.save()
        logger.info("test " + ", ".join(f"{name} {value:.4f}" for name, value in test_metrics.items()))
        return result

    def _train(self, train: TrainLoader, valid: EvalLoader | None, train_set, writer) -> tuple[Any, Progress]:
        """All stages of a model's training, from the checkpoint if there is one."""
        state_path = self.path / "state.pt"
        state = checkpoint.load(state_path, self.config["device"]) if state_path.exists() else None
        if not compat.learns(self.config.model_class):
            model = self.config.model_class(self.config, train_set).to(self.config["device"])
            checkpoint.save({"state_dict": model.state_dict()}, self.path / "best.pt")
            return model, Progress(finished=True)
        if self.weights:
            model = self.config.model_class(self.config, train_set).to(self.config["device"])
            checkpoint.save(checkpoint.load(self.weights.run_dir / "best.pt"), self.path / "best.pt")
            trained = Progress(finished=True, epoch=self.weights.epochs, curve=self.weights.curve)
            trained.best_epoch = self.weights.best_epoch
            return model, trained
        on_cpu = torch.device(self.config["device"]).type == "cpu"
        if self.config["enable_amp"] and on_cpu and not environment.has_bfloat16():
            logger.warning("this processor has no bfloat16 instructions: --enable_amp=False may be faster")
        stages = _stages(self.config)
        names = [name for name, _ in stages]
        first = names.index(state["progress"]["stage"]) if state else 0
        progress = Progress()
        for number, (name, epochs) in enumerate(stages[first:], start=first):
            is_last = number == len(stages) - 1
            if name == "finetune":
                self.config["train_stage"] = "finetune"
                self.config["pre_model_path"] = str(self.path / "pretrained.pt")
            model = self.config.model_class(self.config, train_set).to(self.config["device"])
            progress = Progress(
                stage=name,
                curve=progress.curve,
                train_seconds=progress.train_seconds,
            )
            trainer = Trainer(self.config, model, self.path, writer, self.stop, progress)
            if state:
                trainer.restore(state)
                state = None
                logger.info(f"resumed in {name} epoch {trainer.progress.epoch + 1}, batch {trainer.progress.batch + 1}")
            # S3Rec is pre-trained on whole sequences, as its authors do, not on every prefix of them.
            samples = train if is_last else TrainLoader(self.config, _longest(train_set), train.trim)
            trainer.fit(samples, valid if is_last else None, epochs)
            progress = trainer.progress
            if not is_last:
                checkpoint.save(checkpoint.load(self.path / "best.pt"), self.path / "pretrained.pt")
        return model, progress

    def _save_rankings(self, test_set: FlatSequentialDataset, asked: Evaluation, new: Evaluation) -> None:
        """ranks.npz: rank of each test user's target and of its ID, and the same with the histories left out (_new);
        topk.tsv: their best items, where asked for."""
        samples = test_set.inter_feat
        user = test_set.id2token(test_set.uid_field, samples[test_set.uid_field])
        target = test_set.id2token(test_set.iid_field, samples[test_set.iid_field])
        np.savez_compressed(
            self.path / "ranks.npz",
            user=np.asarray(user, dtype=str),
            target=np.asarray(target, dtype=str),
            rank=asked.ranks.numpy(),
            rank_new=new.ranks.numpy(),
            **(
                {"sid_rank": asked.sid_ranks.numpy(), "sid_rank_new": new.sid_ranks.numpy()}
                if asked.sid_ranks is not None
                else {}
            ),
        )
        if asked.top is not None:
            with (self.path / "topk.tsv").open("w", encoding="utf-8") as file:
                file.write("user_id\trank\titem_id\n")
                for name, items in zip(user, test_set.id2token(test_set.iid_field, asked.top)):
                    for rank, item in enumerate(items, start=1):
                        if item != "[PAD]":
                            file.write(f"{name}\t{rank}\t{item}\n")


def _stages(config: Config) -> list[tuple[str, int]]:
    """(name, epochs) of each stage of training, in order."""
    if config.model == "S3Rec":
        return [("pretrain", config["pretrain_epochs"]), ("finetune", config["epochs"])]
    return [("train", config["epochs"])]


def _drawn(dataset: FlatSequentialDataset, users: int, seed: int) -> FlatSequentialDataset:
    """So many of its samples, in their order."""
    samples = dataset.inter_feat
    chosen = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed))[:users].sort().values
    return dataset.copy(samples.select(samples.rows[chosen]))


def _longest(dataset: FlatSequentialDataset) -> FlatSequentialDataset:
    return dataset.copy(dataset.inter_feat.last_of_each_user())

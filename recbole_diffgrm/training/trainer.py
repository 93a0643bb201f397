"""The training loop of every model: schedule, clipping, averaging, early stopping on unrounded scores, resumption.

RecBole's Trainer keeps only the best weights and pickles its whole configuration with them, so nothing can be resumed.
Here `state.pt` holds everything the next step depends on (weights, optimizer, random generators, position in the epoch)
and `best.pt` the weights that scored best in validation.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from recbole_diffgrm import checkpoint, memory
from recbole_diffgrm.data.loader import EvalLoader, TrainLoader
from recbole_diffgrm.errors import Interrupted, UserError, divergence_error
from recbole_diffgrm.evaluation.evaluator import Evaluation, asked_ranking, evaluate
from recbole_diffgrm.models.base import LossOutput
from recbole_diffgrm.progress import progress_bar
from recbole_diffgrm.training.learned_state import learned_state, load_learned
from recbole_diffgrm.training.lr_schedule import rate_factor
from recbole_diffgrm.training.random_state import get_random_state, set_random_state
from recbole_diffgrm.training.signals import StopSignal
from recbole_diffgrm.training.tracking import Tracking, epoch_scalars
from recbole_diffgrm.words import count

logger = logging.getLogger(__name__)

OPTIMIZERS = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
}


@dataclass
class Progress:
    """Where training stands. Plain data, saved in every checkpoint."""

    stage: str = "train"
    epoch: int = 0  # current epoch, from 0
    batch: int = 0  # batches of it that are done
    step: int = 0  # optimizer steps done
    loss_sums: dict[str, float] = field(default_factory=dict)  # over the batches done, for each part of the loss
    statistic_sums: dict[str, list[float]] = field(default_factory=dict)  # the same of the model's statistics
    num_targets: int = 0  # the same of the targets predicted
    best_score: float | None = None
    best_epoch: int | None = None
    best_metrics: dict[str, float] = field(default_factory=dict)
    misses: int = 0  # evaluations since the best one
    finished: bool = False
    curve: list[dict[str, Any]] = field(default_factory=list)  # one entry per epoch
    epoch_seconds: float = 0.0  # training time of the current epoch
    train_seconds: float = 0.0
    valid_seconds: float = 0.0


# Asked before every epoch; True ends training there and leaves it unfinished.
GiveUp = Callable[[Progress], bool]


class Trainer:
    def __init__(self, config, model, run_dir: Path, tracker: Tracking, stop: StopSignal, progress: Progress):
        self.config = config
        self.model = model
        self.tracker = tracker
        self.stop = stop
        self.progress = progress
        self.state_path = run_dir / "state.pt"
        self.best_path = run_dir / "best.pt"
        self.device = torch.device(config["device"])
        self.optimizer = OPTIMIZERS[config["learner"]](
            model.parameters(), lr=config["learning_rate"], weight_decay=config["weight_decay"]
        )
        self.scaler = torch.amp.GradScaler(
            self.device.type, enabled=config["enable_amp"] and self.device.type == "cuda"
        )
        self.average = None
        if config["ema_decay"] is not None:
            self.average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(config["ema_decay"]))
        # Lengths of histories differ from batch to batch: dynamic, or each would be compiled anew.
        self.losses = torch.compile(model.losses, dynamic=True) if config["compile"] else model.losses
        self.saved_at = time.monotonic()

    @property
    def evaluated(self):
        """The model that is evaluated and kept: the averaged one, where there is one."""
        return self.average.module if self.average else self.model

    def restore(self, state: dict[str, Any]) -> None:
        """Continue exactly where a checkpoint of `save_state` was written."""
        load_learned(self.model, state["model"])
        if self.average:
            load_learned(self.average.module, state["average"])
            self.average.n_averaged.fill_(state["num_averaged"])
        self.optimizer.load_state_dict(state["optimizer"])
        if state["scaler"]:  # empty where there was no GPU
            self.scaler.load_state_dict(state["scaler"])
        self.progress = Progress(**state["progress"])
        set_random_state(state["random"])

    def save_state(self) -> None:
        content = {
            "model": learned_state(self.model),
            "average": learned_state(self.average.module) if self.average else {},
            "num_averaged": int(self.average.n_averaged) if self.average else 0,
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "progress": asdict(self.progress),
            "random": get_random_state(),
        }
        checkpoint.save(content, self.state_path)
        self.saved_at = time.monotonic()

    def fit(
        self, train: TrainLoader, valid: EvalLoader | None, epochs: int, give_up: GiveUp = lambda progress: False
    ) -> None:
        """Train to the end or to early stopping. `valid` None: no selection, the last weights are the best."""
        progress = self.progress
        if not progress.finished and progress.epoch < epochs:
            logger.info(
                f"{progress.stage}: at most {count(epochs, 'epoch')} of {count(len(train), 'batch', 'batches')}"
            )
        while not progress.finished and progress.epoch < epochs:
            if give_up(progress):
                return
            if progress.batch < len(train):
                self._train_epoch(train, epochs)
            self._end_epoch(train, valid, epochs)
        if not progress.finished:  # nothing to train: epochs is 0
            self._finish()

    def _train_epoch(self, train: TrainLoader, epochs: int) -> None:
        progress, config = self.progress, self.config
        total_steps = epochs * len(train)
        self.model.train()
        bar = progress_bar(
            total=len(train),
            initial=progress.batch,
            desc=f"{progress.stage} epoch {progress.epoch + 1} of {epochs}",
            unit="batch",
            show=config["show_progress"],
            leave=False,
        )
        started = time.monotonic()
        with bar:
            for batch in train.batches(progress.epoch, start=progress.batch):
                rate = config["learning_rate"] * rate_factor(
                    config["scheduler"], progress.step, config["warmup_steps"], total_steps
                )
                self._add_up(self._step(batch, rate))
                progress.batch += 1
                progress.step += 1
                bar.set_postfix_str(f"loss {sum(progress.loss_sums.values()) / progress.batch:.4f}", refresh=False)
                bar.update()
                now = time.monotonic()
                is_due = now - self.saved_at > config["checkpoint_seconds"]
                if is_due or self.stop.received is not None or progress.batch == len(train):
                    progress.epoch_seconds += now - started
                    started = now
                    self.save_state()
                    self.stop.check()

    def _add_up(self, output: LossOutput) -> None:
        """Losses and statistics of a batch to those of the epoch."""
        progress = self.progress
        for name, part in output.parts.items():
            progress.loss_sums[name] = progress.loss_sums.get(name, 0.0) + part.item()
        if output.statistics:
            # At once: on a GPU each reading waits for all work.
            values = torch.stack(list(output.statistics.values())).tolist()
            for name, added in zip(output.statistics, values):
                sums = progress.statistic_sums.get(name, [0.0] * len(added))
                progress.statistic_sums[name] = [total + value for total, value in zip(sums, added)]
        progress.num_targets += output.num_targets

    def _step(self, batch, rate: float) -> LossOutput:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad()
        with torch.autocast(self.device.type, enabled=self.config["enable_amp"]):
            output = self._losses(batch.to(self.device))
        loss = reduce(add, output.parts.values())
        if torch.isnan(loss):
            raise divergence_error(
                f"the training loss became NaN in epoch {self.progress.epoch + 1}, batch {self.progress.batch + 1}"
            )
        self.scaler.scale(loss).backward()
        if self.config["clip_grad_norm"]:
            self.scaler.unscale_(self.optimizer)
            clip_grad_norm_(self.model.parameters(), self.config["clip_grad_norm"])
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.average:
            self.average.update_parameters(self.model)
        return output

    def _losses(self, batch) -> LossOutput:
        try:
            return self.losses(batch)
        except RuntimeError as error:
            if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
                raise
            reason = str(error).strip().splitlines()[0]
            raise UserError(f"compile: torch.compile failed here ({reason}); set compile to False") from error

    def _end_epoch(self, train: TrainLoader, valid: EvalLoader | None, epochs: int) -> None:
        progress = self.progress
        # Batches of ever other sizes leave holes in the memory that is kept (memory.keep_freed_memory).
        memory.release_freed_memory()
        if not all(torch.isfinite(parameter).all() for parameter in self.model.parameters()):
            raise divergence_error(f"weights became NaN or infinite in epoch {progress.epoch + 1}")
        losses = {name: total / len(train) for name, total in progress.loss_sums.items()}
        entry = {
            "stage": progress.stage,
            "epoch": progress.epoch + 1,
            "loss": sum(losses.values()),
            "num_targets": progress.num_targets,
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "seconds": progress.epoch_seconds,
        }
        if len(losses) > 1:
            entry["loss_parts"] = losses
        if progress.statistic_sums:
            entry["statistics"] = self.model.summarize_statistics(progress.statistic_sums, progress.epoch + 1)
        line = f"{progress.stage} epoch {progress.epoch + 1}: loss {entry['loss']:.4f}, {progress.epoch_seconds:.1f} s"
        is_last = progress.epoch + 1 == epochs
        is_due = progress.epoch + 1 >= self.config["eval_from"] and (progress.epoch + 1) % self.config["eval_step"] == 0
        if valid is not None and (is_due or is_last):
            evaluation = self._validate(valid)
            entry["valid"] = evaluation.metrics
            if evaluation.sid_shares:
                entry["sid_shares"] = evaluation.sid_shares
            entry["score"] = self.config.valid_metric_terms.score(entry["valid"])
            line += f"; validation {self.config['valid_metric']} {entry['score']:.6f}"
            if self._is_best(entry["score"], entry["valid"]):
                line += " (best)"
        logger.info(line)
        self.tracker.log(epoch_scalars(entry), entry["epoch"])
        progress.curve.append(entry)
        progress.train_seconds += progress.epoch_seconds
        progress.epoch, progress.batch, progress.epoch_seconds = progress.epoch + 1, 0, 0.0
        progress.loss_sums, progress.statistic_sums, progress.num_targets = {}, {}, 0
        stops_early = valid is not None and progress.misses >= self.config["stopping_step"]
        if stops_early:
            logger.info(f"early stopping: no better score in {count(progress.misses, 'evaluation')}")
        if stops_early or is_last:
            self._finish()
        else:
            self.save_state()
            self.stop.check()

    def _validate(self, valid: EvalLoader) -> Evaluation:
        started = time.monotonic()
        try:
            evaluation = evaluate(
                self.config, self.evaluated, valid, label="validation", check_stop=self.stop.check, validation=True
            )[asked_ranking(self.config)]
        except Interrupted:
            logger.info("stopped during validation: it will be done again on resumption")
            raise
        self.progress.valid_seconds += time.monotonic() - started
        return evaluation

    def _is_best(self, score: float, metrics: dict[str, float]) -> bool:
        progress = self.progress
        if progress.best_score is not None and score <= progress.best_score:
            progress.misses += 1
            return False
        progress.best_score, progress.best_epoch, progress.best_metrics = score, progress.epoch + 1, metrics
        progress.misses = 0
        self._save_best()
        return True

    def _finish(self) -> None:
        if self.progress.best_epoch is None:  # never validated
            self._save_best()
        self.progress.finished = True
        self.save_state()

    def _save_best(self) -> None:
        checkpoint.save({"state_dict": self.evaluated.state_dict()}, self.best_path)

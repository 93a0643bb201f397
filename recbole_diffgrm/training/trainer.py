"""The training loop of every model: schedule, clipping, averaging, early stopping on unrounded scores, resumption.

RecBole's Trainer keeps only the best weights and pickles its whole configuration with them, so nothing can be resumed.
Here `state.pt` holds all that the next step depends on (weights, optimiser, random generators, position in the epoch)
and `best.pt` the weights that scored best in validation.

A model may say more of its training than the loss: `step_sums`, named vectors of one length out of its last
`calculate_loss`, are added up over an epoch and given to its `epoch_statistics`, which makes numbers for people.
"""

import logging
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from recbole_diffgrm.data.loader import EvalLoader, TrainLoader
from recbole_diffgrm.errors import Interrupted, UserError
from recbole_diffgrm.evaluation.evaluate import Evaluation, evaluate
from recbole_diffgrm.training import checkpoint
from recbole_diffgrm.training.schedule import rate_factor
from recbole_diffgrm.training.stop import StopSignal

logger = logging.getLogger(__name__)

OPTIMISERS = {
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
    epoch: int = 0  # the epoch in work, from 0
    batch: int = 0  # its batches done
    step: int = 0  # optimiser steps done
    loss_sums: list[float] = field(default_factory=list)  # over the batches done, one per part of the loss
    model_sums: dict[str, list[float]] = field(default_factory=dict)  # the same of the model's step_sums
    best_score: float | None = None
    best_epoch: int | None = None
    best_metrics: dict[str, float] = field(default_factory=dict)
    misses: int = 0  # evaluations since the best one
    finished: bool = False
    curve: list[dict[str, Any]] = field(default_factory=list)  # one entry per epoch
    epoch_seconds: float = 0.0  # training time of the epoch in work
    train_seconds: float = 0.0
    valid_seconds: float = 0.0


class Trainer:
    def __init__(self, config, model, run_dir: Path, writer: SummaryWriter, stop: StopSignal, progress: Progress):
        self.config = config
        self.model = model
        self.writer = writer
        self.stop = stop
        self.progress = progress
        self.state_path = run_dir / "state.pt"
        self.best_path = run_dir / "best.pt"
        self.device = torch.device(config["device"])
        self.optimizer = OPTIMISERS[config["learner"]](
            model.parameters(), lr=config["learning_rate"], weight_decay=config["weight_decay"]
        )
        self.scaler = torch.amp.GradScaler(
            self.device.type, enabled=config["enable_amp"] and self.device.type == "cuda"
        )
        self.average = None
        if config["ema_decay"] is not None:
            self.average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(config["ema_decay"]))
        # Lengths of histories differ from batch to batch: dynamic, or each would be compiled anew.
        self.loss_of = torch.compile(model.calculate_loss, dynamic=True) if config["compile"] else model.calculate_loss
        self.saved_at = time.monotonic()

    @property
    def evaluated(self):
        """The model that is evaluated and kept: the averaged one, where there is one."""
        return self.average.module if self.average else self.model

    def restore(self, state: dict[str, Any]) -> None:
        """Continue exactly where a checkpoint of `save_state` was written."""
        self.model.load_state_dict(state["model"])
        if self.average:
            self.average.load_state_dict(state["average"])
        self.optimizer.load_state_dict(state["optimizer"])
        if state["scaler"]:  # empty where there was no GPU
            self.scaler.load_state_dict(state["scaler"])
        self.progress = Progress(**state["progress"])
        checkpoint.set_random_state(state["random"])

    def save_state(self) -> None:
        content = {
            "model": self.model.state_dict(),
            "average": self.average.state_dict() if self.average else {},
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "progress": asdict(self.progress),
            "random": checkpoint.random_state(),
        }
        checkpoint.save(content, self.state_path)
        self.saved_at = time.monotonic()

    def fit(self, train: TrainLoader, valid: EvalLoader | None, epochs: int) -> None:
        """Train to the end or to early stopping. `valid` None: no selection, the last weights are the best."""
        progress = self.progress
        while not progress.finished and progress.epoch < epochs:
            if progress.batch < len(train):
                self._train_epoch(train, epochs)
            self._end_epoch(train, valid, epochs)
        if not progress.finished:  # nothing to train: epochs is 0
            self._finish()

    def _train_epoch(self, train: TrainLoader, epochs: int) -> None:
        progress, config = self.progress, self.config
        total_steps = epochs * len(train)
        self.model.train()
        bar = tqdm(
            total=len(train),
            initial=progress.batch,
            desc=f"{progress.stage} {progress.epoch + 1}/{epochs}",
            unit="batch",
            disable=None if config["show_progress"] else True,
            leave=False,
        )
        started = time.monotonic()
        with bar:
            for batch in train.batches(progress.epoch, start=progress.batch):
                rate = config["learning_rate"] * rate_factor(
                    config["scheduler"], progress.step, config["warmup_steps"], total_steps
                )
                progress.loss_sums = _added(progress.loss_sums, self._step(batch, rate))
                self._add_up(getattr(self.model, "step_sums", {}))
                progress.batch += 1
                progress.step += 1
                bar.update()
                now = time.monotonic()
                is_due = now - self.saved_at > config["checkpoint_seconds"]
                if is_due or self.stop.received is not None or progress.batch == len(train):
                    progress.epoch_seconds += now - started
                    started = now
                    self.save_state()
                    self.stop.check()

    def _add_up(self, sums: dict[str, torch.Tensor]) -> None:
        if sums:
            values = torch.stack(list(sums.values())).tolist()  # at once: on a GPU each reading waits for all work
            for name, added in zip(sums, values):
                self.progress.model_sums[name] = _added(self.progress.model_sums.get(name), added)

    def _step(self, batch, rate: float) -> list[float]:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad()
        with torch.autocast(self.device.type, enabled=self.config["enable_amp"]):
            losses = self._losses(batch.to(self.device))
        parts = losses if isinstance(losses, tuple) else (losses,)
        loss = sum(parts)
        if torch.isnan(loss):
            raise _diverged(
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
        return [part.item() for part in parts]

    def _losses(self, batch):
        try:
            return self.loss_of(batch)
        except RuntimeError as error:
            if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
                raise
            reason = str(error).strip().splitlines()[0]
            raise UserError(f"compile: torch.compile cannot do it here ({reason}); set compile to False") from error

    def _end_epoch(self, train: TrainLoader, valid: EvalLoader | None, epochs: int) -> None:
        progress = self.progress
        if not all(torch.isfinite(parameter).all() for parameter in self.model.parameters()):
            raise _diverged(f"weights became NaN or infinite in epoch {progress.epoch + 1}")
        losses = [total / len(train) for total in progress.loss_sums]
        entry = {
            "stage": progress.stage,
            "epoch": progress.epoch + 1,
            "loss": sum(losses),
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "seconds": progress.epoch_seconds,
        }
        if len(losses) > 1:
            entry["loss_parts"] = losses
        if progress.model_sums:
            entry["statistics"] = self.model.epoch_statistics(progress.model_sums, progress.epoch + 1)
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
        self._log_to_tensorboard(entry)
        progress.curve.append(entry)
        progress.train_seconds += progress.epoch_seconds
        progress.epoch, progress.batch, progress.epoch_seconds = progress.epoch + 1, 0, 0.0
        progress.loss_sums, progress.model_sums = [], {}
        stops_early = valid is not None and progress.misses >= self.config["stopping_step"]
        if stops_early:
            logger.info(f"no better score in {progress.misses} evaluations: stopped")
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
            )
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

    def _log_to_tensorboard(self, entry: dict[str, Any]) -> None:
        stage, epoch = entry["stage"], entry["epoch"]
        self.writer.add_scalar(f"{stage}/loss", entry["loss"], epoch)
        self.writer.add_scalar(f"{stage}/learning_rate", entry["learning_rate"], epoch)
        self.writer.add_scalar(f"{stage}/seconds", entry["seconds"], epoch)
        for name, value in entry.get("statistics", {}).items():
            if not isinstance(value, list):
                self.writer.add_scalar(f"{stage}/{name}", value, epoch)
                continue
            for number, part in enumerate(value, start=1):
                self.writer.add_scalar(f"{stage}/{name}/{number}", part, epoch)
        for name, value in entry.get("valid", {}).items():
            self.writer.add_scalar(f"valid/{name}", value, epoch)
        if "score" in entry:
            self.writer.add_scalar("valid/score", entry["score"], epoch)
        self.writer.flush()


def _added(sums: list[float] | None, values: list[float]) -> list[float]:
    return [total + value for total, value in zip(sums, values)] if sums else values


def _diverged(what: str) -> UserError:
    return UserError(f"{what}: lower learning_rate or set clip_grad_norm")

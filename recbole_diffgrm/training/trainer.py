"""The training loop of every model: schedule, clipping, averaging, early stopping on unrounded scores, resumption.

RecBole's Trainer keeps only the best weights and pickles its whole configuration with them, so nothing can be resumed.
Here `state.pt` holds everything the next step depends on (weights, optimizer, random generators, position in the epoch)
and `best.pt` the weights that scored best in validation.

Of several processes (recbole_diffgrm.processes) each trains on its share of every batch. They agree on losses, signals
and the time for a checkpoint at every step (training.exchange), so all of them do the same thing next.
"""

import logging
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import torch
from recbole.data.interaction import Interaction
from recbole.utils import init_seed
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from recbole_diffgrm import checkpoint, memory, processes
from recbole_diffgrm.data.loader import EvalLoader, TrainLoader, to_device
from recbole_diffgrm.errors import Interrupted, UserError, divergence_error
from recbole_diffgrm.evaluation.evaluator import Evaluation, asked_ranking, evaluate
from recbole_diffgrm.models.base import LossOutput
from recbole_diffgrm.progress import progress_bar
from recbole_diffgrm.training.averaging import AveragedWeights
from recbole_diffgrm.training.exchange import StepFacts, exchange
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
        self.parameters = list(model.parameters())
        self.optimizer = OPTIMIZERS[config["learner"]](
            self.parameters, lr=config["learning_rate"], weight_decay=config["weight_decay"]
        )
        self.amp_type = choose_amp_type(self.device)
        uses_scaler = config["enable_amp"] and self.amp_type == torch.float16
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=uses_scaler)
        self.average = None if config["ema_decay"] is None else AveragedWeights(model, config["ema_decay"])
        self.statistics: dict[str, Tensor] = {}  # sums of this process since they were last added up
        # Lengths of histories differ from batch to batch: dynamic, or each would be compiled anew.
        self.losses = torch.compile(model.losses, dynamic=True) if config["compile"] else model.losses
        self.has_share = True  # False where a batch, the last of an epoch, has fewer samples than there are processes
        self.saved_at = time.monotonic()

    @property
    def evaluated(self):
        """The model that is evaluated and kept: the averaged one, where there is one."""
        return self.average.model if self.average else self.model

    def restore(self, state: dict[str, Any]) -> None:
        """Continue exactly where a checkpoint of `save_state` was written."""
        load_learned(self.model, state["model"])
        if self.average:
            load_learned(self.average.model, state["average"])
        self.optimizer.load_state_dict(state["optimizer"])
        if state["scaler"]:  # empty where there was no GPU
            self.scaler.load_state_dict(state["scaler"])
        self.progress = Progress(**state["progress"])
        self._restore_random([state["random"], *state.get("random_of_others", [])])

    def _restore_random(self, states: list[dict[str, Any]]) -> None:
        """Of each process. A run may be continued with another number of them."""
        if len(states) != processes.world():
            logger.warning(
                f"continued with {count(processes.world(), 'process', 'processes')} instead of {len(states)}: samples, "
                "steps and learning rates stay the same, but dropout and other random numbers will be others"
            )
        if processes.rank() < len(states):
            set_random_state(states[processes.rank()])
        else:
            init_seed(
                (self.config["seed"] + processes.rank() + self.progress.step) % 2**32, self.config["reproducibility"]
            )

    def save_state(self) -> None:
        self._add_up_statistics()
        random, *others = processes.every(get_random_state())

        def save() -> None:
            content = {
                "model": learned_state(self.model),
                "average": learned_state(self.average.model) if self.average else {},
                "optimizer": self.optimizer.state_dict(),
                "scaler": self.scaler.state_dict(),
                "progress": asdict(self.progress),
                "random": random,
                "random_of_others": others,
            }
            checkpoint.save(content, self.state_path)

        processes.from_first(save)
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
            if processes.from_first(lambda: give_up(progress)):
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
            for index in train.plan(progress.epoch)[progress.batch :]:
                rate = config["learning_rate"] * rate_factor(
                    config["scheduler"], progress.step, config["warmup_steps"], total_steps
                )
                own = processes.share(index)
                self.has_share = len(own) > 0
                facts = self._step(train.batch(own if self.has_share else index[:1]), rate)
                for name, loss in facts.losses.items():
                    progress.loss_sums[name] = progress.loss_sums.get(name, 0.0) + loss
                progress.num_targets += facts.num_targets
                progress.batch += 1
                progress.step += 1
                bar.set_postfix_str(f"loss {sum(progress.loss_sums.values()) / progress.batch:.4f}", refresh=False)
                bar.update()
                if facts.is_due or facts.signal or progress.batch == len(train):
                    now = time.monotonic()
                    progress.epoch_seconds += now - started
                    started = now
                    self.save_state()
                    self.stop.act_on(facts.signal)

    def _step(self, batch: Interaction, rate: float) -> StepFacts:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad()
        with self._autocast():
            output = self._losses(to_device(batch, self.device, self.config["ITEM_LIST_LENGTH_FIELD"]))
        self.scaler.scale(reduce(add, output.parts.values())).backward()
        # The first process's clock counts.
        is_due = processes.is_first() and time.monotonic() - self.saved_at > self.config["checkpoint_seconds"]
        facts = exchange(self.parameters, output, self.has_share, self.stop.received or 0, is_due)
        if math.isnan(sum(facts.losses.values())):
            raise divergence_error(
                f"the training loss became NaN in epoch {self.progress.epoch + 1}, batch {self.progress.batch + 1}"
            )
        for name, sums in output.statistics.items():
            added = sums.double() * self.has_share
            self.statistics[name] = self.statistics[name] + added if name in self.statistics else added
        if self.config["clip_grad_norm"]:
            self.scaler.unscale_(self.optimizer)
            clip_grad_norm_(self.parameters, self.config["clip_grad_norm"])
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.average:
            self.average.update(is_first=self.progress.step == 0)
        return facts

    def _add_up_statistics(self) -> None:
        """Those of all processes to those of the epoch."""
        if not self.statistics:
            return
        sums = processes.add_up(torch.stack(list(self.statistics.values()))).tolist()
        for name, added in zip(self.statistics, sums):
            before = self.progress.statistic_sums.get(name, [0.0] * len(added))
            self.progress.statistic_sums[name] = [total + value for total, value in zip(before, added)]
        self.statistics = {}

    def _autocast(self) -> AbstractContextManager:
        return torch.autocast(self.device.type, self.amp_type) if self.config["enable_amp"] else nullcontext()

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
        if not torch.stack([torch.isfinite(parameter).all() for parameter in self.parameters]).all():
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
        processes.from_first(lambda: checkpoint.save({"state_dict": self.evaluated.state_dict()}, self.best_path))


def choose_amp_type(device: torch.device) -> torch.dtype:
    """bfloat16, but for GPUs that cannot calculate in it."""
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.float16
    return torch.bfloat16

"""RecBole's Trainer for the project's models: our training loop, RecBole's evaluation and checkpoints."""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from recbole.trainer import Trainer as RecBoleTrainer
from torch import Tensor

from recbole_diffgrm import processes
from recbole_diffgrm.data.loader import EvalLoader, TrainLoader
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.evaluation.evaluator import asked_ranking, evaluate
from recbole_diffgrm.generation.item_ranking import top_items
from recbole_diffgrm.models.base import users_per_batch
from recbole_diffgrm.training import trainer as training
from recbole_diffgrm.training.signals import StopSignal
from recbole_diffgrm.training.tracking import Tracking


class StockTrainer(RecBoleTrainer):
    """`fit` trains as recbole_diffgrm.run does, to the same weights; afterwards the model has the best ones."""

    best_valid_result: dict[str, float] | None

    def _build_optimizer(self, **kwargs):
        if self.model.trainable:
            return super()._build_optimizer(**kwargs)
        return torch.optim.SGD([torch.zeros(1)])  # of nothing: RecBole's checkpoints must have one

    def fit(self, train_data, valid_data=None, verbose=True, saved=True, show_progress=False, callback_fn=None):
        if processes.world() > 1:
            raise UserError("RecBole's own functions train in one process: recbole_diffgrm.run works with torchrun")
        self.eval_collector.data_collect(train_data)
        self.config["show_progress"] = show_progress
        valid = self._eval_loader(valid_data.dataset) if valid_data else None
        best_epoch = 0
        if not self.model.trainable and valid is not None:
            evaluation = evaluate(self.config, self.model, valid, validation=True)[asked_ranking(self.config)]
            self.best_valid_result = evaluation.metrics
            self.best_valid_score = self.config.valid_metric_terms.score(evaluation.metrics)
        elif self.model.trainable:
            training.logger.disabled = not verbose
            try:
                best_epoch = self._train(train_data.dataset, valid, saved, callback_fn)
            finally:
                training.logger.disabled = False
        if (self.model.finish_training() or not self.model.trainable) and saved:
            self._save_checkpoint(best_epoch - 1, verbose=verbose)
        return self.best_valid_score, self.best_valid_result

    def _train(self, train_set, valid: EvalLoader | None, saved: bool, callback_fn: Callable | None) -> int:
        """Returns the best epoch, from 1."""
        stages = self.model.stages(self.config)
        if len(stages) > 1:
            raise UserError(f"{self.config.model} is trained in several stages: use recbole_diffgrm.run")
        train = TrainLoader(self.config, train_set, self.model.variable_length)
        loop = _Loop(self, saved, callback_fn, steps_per_epoch=len(train))
        loop.fit(train, valid, stages[0].epochs)
        self.model.load_state_dict(loop.best_weights)
        progress = loop.progress
        self.train_loss_dict |= {entry["epoch"] - 1: entry["loss"] for entry in progress.curve}
        self.best_valid_result = progress.best_metrics or None
        return progress.best_epoch or progress.epoch

    def _eval_loader(self, dataset) -> EvalLoader:
        batch_size = users_per_batch(self.config, dataset.item_num)
        return EvalLoader(self.config, dataset, self.model.variable_length, batch_size, dataset.item_counter)

    def _full_sort_batch_eval(self, batched_data):
        interaction, scores, *targets = super()._full_sort_batch_eval(batched_data)
        return interaction, break_ties(scores, max(self.config["topk"])), *targets


def break_ties(scores: Tensor, k: int) -> Tensor:
    """Raise the k best scores of each row, if at all by the smallest steps there are, so that none are equal and the
    smaller item number comes first, as everywhere in the project. torch.topk leaves the order of equal scores open."""
    items = top_items(scores, k)
    best = scores.gather(1, items)  # [B, k]
    infinity = scores.new_tensor(torch.inf)
    above = best[:, -1]
    for rank in reversed(range(best.shape[1])):
        above = torch.maximum(best[:, rank], torch.nextafter(above, infinity))
        above = best[:, rank] = torch.where(best[:, rank] > -infinity, above, best[:, rank])
    return scores.scatter(1, items, best)


class _StockTensorBoard:
    """Numbers go to the writer that RecBole's trainer has opened, and will close."""

    title = "TensorBoard"

    def __init__(self, writer: Any):
        self.writer = writer

    def log(self, scalars: Mapping[str, float], epoch: int) -> None:
        for name, value in scalars.items():
            self.writer.add_scalar(name, value, epoch)

    def close(self, finished: bool) -> None:
        self.writer.flush()


class _Loop(training.Trainer):
    """The training loop, whose only checkpoint is RecBole's: the best weights."""

    best_weights: dict[str, Any]

    def __init__(self, outer: StockTrainer, saved: bool, callback_fn: Callable | None, steps_per_epoch: int):
        epoch = outer.start_epoch  # not 0 after resume_checkpoint, which has loaded the best weights
        progress = training.Progress(epoch=epoch, step=epoch * steps_per_epoch)
        if epoch:
            progress.best_score, progress.best_epoch = float(outer.best_valid_score), epoch
        folder = Path(outer.checkpoint_dir)
        tracker = Tracking([_StockTensorBoard(outer.tensorboard)])
        super().__init__(outer.config, outer.model, folder, tracker, StopSignal(folder), progress)
        self.outer, self.saved, self.callback_fn = outer, saved, callback_fn
        self.optimizer = outer.optimizer
        self.best_weights = copy.deepcopy(outer.model.state_dict())

    def save_state(self) -> None:
        """RecBole keeps nothing to go on from within an epoch."""

    def _is_best(self, score: float, metrics: dict[str, float]) -> bool:
        is_best = super()._is_best(score, metrics)
        if self.callback_fn:
            self.callback_fn(self.progress.epoch, score)
        return is_best

    def _save_best(self) -> None:
        progress, outer = self.progress, self.outer
        self.best_weights = copy.deepcopy(self.evaluated.state_dict())
        if progress.best_score is not None:
            outer.best_valid_score = progress.best_score
        if self.saved:
            outer.model = self.evaluated  # averaged weights, where there are such
            outer._save_checkpoint((progress.best_epoch or progress.epoch) - 1, verbose=False)
            outer.model = self.model

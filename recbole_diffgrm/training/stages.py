"""All stages of a model's training, one after the other, from a checkpoint if there is one."""

import itertools
import logging
from pathlib import Path
from typing import Any

from recbole.utils import init_seed

from recbole_diffgrm import checkpoint, processes
from recbole_diffgrm.data.dataset import FlatSequentialDataset
from recbole_diffgrm.data.loader import EvalLoader, TrainLoader
from recbole_diffgrm.files import reading
from recbole_diffgrm.models.base import Stage
from recbole_diffgrm.training.signals import StopSignal
from recbole_diffgrm.training.tracking import Tracking
from recbole_diffgrm.training.trainer import GiveUp, Progress, Trainer

logger = logging.getLogger(__name__)

PRETRAINED_FILE = "pretrained.pt"  # best weights of the stage before


def train_stages(
    config,
    train_set: FlatSequentialDataset,
    valid: EvalLoader | None,
    run_dir: Path,
    tracker: Tracking,
    stop: StopSignal,
    give_up: GiveUp = lambda progress: False,
) -> tuple[Any, Progress]:
    """The model and where its training ended; the best weights are in best.pt. Only the last stage is validated."""
    stages = config.model_class.stages(config)
    state_path = run_dir / "state.pt"
    state = checkpoint.load(state_path) if processes.from_first(state_path.exists) else None
    with _reading_state(state_path):
        first = [stage.name for stage in stages].index(state["progress"]["stage"]) if state else 0
    progress, model = Progress(), None
    for number, stage in enumerate(stages[first:], start=first):
        is_last = number == len(stages) - 1
        for key, value in stage.settings.items():
            config[key] = value
        if stage.weights_key:
            config[stage.weights_key] = str(run_dir / PRETRAINED_FILE)
        samples = _select_samples(config, train_set, stage)
        model = _build_model(config, train_set)
        progress = Progress(stage=stage.name, curve=progress.curve, train_seconds=progress.train_seconds)
        trainer = Trainer(config, model, run_dir, tracker, stop, progress)
        if state:
            with _reading_state(state_path):
                trainer.restore(state)
            state = None
            progress = trainer.progress
            logger.info(f"resumed in {stage.name} epoch {progress.epoch + 1}, batch {progress.batch + 1}")
        trainer.fit(samples, valid if is_last else None, stage.epochs, give_up)
        progress = trainer.progress
        if not progress.finished:
            break
        if not is_last:
            processes.from_first(
                lambda: checkpoint.save(checkpoint.load(run_dir / "best.pt"), run_dir / PRETRAINED_FILE)
            )
    return model, progress


def _build_model(config, train_set: FlatSequentialDataset) -> Any:
    """With the same weights in all processes, each of which then has random numbers of its own."""
    model = config.model_class(config, train_set).to(config["device"])
    processes.make_same(itertools.chain(model.parameters(), model.buffers()))
    if not processes.is_first():
        init_seed((config["seed"] + processes.rank()) % 2**32, config["reproducibility"])
    return model


def _reading_state(path: Path):
    """A checkpoint may be whole and yet of another model."""
    return reading(path, if_damaged="it is not of this run; delete the run directory and start again")


def _select_samples(config, train_set: FlatSequentialDataset, stage: Stage) -> TrainLoader:
    if stage.samples == "last_of_each_user":
        train_set = train_set.copy(train_set.inter_feat.last_of_each_user())
    return TrainLoader(config, train_set, config.model_class.variable_length)

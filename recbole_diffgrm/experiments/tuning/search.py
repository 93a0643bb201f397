"""A search of one model on Optuna, in <output_dir>/<dataset>/tune-<Model>-<hash>/.

The hash is that of the settings, the data and the space, so the same command goes on with the same search. Trials are
in journal.log (Optuna's); each trains in an ordinary run directory and is not tested. Several processes may share a
search: whoever works on a trial holds its lock until the process ends, so a trial that is RUNNING in the journal and
whose lock is free was left behind, and is continued.
"""

import hashlib
import itertools
import json
import logging
import random
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from filelock import FileLock, Timeout
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import TrialState

from recbole_diffgrm.config.protocol import held_out_parts
from recbole_diffgrm.config.recbole_config import Config
from recbole_diffgrm.errors import Interrupted, UserError
from recbole_diffgrm.experiments import run_directory
from recbole_diffgrm.experiments.pipeline import run_config, train_config
from recbole_diffgrm.experiments.result import RunResult
from recbole_diffgrm.experiments.tuning.space import Choice, Space, as_plain_data
from recbole_diffgrm.files import make_folder
from recbole_diffgrm.training.trainer import Progress

DEFAULT_TRIALS = 20
STARTUP_TRIALS = 5  # of the pruner: as many are trained to the end before one is given up

logger = logging.getLogger(__name__)
optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(frozen=True)
class Search:
    model: str
    base: Config  # what trials vary
    build: Callable[[dict[str, Any]], Config]  # the base with some values changed
    space: Space
    sampler: str = "tpe"
    pruner: str = "median"

    @cached_property
    def folder(self) -> Path:
        content = [run_directory.run_hash(self.base), as_plain_data(self.space), self.sampler, self.pruner]
        digest = hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:8]
        return Path(self.base["output_dir"]) / self.base.dataset / f"tune-{self.model}-{digest}"

    @cached_property
    def study(self) -> optuna.Study:
        # A lock that the system frees when its process dies; Optuna's own would be waited for.
        lock: Any = FileLock(self.folder / "journal.lock")
        storage = JournalStorage(JournalFileBackend(str(self.folder / "journal.log"), lock_obj=lock))
        return optuna.create_study(
            storage=storage,
            study_name=self.model,
            direction="maximize",
            load_if_exists=True,
            pruner=self._make_pruner(),
        )

    @cached_property
    def grid(self) -> list[dict[str, Any]]:
        """All combinations, in random order."""
        values = {key: list(searched.choices) for key, searched in self.space.items() if isinstance(searched, Choice)}
        combinations = [dict(zip(values, one)) for one in itertools.product(*values.values())]
        random.Random(self.base["seed"]).shuffle(combinations)
        return combinations

    def check(self) -> None:
        if "valid" not in held_out_parts(self.base) or not self.base["epochs"]:
            raise UserError("a search needs validation: epochs above 0, and a split with it, such as valid_and_test")
        if self.sampler == "grid":
            for key, searched in self.space.items():
                if not isinstance(searched, Choice):
                    raise UserError(f"--sampler=grid: {key} is a range; list its values, or use tpe or random")

    def run(self, num_trials: int | None, deadline: float = float("inf")) -> None:
        """Trials until there are `num_trials`, those of other processes included; None: the default."""
        if self.sampler == "grid":
            num_trials = min(num_trials or len(self.grid), len(self.grid))
        num_trials = num_trials or DEFAULT_TRIALS
        make_folder(self.folder)
        while time.monotonic() < deadline:
            with self._claim(num_trials) as trial:
                if trial is None:
                    return
                values = self.values(trial)
                shown = ", ".join(f"{key} {short(value)}" for key, value in values.items())
                print(f"{self.model}, trial {trial.number + 1} of {num_trials}: {shown}", flush=True)
                self._run_trial(trial, values)

    def is_done(self) -> bool:
        return all(trial.state.is_finished() for trial in self.study.get_trials(deepcopy=False))

    def best_trial(self) -> optuna.trial.FrozenTrial | None:
        completed = self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return max(completed, key=lambda trial: trial.value or 0.0, default=None)  # the first of equals

    def best_config(self) -> Config | None:
        best = self.best_trial()
        return self.build(self.values(best)) if best else None

    def test_best(self) -> None:
        """Test the weights of the best trial; nothing is trained."""
        config = self.best_config()
        if config:
            with FileLock(self.folder / "test.lock"):  # two processes may come to the end at once
                run_config(config, resume=True, reuse=True)

    def best_result(self) -> RunResult | None:
        """Of the best trial, if it has been tested."""
        config = self.best_config()
        return run_directory.latest_finished(config, run_directory.run_hash(config)) if config else None

    def values(self, trial: Any) -> dict[str, Any]:
        """Of a trial that has its parameters, in any state."""
        return {key: searched.decode(trial.params[key]) for key, searched in self.space.items() if key in trial.params}

    @contextmanager
    def _claim(self, num_trials: int) -> Iterator[optuna.Trial | None]:
        """A trial to work on, one that was left behind or a new one; None when there is nothing left to start. Who
        works on what is settled under one lock."""
        with self._settling():
            trial, lock = self._take_up() or self._ask(num_trials) or (None, None)
        try:
            yield trial
        finally:
            if lock:
                lock.release()

    def _take_up(self) -> tuple[optuna.Trial, FileLock] | None:
        for left in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            lock = self._trial_lock(left.number)
            try:
                lock.acquire()
            except Timeout:
                continue
            trial = optuna.Trial(self.study, left._trial_id)
            self._suggest(trial)  # it has its values already, unless it was left in this very moment
            return trial, lock
        return None

    def _ask(self, num_trials: int) -> tuple[optuna.Trial, FileLock] | None:
        trials = self.study.get_trials(deepcopy=False)
        is_waiting = any(trial.state == TrialState.WAITING for trial in trials)
        if not is_waiting:
            if len(trials) >= num_trials:
                return None
            if fixed := self._fixed_values(len(trials)):
                self.study.enqueue_trial(fixed)
        trial = self.study.ask()
        lock = self._trial_lock(trial.number)
        lock.acquire()
        self._suggest(trial)
        return trial, lock

    def _fixed_values(self, number: int) -> dict[str, Any]:
        """What a trial does not draw: all in a grid; in the first trial what the configuration says."""
        if self.sampler == "grid":
            return self.grid[number]
        if number:
            return {}
        configured = {key: self.base.values[key] for key in self.space}
        return {
            key: self.space[key].encode(value) for key, value in configured.items() if self.space[key].contains(value)
        }

    def _suggest(self, trial: optuna.Trial) -> None:
        # Anew for each trial, from its number: a search that was stopped, or that several processes share, does not
        # draw the same values again.
        seed = int(np.random.SeedSequence([self.base["seed"], trial.number]).generate_state(1)[0])
        sampler = optuna.samplers.TPESampler if self.sampler == "tpe" else optuna.samplers.RandomSampler
        self.study.sampler = sampler(seed=seed)
        for key, searched in self.space.items():
            searched.suggest(trial, key)

    def _run_trial(self, trial: optuna.Trial, values: dict[str, Any]) -> None:
        has_begun = []

        def give_up(progress: Progress) -> bool:
            has_begun.append(True)
            return self._should_prune(trial, progress)

        try:
            config = self.build(values)
        except UserError as error:  # values that do not go together
            return self._fail(trial, str(error))
        if run_directory.is_running(config, run_directory.run_hash(config)):
            return self._fail(trial, "a run with the same values is running in another process")
        try:
            run_dir, progress = train_config(config, give_up)
        except Interrupted:
            raise
        except Exception as error:  # a trial that fails must not lose the others, as one whose loss becomes NaN
            if not has_begun and not self._has_trained():  # more likely to be wrong with the data than with the values
                raise
            if isinstance(error, UserError):
                return self._fail(trial, str(error))
            traceback.print_exc()
            return self._fail(trial, f"{type(error).__name__}: {error}")
        self._report(trial, progress)
        if progress.finished and progress.best_score is None:
            raise UserError("a search needs validation users, and the split has none")
        return self._finish(
            trial,
            TrialState.COMPLETE if progress.finished else TrialState.PRUNED,
            progress.best_score if progress.finished else None,
            run_dir=run_dir.name,
            epochs=progress.epoch,
            best_epoch=progress.best_epoch,
            seconds=progress.train_seconds + progress.valid_seconds,
        )

    def _has_trained(self) -> bool:
        return bool(self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)))

    def _should_prune(self, trial: optuna.Trial, progress: Progress) -> bool:
        self._report(trial, progress)
        if not trial.should_prune():
            return False
        logger.info(f"given up after epoch {progress.epoch}: below the median of earlier trials; not tested")
        return True

    def _report(self, trial: optuna.Trial, progress: Progress) -> None:
        """All scores that the journal does not have yet: a run that is continued or used again has several."""
        reported = self.study.get_trials(deepcopy=False)[trial.number].intermediate_values
        for entry in progress.curve:
            if "score" in entry and entry["epoch"] not in reported:
                trial.report(entry["score"], entry["epoch"])

    def _fail(self, trial: optuna.Trial, reason: str) -> None:
        self._finish(trial, TrialState.FAIL, reason=reason)

    def _finish(self, trial: optuna.Trial, state: TrialState, score: float | None = None, **attributes: Any) -> None:
        with self._settling():
            for name, value in attributes.items():
                trial.set_user_attr(name, value)
            self.study.tell(trial, score, state)
            Path(self._trial_lock(trial.number).lock_file).unlink(missing_ok=True)
        words = {TrialState.COMPLETE: f"score {score}", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}[state]
        print(f"{self.model}, trial {trial.number + 1}: {attributes.get('reason', words)}", flush=True)

    def _settling(self) -> FileLock:
        return FileLock(self.folder / "claim.lock")

    def _trial_lock(self, number: int) -> FileLock:
        return FileLock(self.folder / f"trial-{number + 1}.lock", timeout=0)

    def _make_pruner(self) -> optuna.pruners.BasePruner:
        if self.pruner == "none":
            return optuna.pruners.NopPruner()
        # Not in the first fifth of the epochs, where a learning rate that warms up slowly looks worse than it is.
        return optuna.pruners.MedianPruner(STARTUP_TRIALS, n_warmup_steps=self.base["epochs"] // 5)


def short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

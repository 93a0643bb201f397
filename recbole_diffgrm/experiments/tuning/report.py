"""What came out of a search, in its folder: tune.md, tune.json, tune.csv, tune.png and best.yaml.

tune.json:

    {"model": "SASRec", "dataset": "ml-100k", "valid_metric": "NDCG@10", "seed": 2020, "space": {...},
     "importances": {"learning_rate": 0.8, ...},      shares that add up to 1; empty with fewer than five trials
     "trials": [{"trial": 3, "state": "complete", "score": 0.1, "values": {...}, "epochs": 9, "best_epoch": 7,
                 "seconds": 12.3, "run_dir": "SASRec-...", "reason": ""}, ...],      best first
     "test": {"all": {"ndcg@10": 0.1, ...}, "unseen": {...}}}      of the best trial; empty before it is tested
"""

import csv
import io
import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import optuna
import yaml
from filelock import FileLock
from optuna.trial import FrozenTrial, TrialState

from recbole_diffgrm.config.recbole_config import Config
from recbole_diffgrm.evaluation.ranks import RANKINGS
from recbole_diffgrm.experiments.results_table import (
    NO_VALUE,
    best_epoch_cell,
    format_table,
    new_figure,
    save_figure,
    shown_metrics,
)
from recbole_diffgrm.experiments.tuning.search import Search, short
from recbole_diffgrm.experiments.tuning.space import Choice, as_plain_data, describe
from recbole_diffgrm.files import write_json, write_text
from recbole_diffgrm.models import build_config

BEST_FILE = "best.yaml"
ORDER = ["complete", "pruned", "running", "waiting", "fail"]
FEWEST_FOR_IMPORTANCES = 5


@dataclass(frozen=True)
class Trial:
    trial: int  # from 1
    state: str
    score: float | None  # the best validation score; of a pruned trial, the best so far
    values: dict[str, Any]
    epochs: int | None
    best_epoch: int | None
    seconds: float | None
    run_dir: str
    reason: str  # why it failed

    @property
    def cells(self) -> list[str]:
        epochs = best_epoch_cell(self.best_epoch, self.epochs or 0) or NO_VALUE
        score = NO_VALUE if self.score is None else f"{self.score:.6f}"
        seconds = NO_VALUE if self.seconds is None else f"{self.seconds:.0f}"
        return [str(self.trial), score, self.reason or self.state, epochs, seconds]


@dataclass(frozen=True)
class Report:
    search: Search
    trials: list[Trial]  # best first
    importances: dict[str, float]  # most important first
    test: dict[str, dict[str, float]]
    best: Config | None

    def __str__(self) -> str:
        """What the command line prints: the ten best trials, and the test of the best."""
        heading = f"{self.search.model} on {self.search.base.dataset}"
        tables = [self.table("screen", most=10), *([self.test_table("screen")] if self.test else [])]
        return "\n\n".join([heading, *tables])

    def _repr_markdown_(self) -> str:
        """In notebooks."""
        return _to_markdown(self)

    def table(self, style: str = "github", most: int | None = None) -> str:
        head = ["trial", self.search.base["valid_metric"], "state", "best epoch", "seconds", *self.search.space]
        body = [
            [*one.cells, *(short(one.values.get(key, NO_VALUE)) for key in self.search.space)]
            for one in self.trials[:most]
        ]
        return format_table(body, head, style)

    def test_table(self, style: str = "github") -> str:
        names = shown_metrics(dict.fromkeys(name for metrics in self.test.values() for name in metrics))
        body = [
            [RANKINGS[ranking], *(f"{metrics[name]:.4f}" if name in metrics else NO_VALUE for name in names)]
            for ranking, metrics in self.test.items()
        ]
        return format_table(body, ["test", *names], style)


def make_report(search: Search) -> Report:
    trials = [_read_trial(search, trial) for trial in search.study.get_trials(deepcopy=False)]
    tested = search.best_result()
    return Report(
        search,
        sorted(trials, key=lambda one: (ORDER.index(one.state), -(one.score or 0.0), one.trial)),
        _importances(search),
        tested.test if tested else {},
        search.best_config(),
    )


def write_report(report: Report) -> None:
    folder = report.search.folder
    with FileLock(folder / "report.lock"):  # two processes may come to the end at once
        write_text(_to_markdown(report), folder / "tune.md")
        write_text(_to_csv(report), folder / "tune.csv")
        write_json(_to_json(report), folder / "tune.json")
        if report.best:
            write_text(best_settings(report.best, report.search.space), folder / BEST_FILE)
            _draw(report, folder / "tune.png")


def best_settings(config: Config, searched: Collection[str]) -> str:
    """YAML for --config_files: what was searched, which must beat a preset even where it is the default, and all else
    that makes this run another one than `--model=... --dataset=...` alone."""
    plain = build_config(config.model, config.dataset).values
    not_said = config.model_class.Options.keys("nothing")
    said = {k: v for k, v in config.values.items() if k not in not_said}
    kept = {k: v for k, v in said.items() if k in searched or k not in plain or plain[k] != v}
    heading = f"# The best settings found for {config.model} on {config.dataset}, for --config_files.\n"
    return heading + yaml.safe_dump({"models": {config.model: kept}}, allow_unicode=True)


def _read_trial(search: Search, trial: FrozenTrial) -> Trial:
    scores = [*trial.intermediate_values.values(), *([trial.value] if trial.state == TrialState.COMPLETE else [])]
    attributes = trial.user_attrs
    return Trial(
        trial.number + 1,
        trial.state.name.lower(),
        max((score for score in scores if score is not None), default=None),
        search.values(trial),
        attributes.get("epochs"),
        attributes.get("best_epoch"),
        attributes.get("seconds"),
        attributes.get("run_dir", ""),
        attributes.get("reason", ""),
    )


def _importances(search: Search) -> dict[str, float]:
    """fANOVA: the share of the scores' variance that each key explains, in a random forest fitted to the trials."""
    completed = search.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    varied = [key for key in search.space if len({str(trial.params.get(key)) for trial in completed}) > 1]
    if len(completed) < FEWEST_FOR_IMPORTANCES or not varied or len({trial.value for trial in completed}) == 1:
        return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=search.base["seed"])
    found = optuna.importance.get_param_importances(search.study, evaluator=evaluator, params=varied)
    return {key: float(share) for key, share in sorted(found.items(), key=lambda pair: -pair[1])}


def _to_markdown(report: Report) -> str:
    search = report.search
    base = search.base
    parts = [
        f"# {search.model} on {base.dataset}: search",
        f"Score: the best {base['valid_metric']} in validation, seed {base['seed']}; sampler {search.sampler}, pruner "
        f"{search.pruner}. Only the best trial is tested.",
    ]
    if report.test:
        parts += [f"## Test of trial {report.trials[0].trial}", report.test_table()]
    if report.best:
        parts.append(f"Its settings are in [{BEST_FILE}]({BEST_FILE}), for `--config_files`.")
    parts += ["## Trials", report.table()]
    if report.best:
        parts += ["## What mattered", _importance_table(report), "![Score against each key](tune.png)"]
    space = [[key, describe(searched)] for key, searched in search.space.items()]
    parts += ["## Space", format_table(space, ["key", "values"])]
    return "\n\n".join(part for part in parts if part) + "\n"


def _importance_table(report: Report) -> str:
    if not report.importances:
        return f"Too few trials were trained to the end to tell (at least {FEWEST_FOR_IMPORTANCES})."
    rows = [[key, f"{share:.0%}"] for key, share in report.importances.items()]
    legend = (
        "Importance by fANOVA: the share of the variance of the scores that a key explains, over the trials that were "
        "trained to the end. With few trials it is a hint, no more."
    )
    return "\n\n".join([format_table(rows, ["key", "importance"]), legend])


def _to_json(report: Report) -> dict[str, Any]:
    """The layout is in the module's docstring."""
    search = report.search
    return {
        "model": search.model,
        "dataset": search.base.dataset,
        "valid_metric": search.base["valid_metric"],
        "seed": search.base["seed"],
        "space": as_plain_data(search.space),
        "importances": report.importances,
        "trials": [asdict(one) for one in report.trials],
        "test": report.test,
    }


def _to_csv(report: Report) -> str:
    text = io.StringIO()
    names = ["trial", "state", "score", "epochs", "best_epoch", "seconds", "run_dir", "reason"]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, *report.search.space])
    for one in report.trials:
        values = [one.values.get(key, "") for key in report.search.space]
        cells = [json.dumps(value) if isinstance(value, list | dict) else value for value in values]
        writer.writerow([*(getattr(one, name) for name in names), *cells])
    return text.getvalue()


def _draw(report: Report, path: Path) -> None:
    """A panel per key, the most important first: the score of each trial against its value."""
    space = report.search.space
    keys = [*report.importances, *(key for key in space if key not in report.importances)]
    figure, panels = new_figure(len(keys), width=7, height=2.4 * len(keys))
    for axes, key in zip(panels, keys):
        searched = space[key]
        for state, color in {"pruned": "0.7", "complete": "C0"}.items():
            shown = [one for one in report.trials if one.state == state and one.score is not None]
            values = [one.values[key] for one in shown]
            x = [searched.values.index(value) for value in values] if isinstance(searched, Choice) else values
            axes.plot(x, [one.score for one in shown], "o", color=color, label=state)
        if isinstance(searched, Choice):
            axes.set_xticks(range(len(searched.values)), list(map(str, searched.values)))
        else:
            axes.set_xscale("log" if searched.log else "linear")
            if searched.whole:
                axes.xaxis.get_major_locator().set_params(integer=True)
        share = f", importance {report.importances[key]:.0%}" if key in report.importances else ""
        axes.set_xlabel(key + share)
        axes.set_ylabel(report.search.base["valid_metric"])
    panels[0].legend(frameon=False)
    save_figure(figure, path, dpi=120)

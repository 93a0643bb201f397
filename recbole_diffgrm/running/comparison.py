"""Several models and seeds on one data set: run what is missing, then one table, tests and a chart."""

import csv
import io
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from recbole_diffgrm.config.config import Config, build_config, metric_names
from recbole_diffgrm.data.prepare import check_files
from recbole_diffgrm.errors import Interrupted, UserError
from recbole_diffgrm.evaluation.sid_level import SHARES, is_sid_metric
from recbole_diffgrm.evaluation.significance import ndcg_at, paired_p_value
from recbole_diffgrm.files import write_json, write_text
from recbole_diffgrm.running.result import RunResult
from recbole_diffgrm.running.run import execute


@dataclass(frozen=True)
class Row:
    """One model over its seeds."""

    model: str
    runs: list[RunResult]
    errors: list[Exception] = field(default_factory=list)
    # Of the difference from the best model; None for the best itself. Of all items, and of those new to the user.
    p_value: float | None = None
    p_value_new: float | None = None

    def values(self, metric: str, new: bool = False) -> np.ndarray:
        """Of each run; empty for a metric on IDs of a model without them. `new`: with histories left out."""
        tests = [run.test_new if new else run.test for run in self.runs]
        return np.array([test[metric] for test in tests if metric in test])

    def cell(self, metric: str, new: bool = False) -> str:
        """Mean, and standard deviation over seeds where there are several."""
        values = self.values(metric, new)
        if len(values) == 0:
            return "-" if self.runs else "failed"
        return f"{values.mean():.4f}" + (f" ± {values.std(ddof=1):.4f}" if len(values) > 1 else "")


@dataclass(frozen=True)
class Comparison:
    dataset: str
    metrics: list[str]
    rows: list[Row]  # in the order asked for
    path: Path | None = None

    @property
    def best(self) -> Row | None:
        """By mean NDCG@10: the one that the others are tested against."""
        return next((row for row in self.rows if row.runs and row.p_value is None), None)

    @property
    def best_new(self) -> Row | None:
        """The same, with histories left out."""
        rows = [row for row in self.rows if row.runs and all(run.test_new for run in row.runs)]
        return next((row for row in rows if row.p_value_new is None), None)

    @property
    def sid_metrics(self) -> list[str]:
        """Metrics on IDs, of the models that have them."""
        return list(
            dict.fromkeys(name for row in self.rows for run in row.runs for name in run.test if is_sid_metric(name))
        )

    def tables(self, style: str = "github") -> dict[str, str]:
        """{level: table}: items for all models, IDs for those that have them."""
        head = ["model", *self.metrics, "p (NDCG@10, vs best)", "seconds", "epochs"]
        body = []
        for row in self.rows:
            seconds = [sum(run.seconds.values()) for run in row.runs]
            epochs = [run.epochs for run in row.runs]
            body.append(
                [row.model]
                + [row.cell(metric) for metric in self.metrics]
                + [_shown(row.p_value, row is self.best)]
                + [f"{np.mean(seconds):.0f}" if seconds else "", "/".join(map(str, epochs))]
            )
        tables = {"item level": tabulate(body, head, tablefmt=style, disable_numparse=True)}
        if self.best_new:
            body = [
                [row.model]
                + [row.cell(metric, new=True) for metric in self.metrics]
                + [_shown(row.p_value_new, row is self.best_new)]
                for row in self.rows
            ]
            new = tabulate(body, head[: len(self.metrics) + 2], tablefmt=style, disable_numparse=True)
            tables["item level, items of the history left out"] = new
        if self.sid_metrics:
            of_ids = [row for row in self.rows if any(run.sid_shares for run in row.runs)]
            body = [
                [row.model]
                + [row.cell(metric) for metric in self.sid_metrics]
                + [f"{np.mean([run.sid_shares[name] for run in row.runs]):.1%}" for name in SHARES]
                for row in of_ids
            ]
            head = ["model", *self.sid_metrics, *SHARES]
            tables["SID level"] = tabulate(body, head, tablefmt=style, disable_numparse=True)
        return tables


def _shown(p_value: float | None, is_best: bool) -> str:
    return "best" if is_best else "" if p_value is None else f"{p_value:.2g}"


def compare(
    models: Sequence[str],
    dataset: str,
    config_files: str | Path | Sequence[str | Path] = (),
    *,
    seeds: Sequence[int] = (),
    resume: bool = False,
    rerun: bool = False,
    **overrides: Any,
) -> Comparison:
    """Run every model with every seed. A finished run of the same configuration is used again unless `rerun`."""
    if len(set(models)) != len(models):
        raise UserError(f"model: {', '.join(models)} names a model twice")
    if len(set(seeds)) != len(seeds):
        raise UserError(f"seeds: {', '.join(map(str, seeds))} names a seed twice")
    if resume and rerun:
        raise UserError("resume and rerun: give one of them")
    if seeds and "seed" in overrides:
        raise UserError("seed and seeds: give one of them")
    configs = {  # all of them first: a mistake in the last is found before the first one trains
        model: [
            build_config(model, dataset, config_files, {**overrides, **seed}, compared_with=models)
            for seed in ([{"seed": seed} for seed in seeds] or [{}])
        ]
        for model in models
    }
    first = configs[models[0]][0]
    metrics = [name.lower() for name in metric_names(first.values)]
    for config in (config for of_model in configs.values() for config in of_model):
        if config["eval_args"]["split"]["LS"] == "valid_only":
            raise UserError("eval_args: a comparison needs test users, and the split valid_only has none")
        if [name.lower() for name in metric_names(config.values)] != metrics:
            raise UserError(f"metrics and topk: {config.model} has others than {first.model}")
        check_files(config)
    rows = [_run_model(model, of_model, resume=resume, reuse=not rerun) for model, of_model in configs.items()]
    comparison = Comparison(dataset, metrics, _with_p_values(rows))
    return _save(comparison, Path(first["output_dir"]) / dataset)


def _run_model(model: str, configs: list[Config], resume: bool, reuse: bool) -> Row:
    row = Row(model, [])
    for config in configs:
        try:
            row.runs.append(execute(config, resume=resume, reuse=reuse))
        except Interrupted:
            raise
        except Exception as error:  # one model failing must not lose the others
            if not isinstance(error, UserError):
                traceback.print_exc()
            row.errors.append(error)
    return row


def per_user(runs: Sequence[RunResult], ranks: str = "rank") -> np.ndarray:
    """NDCG@10 of each test user, as the mean over seeds, out of one of the ranks in ranks.npz. The order of users is
    the data set's, for every model."""
    per_seed = []
    for run in runs:
        with np.load(run.run_dir / "ranks.npz") as saved:
            per_seed.append(ndcg_at(saved[ranks]))
    return np.mean(per_seed, axis=0)


def _with_p_values(rows: list[Row]) -> list[Row]:
    """Each row with the p-values of its difference from the best, in both rankings."""
    rows = _tested(rows, [row for row in rows if row.runs], "rank", "p_value")
    complete = [row for row in rows if row.runs and all(run.test_new for run in row.runs)]
    return _tested(rows, complete, "rank_new", "p_value_new")


def _tested(rows: list[Row], tested: list[Row], ranks: str, p_value: str) -> list[Row]:
    gains = {row.model: per_user(row.runs, ranks) for row in tested}
    best = max(gains, key=lambda model: gains[model].mean(), default=None)
    return [
        replace(row, **{p_value: paired_p_value(gains[row.model], gains[best])})
        if row.model in gains and row.model != best
        else row
        for row in rows
    ]


def _save(comparison: Comparison, parent: Path) -> Comparison:
    """comparison.md, .csv, .json and .png in a directory of their own."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    path = parent / f"comparison-{stamp}"
    attempt = 0
    while path.exists():
        attempt += 1
        path = parent / f"comparison-{stamp}.{attempt}"
    path.mkdir(parents=True)
    comparison = replace(comparison, path=path)
    seeds = sorted({run.seed for row in comparison.rows for run in row.runs})
    tables = [f"## {level[0].upper() + level[1:]}\n\n{table}\n" for level, table in comparison.tables().items()]
    lines = [
        f"# {comparison.dataset}: test metrics",
        "",
        *tables,
        *(
            ["; ".join(f"{name}: share {words}" for name, words in SHARES.items()) + ".\n"]
            if comparison.sid_metrics
            else []
        ),
        f"Seeds: {', '.join(map(str, seeds))}. p: paired t-test of the users' NDCG@10 (mean over seeds) with the best.",
        *(f"\nFailed: {row.model}: {error}" for row in comparison.rows for error in row.errors),
    ]
    write_text("\n".join(lines) + "\n", path / "comparison.md")
    _write_csv(comparison, path / "comparison.csv")
    content = {
        "dataset": comparison.dataset,
        "best": comparison.best.model if comparison.best else None,
        "best_new": comparison.best_new.model if comparison.best_new else None,
        "models": [
            {
                "model": row.model,
                "p_value_against_best": row.p_value,
                "p_value_against_best_new": row.p_value_new,
                "errors": [f"{type(error).__name__}: {error}" for error in row.errors],
                "mean": _means(row, comparison),
                "mean_new": _means(row, comparison, new=True),
                "runs": [
                    {"seed": run.seed, "run_dir": str(run.run_dir), "test": run.test, "test_new": run.test_new}
                    for run in row.runs
                ],
            }
            for row in comparison.rows
        ],
    }
    write_json(content, path / "comparison.json")
    if any(row.runs for row in comparison.rows):
        _draw(comparison, path / "comparison.png")
    return comparison


def _means(row: Row, comparison: Comparison, new: bool = False) -> dict[str, float]:
    values = {metric: row.values(metric, new) for metric in [*comparison.metrics, *comparison.sid_metrics]}
    return {metric: float(of_runs.mean()) for metric, of_runs in values.items() if len(of_runs)}


def _write_csv(comparison: Comparison, path: Path) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    metrics = [*comparison.metrics, *comparison.sid_metrics]
    new = [f"{metric}_new" for metric in metrics]
    writer.writerow(["model", "seed", *metrics, *new, "best_epoch", "epochs", "run_dir"])
    for row in comparison.rows:
        for run in row.runs:
            tests = [run.test, run.test_new]
            values = [repr(test[metric]) if metric in test else "" for test in tests for metric in metrics]
            writer.writerow([row.model, run.seed, *values, run.best_epoch, run.epochs, run.run_dir])
    write_text(text.getvalue(), path)


def _draw(comparison: Comparison, path: Path) -> None:
    """Bars per metric, one colour per model, whiskers of one standard deviation."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    levels = {"item level": comparison.metrics} | (
        {"SID level": comparison.sid_metrics} if comparison.sid_metrics else {}
    )
    rows = [row for row in comparison.rows if row.runs]
    widest = max(map(len, levels.values()))
    size = (max(6, 1.2 * widest), 4 * len(levels))
    figure, panels = plt.subplots(len(levels), figsize=size, layout="constrained", squeeze=False)
    for axes, (level, metrics) in zip(panels[:, 0], levels.items()):
        drawn = [row for row in rows if len(row.values(metrics[0]))]
        width = 0.8 / len(drawn)
        for number, row in enumerate(drawn):
            places = np.arange(len(metrics)) + (number - (len(drawn) - 1) / 2) * width
            means = [row.values(metric).mean() for metric in metrics]
            spread = [row.values(metric).std(ddof=1) for metric in metrics] if len(row.runs) > 1 else None
            colour = f"C{rows.index(row)}"  # a model keeps its colour
            axes.bar(places, means, width, yerr=spread, capsize=2, label=row.model, color=colour)
        axes.set_xticks(np.arange(len(metrics)), metrics)
        axes.set_title(f"{comparison.dataset}, test, {level}")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)

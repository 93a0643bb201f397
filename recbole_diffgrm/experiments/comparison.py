"""Several models and seeds on one dataset: run what is missing, then write tables, tests and a chart.

comparison.json, beside comparison.md, .csv and .png:

    {"dataset": "ml-100k",
     "mode": "full",                                                   ranked against; sampled items: uni100, pop100
     "best": {"item_all": "SASRec", "item_unseen": "SASRec"},          model with the highest mean NDCG@10, per key
     "models": [{"model": "DiffGRM",
                 "p_values": {"item_all": 0.01, "item_unseen": 0.2},   against the best model; none for the best itself
                 "mean": {"all": {"ndcg@10": 0.1, "sid_ndcg@10": 0.2, ...}, "unseen": {...}},   over seeds
                 "groups": {"all": {"history_length": [{"group": "1-5", "targets": 9, "ndcg@10": 0.1, ...}, ...], ...}},
                 "runs": [{"seed": 1, "run_dir": "runs/...", "sid_digest": "", "test": {"all": {...}, ...}}, ...],
                 "errors": []}, ...]}

Keys such as `item_all`, level and ranking, are the names in ranks.npz (evaluation/ranks.py). With `repeatable: False`
only the ranking `unseen` is there.
"""

import csv
import io
import itertools
import json
import logging
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from recbole_diffgrm import processes
from recbole_diffgrm.config.build import metric_names
from recbole_diffgrm.config.protocol import NO_FILTERS, eval_mode, held_out_parts
from recbole_diffgrm.config.recbole_config import Config
from recbole_diffgrm.data.frame import Dataset
from recbole_diffgrm.data.source import check_files
from recbole_diffgrm.errors import Interrupted, UserError
from recbole_diffgrm.evaluation.groups import TITLES
from recbole_diffgrm.evaluation.ranks import RANKINGS, rank_name
from recbole_diffgrm.evaluation.sid_metrics import SID_SHARES, is_sid_metric
from recbole_diffgrm.evaluation.significance import TESTED_METRIC
from recbole_diffgrm.experiments import results_table
from recbole_diffgrm.experiments.pipeline import run_config
from recbole_diffgrm.experiments.reports import comparison as comparison_report
from recbole_diffgrm.experiments.reports.page import REPORT_FILE, try_to_write
from recbole_diffgrm.experiments.result import RunResult
from recbole_diffgrm.experiments.results_table import NO_VALUE, Row, describe
from recbole_diffgrm.files import make_folder, reading, write_json, write_text, writing
from recbole_diffgrm.models import build_config
from recbole_diffgrm.screen import log_to_screen
from recbole_diffgrm.training.tracking import check_installed

logger = logging.getLogger(__name__)

COMPARISON_FILE = "comparison.json"


@dataclass(frozen=True)
class Comparison:
    dataset: str
    metrics: list[str]  # of the item level
    rows: list[Row]  # one per model, in the order given
    best: dict[str, str]  # {key: model with the highest mean NDCG@10}
    p_values: dict[str, dict[str, float]]  # {model: {key: p-value against the best model}}
    path: Path | None = None

    @property
    def rankings(self) -> list[str]:
        """Those that were tested; the first one is the configured ranking."""
        tested = {ranking for row in self.rows for run in row.runs for ranking in run.test}
        return [ranking for ranking in RANKINGS if ranking in tested] or ["all"]

    @property
    def mode(self) -> str:
        """What the targets are ranked against in the test: `full`, or sampled items such as uni100."""
        return next((eval_mode(run.config, "test") for row in self.rows for run in row.runs), "full")

    @property
    def sid_metrics(self) -> list[str]:
        """Metrics on semantic IDs, of the models that have them."""
        tests = [metrics for row in self.rows for run in row.runs for metrics in run.test.values()]
        return list(dict.fromkeys(name for metrics in tests for name in metrics if is_sid_metric(name)))

    @property
    def sid_shares(self) -> dict[str, str]:
        """SID_SHARES that any of the models has."""
        named = {name for row in self.rows for run in row.runs for name in run.sid_shares}
        return {name: words for name, words in SID_SHARES.items() if name in named}

    def __str__(self) -> str:
        """What the command line prints."""
        tables = [f"{self.dataset}: test metrics, {at}\n\n{table}" for at, table in self.tables("screen").items()]
        runs = [f"{run.model}, seed {run.seed}: {run.run_dir}" for row in self.rows for run in row.runs]
        places = [f"comparison: {self.path}"] if self.path else []
        places += [f"report: {self.path / REPORT_FILE}"] if self.path and (self.path / REPORT_FILE).exists() else []
        return "\n\n".join([*tables, "\n".join([*runs, *places])])

    def _repr_markdown_(self) -> str:
        """In notebooks."""
        return _to_markdown(self)

    @property
    def warning(self) -> str:
        return results_table.warn_of_other_sids(self.rows)

    def tables(self, style: str = "github") -> dict[str, str]:
        """{heading: table}: the item level in each ranking, and the SID level of the models with semantic IDs.
        `style`: of results_table.format_table."""
        tables = {describe("item", ranking, self.mode): self._item_table(ranking, style) for ranking in self.rankings}
        if self.sid_metrics:
            tables[describe("sid", self.rankings[0])] = self._sid_table(style)
        sample = results_table.describe_sample(run for row in self.rows for run in row.runs)
        return {f"{heading}, {sample}" if sample else heading: table for heading, table in tables.items()}

    def group_tables(self, style: str = "github") -> dict[str, str]:
        """{heading: NDCG@10 of each model by groups of targets}, in the configured ranking."""
        tables = {}
        for grouping, title in TITLES.items():
            lines = {row.name: row.group_means(self.rankings[0]).get(grouping, []) for row in self.rows}
            of_group: dict[tuple[str, int], dict[str, str]] = {
                (line["group"], line["targets"]): {} for of_row in lines.values() for line in of_row
            }
            for name, of_row in lines.items():
                for line in of_row:
                    of_group[line["group"], line["targets"]][name] = f"{line[TESTED_METRIC]:.4f}"
            if of_group:
                body = [[*group, *(cells.get(name, NO_VALUE) for name in lines)] for group, cells in of_group.items()]
                head = ["", "targets", *lines]
                tables[f"NDCG@10 by {title}"] = results_table.format_table(body, head, style)
        return tables

    def _item_table(self, ranking: str, style: str) -> str:
        metrics = results_table.shown_metrics(self.metrics)
        head = ["model", *metrics, "p vs best"]
        body = [
            [row.name, *(row.cell(metric, ranking) for metric in metrics), self._p_cell(row, ranking)]
            for row in self.rows
        ]
        if ranking == self.rankings[0]:  # costs are shown once
            head += ["seconds", "epochs"]
            for row, line in zip(self.rows, body):
                seconds = [sum(run.seconds.values()) for run in row.runs]
                line += [f"{np.mean(seconds):.0f}" if seconds else "", "/".join(str(run.epochs) for run in row.runs)]
        return results_table.format_table(body, head, style)

    def _sid_table(self, style: str) -> str:
        body = [
            [row.name]
            + [row.cell(metric, self.rankings[0]) for metric in self.sid_metrics]
            + [_mean_share(row, name) for name in self.sid_shares]
            for row in self.rows
            if any(run.sid_shares for run in row.runs)
        ]
        return results_table.format_table(body, ["model", *self.sid_metrics, *self.sid_shares], style)

    def _p_cell(self, row: Row, ranking: str) -> str:
        key = rank_name("item", ranking)
        if self.best.get(key) == row.name:
            return "best"
        p_values = self.p_values[row.name]
        return f"{p_values[key]:.2g}" if key in p_values else ""


def _mean_share(row: Row, name: str) -> str:
    """Over seeds; empty where the model has no such share, as one that generates nothing."""
    shares = [run.sid_shares[name] for run in row.runs if name in run.sid_shares]
    return f"{np.mean(shares):.1%}" if shares else ""


def compare(
    models: Sequence[str],
    dataset: str | Dataset,
    config_files: str | Path | Sequence[str | Path] = (),
    *,
    preset: str | Sequence[str] = (),
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
    configs = {  # build all of them first: a mistake in the last one shows before the first one trains
        model: [
            build_config(model, dataset, config_files, {**overrides, **seed}, presets=preset, compared_with=models)
            for seed in ([{"seed": seed} for seed in seeds] or [{}])
        ]
        for model in models
    }
    first = configs[models[0]][0]
    metrics = [name.lower() for name in metric_names(first.values)]
    with log_to_screen(first["state"]):
        _check_comparable(configs, metrics)
        rows = [_run_model(model, of_model, resume=resume, reuse=not rerun) for model, of_model in configs.items()]
    comparison = Comparison(first.dataset, metrics, rows, *processes.from_first(lambda: _test_rows(rows)))
    try:
        path = processes.from_first(lambda: _save(comparison, Path(first["output_dir"]) / first.dataset))
        return replace(comparison, path=path)
    except UserError as error:  # runs that may only be read can be compared all the same
        logger.warning(f"the comparison is not saved: {error}")
        return comparison


def _check_comparable(configs: Mapping[str, list[Config]], metrics: list[str]) -> None:
    """The same data, ranked in the same way and measured with the same metrics; and all of it is there."""
    every = list(itertools.chain(*configs.values()))
    first = every[0]
    for config in every:
        if "test" not in held_out_parts(config):
            raise UserError(
                f"eval_args: a comparison needs test users, and the split {config['eval_args']['split']} has none"
            )
        for key in ("eval_args", "benchmark_filename", *NO_FILTERS):
            ours, theirs = config.values[key], first.values[key]
            if ours != theirs:
                raise UserError(
                    f"{key}: {config.model} has {ours}, {first.model} has {theirs}: they can only be compared on data "
                    "that is filtered, split and ranked in the same way"
                )
        if [name.lower() for name in metric_names(config.values)] != metrics:
            raise UserError(f"metrics and topk: those of {config.model} and {first.model} differ")
        check_files(config)
        check_installed(config)


def _run_model(model: str, configs: list[Config], resume: bool, reuse: bool) -> Row:
    row = Row(model, [])
    for config in configs:
        try:
            row.runs.append(run_config(config, resume=resume, reuse=reuse))
        except Interrupted:
            raise
        except Exception as error:  # one model failing must not lose the others
            is_lost = isinstance(error, processes.LostProcess) and not isinstance(error, processes.FirstFailed)
            if is_lost or not processes.all_fail():  # the other processes are still at it: this one cannot go on alone
                raise
            if not isinstance(error, UserError) and processes.is_first():
                traceback.print_exc()
            row.errors.append(error)
    return row


def _test_rows(rows: list[Row]) -> tuple[dict[str, str], dict[str, dict[str, float]]]:
    """The best model at the item level in each ranking, and the p-values of the others against it."""
    ranks = {row.name: [_load_ranks(run) for run in row.runs] for row in rows}
    best: dict[str, str] = {}
    p_values: dict[str, dict[str, float]] = {row.name: {} for row in rows}
    for ranking in RANKINGS:
        ndcg = {name: results_table.per_user_ndcg(of_row, "item", ranking) for name, of_row in ranks.items()}
        winner, tests = results_table.compare_with_best({name: v for name, v in ndcg.items() if v is not None})
        without_ranks = [row.name for row in rows if not all(ranks[row.name])]
        if any(_mean_ndcg(rows, name, ranking) > _mean_ndcg(rows, winner, ranking) for name in without_ranks):
            winner, tests = max(ndcg, key=lambda name: _mean_ndcg(rows, name, ranking)), {}  # none can be tested
        key = rank_name("item", ranking)
        if winner is not None:
            best[key] = winner
        for name, p_value in tests.items():
            p_values[name][key] = p_value
    return best, p_values


def _load_ranks(run: RunResult) -> results_table.Ranks:
    """Without its ranks a run has its metrics still, but no p-value."""
    try:
        return results_table.load_ranks(run)
    except UserError as error:
        logger.warning(f"{run.model}, seed {run.seed}, has no p-values: {error}")
        return {}


def _mean_ndcg(rows: list[Row], name: str | None, ranking: str) -> float:
    """Of a row; -inf where it has none."""
    values = [row.values(TESTED_METRIC, ranking) for row in rows if row.name == name]
    return float(values[0].mean()) if values and len(values[0]) else -np.inf


def _save(comparison: Comparison, parent: Path) -> Path:
    """comparison.md, .csv, .json and .png in a new directory."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    for attempt in itertools.count():
        path = make_folder(parent) / (f"comparison-{stamp}.{attempt}" if attempt else f"comparison-{stamp}")
        with writing(path):
            try:
                path.mkdir()
            except FileExistsError:
                continue
        break
    write_text(_to_markdown(comparison), path / "comparison.md")
    write_text(_to_csv(comparison), path / "comparison.csv")
    write_json(_to_json(comparison), path / COMPARISON_FILE)
    if any(row.runs for row in comparison.rows):
        _draw(comparison, path / "comparison.png")
        try_to_write(REPORT_FILE, lambda: comparison_report.write(replace(comparison, path=path)))
    return path


def load(path: Path) -> Comparison:
    """A saved one, with the results of its runs: where they were, or beside it."""
    file = path / COMPARISON_FILE
    with reading(file):
        content = json.loads(file.read_text(encoding="utf-8"))
        rows, p_values = [], {}
        for model in content["models"]:
            run_dirs = [Path(run["run_dir"]) for run in model["runs"]]
            found = [run_dir if run_dir.is_dir() else path.resolve().parent / run_dir.name for run_dir in run_dirs]
            runs = [RunResult.load(run_dir) for run_dir in found]
            rows.append(Row(model["model"], runs, [Exception(error) for error in model["errors"]]))
            p_values[model["model"]] = model["p_values"]
        metrics = next(([name.lower() for name in metric_names(run.config)] for row in rows for run in row.runs), [])
        return Comparison(content["dataset"], metrics, rows, content["best"], p_values, path)


def _to_markdown(comparison: Comparison) -> str:
    parts = [f"# {comparison.dataset}: test metrics"]
    for heading, table in comparison.tables().items():
        parts += [f"## {heading[0].upper() + heading[1:]}", table]
    if comparison.sid_metrics:
        parts.append("; ".join(f"{name}: share {words}" for name, words in comparison.sid_shares.items()) + ".")
    for heading, table in comparison.group_tables().items():
        parts += [f"## {heading[0].upper() + heading[1:]}", table]
    seeds = sorted({run.seed for row in comparison.rows for run in row.runs})
    test = "p: paired t-test of the users' NDCG@10 (mean over seeds) against the best model."
    parts.append(f"Seeds: {', '.join(map(str, seeds))}. {test}")
    parts += [comparison.warning] if comparison.warning else []
    parts += [f"Failed: {row.name}: {error}" for row in comparison.rows for error in row.errors]
    return "\n\n".join(parts) + "\n"


def _to_json(comparison: Comparison) -> dict[str, Any]:
    """The layout is in the module's docstring."""
    return {
        "dataset": comparison.dataset,
        "mode": comparison.mode,
        "best": comparison.best,
        "models": [
            {
                "model": row.name,
                "p_values": comparison.p_values[row.name],
                "mean": {ranking: row.means(ranking) for ranking in comparison.rankings},
                "groups": {ranking: row.group_means(ranking) for ranking in comparison.rankings},
                "runs": [
                    {"seed": run.seed, "run_dir": str(run.run_dir), "sid_digest": run.sid_digest, "test": run.test}
                    for run in row.runs
                ],
                "errors": [f"{type(error).__name__}: {error}" for error in row.errors],
            }
            for row in comparison.rows
        ],
    }


def _to_csv(comparison: Comparison) -> str:
    """One line per run. Metrics of the ranking `all` have their plain names, those of `unseen` end in _unseen."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = [(metric, ranking) for ranking in RANKINGS for metric in [*comparison.metrics, *comparison.sid_metrics]]
    names = [metric if ranking == "all" else f"{metric}_{ranking}" for metric, ranking in columns]
    writer.writerow(["model", "seed", *names, "best_epoch", "epochs", "mode", "run_dir"])
    for row in comparison.rows:
        for run in row.runs:
            values = [run.test.get(ranking, {}).get(metric) for metric, ranking in columns]
            cells = ["" if value is None else repr(value) for value in values]
            writer.writerow([row.name, run.seed, *cells, run.best_epoch, run.epochs, comparison.mode, run.run_dir])
    return text.getvalue()


def _draw(comparison: Comparison, path: Path) -> None:
    """Bars per metric in the configured ranking, one color per model; a panel per level."""
    ranking = comparison.rankings[0]
    levels = {"item": results_table.shown_metrics(comparison.metrics)} | (
        {"sid": comparison.sid_metrics} if comparison.sid_metrics else {}
    )
    widest = max(map(len, levels.values()))
    figure, panels = results_table.new_figure(len(levels), width=max(6, 1.2 * widest), height=4 * len(levels))
    for axes, (level, metrics) in zip(panels, levels.items()):
        rows = {
            number: row
            for number, row in enumerate(comparison.rows)
            if all(len(row.values(m, ranking)) for m in metrics)
        }
        results_table.draw_bars(
            axes,
            metrics,
            {row.name: [row.values(metric, ranking) for metric in metrics] for row in rows.values()},
            colors=[f"C{number}" for number in rows],  # a model has the same color in every panel
        )
        axes.set_title(f"{comparison.dataset}, test, {describe(level, ranking, comparison.mode)}")
        axes.legend(frameon=False)
    results_table.save_figure(figure, path, dpi=150)

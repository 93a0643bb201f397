"""The result of one run in words and tables: what the command line prints, and `print(result)`."""

from collections.abc import Sequence

from recbole_diffgrm.config.protocol import eval_mode
from recbole_diffgrm.evaluation.groups import TITLES
from recbole_diffgrm.evaluation.ranks import LEVELS, describe_ranking
from recbole_diffgrm.evaluation.sid_metrics import describe_shares, is_sid_metric
from recbole_diffgrm.evaluation.significance import TESTED_METRIC
from recbole_diffgrm.experiments.reports.page import REPORT_FILE
from recbole_diffgrm.experiments.result import RunResult
from recbole_diffgrm.experiments.results_table import NO_VALUE, describe_sample, format_table, shown_metrics
from recbole_diffgrm.words import count


def describe_result(result: RunResult, style: str = "screen") -> str:
    """`style`: of results_table.format_table."""
    parts = [f"{result.dataset}, seed {result.seed}, {_describe_training(result)}", *_metric_tables(result, style)]
    if describe_sample([result]):
        parts.append(f"The test is of {describe_sample([result])}.")
    if result.sid_shares:
        parts.append(describe_shares(result.sid_shares))
    for grouping, lines in next(iter(result.groups.values()), {}).items():
        cells = [[line["group"], line["targets"], f"{line[TESTED_METRIC]:.4f}"] for line in lines]
        parts.append(format_table(cells, [f"test, {TITLES[grouping]}", "targets", TESTED_METRIC], style))
    report = result.run_dir / REPORT_FILE
    places = [f"results: {result.run_dir}", *([f"report: {report}"] if report.exists() else [])]
    return "\n\n".join([*parts, "\n".join(places)])


def _describe_training(result: RunResult) -> str:
    if result.epochs == 0:
        return "not trained"
    if result.best_epoch is None:
        return f"{count(result.epochs, 'epoch')}, not validated"
    return f"best epoch {result.best_epoch} of {result.epochs}"


def _metric_tables(result: RunResult, style: str) -> list[str]:
    """One at the item level and, for models with semantic IDs, one at theirs; validation and each test are rows."""
    valid_mode, test_mode = (eval_mode(result.config, part) for part in ("valid", "test"))
    parts = {"validation" + (f", {valid_mode}" if valid_mode != "full" else ""): result.valid}
    parts |= {f"test, {describe_ranking(ranking, test_mode)}": metrics for ranking, metrics in result.test.items()}
    names = shown_metrics(dict.fromkeys(name for metrics in parts.values() for name in metrics))
    tables = []
    for level, words in LEVELS.items():
        of_level = [name for name in names if is_sid_metric(name) == (level == "sid")]
        rows = [
            [part, *(f"{metrics[name]:.4f}" if name in metrics else NO_VALUE for name in of_level)]
            for part, metrics in parts.items()
            if set(of_level) & set(metrics)
        ]
        for ranking, intervals in result.test_intervals.items():
            limits = [_format_interval(intervals[name]) if name in intervals else NO_VALUE for name in of_level]
            rows += [[f"95 % interval, {describe_ranking(ranking, test_mode)}", *limits]] if rows else []
        if rows:
            tables.append(format_table(rows, [f"{result.model}, {words}", *of_level], style))
    return tables


def _format_interval(limits: Sequence[float]) -> str:
    low, high = limits
    return f"{low:.4f}-{high:.4f}"

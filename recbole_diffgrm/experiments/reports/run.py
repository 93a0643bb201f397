"""The report of one finished run, from the files of its directory alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from recbole_diffgrm.config.other_keys import WITHOUT_EFFECT
from recbole_diffgrm.config.protocol import eval_mode
from recbole_diffgrm.data.atomic import read_header, read_rows
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.evaluation.groups import TITLES, split_targets
from recbole_diffgrm.evaluation.intervals import Intervals, bootstrap_intervals, metric_of_targets
from recbole_diffgrm.evaluation.ranks import LEVELS, RANKINGS, describe_ranking, rank_name
from recbole_diffgrm.evaluation.sid_metrics import SID_SHARES, is_sid_metric
from recbole_diffgrm.evaluation.significance import TESTED_METRIC
from recbole_diffgrm.experiments import examples
from recbole_diffgrm.experiments.item_table import ITEMS_FILE
from recbole_diffgrm.experiments.reports import page
from recbole_diffgrm.experiments.reports.charts import Chart, line_chart
from recbole_diffgrm.experiments.result import RunResult
from recbole_diffgrm.experiments.results_table import Ranks, best_epoch_cell, load_ranks, metric_at, shown_metrics
from recbole_diffgrm.models.candidates import NOT_RANKED
from recbole_diffgrm.words import count, duration


def write(result: RunResult) -> Path:
    return page.write(render(result), result.run_dir)


def render(result: RunResult) -> str:
    try:
        ranks = load_ranks(result)
    except UserError:  # of a run without test users, or lost: metrics have no intervals then
        ranks = {}
    users = examples.load(result.run_dir)
    return page.render(
        "run.html",
        title=f"{result.model} on {result.dataset}",
        facts=_facts(result),
        levels=_levels(result, ranks),
        shares=[
            (f"{result.sid_shares[name]:.1%}", words) for name, words in SID_SHARES.items() if name in result.sid_shares
        ],
        groupings=_groupings(result, ranks),
        curves=_curves(result),
        digit_curves=_digit_curves(result),
        codes=_code_usage(result),
        users=_add_ranks(users["examples"], ranks, eval_mode(result.config, "test")),
        users_ranking=describe_ranking(users["ranking"], "full") if users["ranking"] else "",
        statistics={name.replace("_", " "): _shorten(value) for name, value in result.statistics.items()},
        settings={key: value for key, value in sorted(result.config.items()) if key not in WITHOUT_EFFECT},
    )


def _facts(result: RunResult) -> dict[str, str]:
    environment, seconds = result.environment, result.seconds
    trained = best_epoch_cell(result.best_epoch, result.epochs)
    facts = {
        "seed": str(result.seed),
        "best epoch": trained or "not trained",
        "parameters": f"{result.parameters:,}",
        "time": ", ".join(f"{name} {duration(seconds[name])}" for name in ("train", "valid", "test")),
        "memory": f"{result.peak_memory_mib:,.0f} MiB at its peak",
        "machine": f"{environment['gpu'] or environment['processor']}, {count(environment['cores'], 'core')}, "
        f"{count(environment['threads'], 'thread')}",
        "software": ", ".join(f"{name} {version}" for name, version in environment["versions"].items()),
        "commit": environment["commit"] or "unknown",
        "semantic IDs": result.sid_digest,
        "run": result.run_dir.resolve().name,
    }
    return {name: value for name, value in facts.items() if value}


def _shorten(value: Any) -> Any:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else value


def _levels(result: RunResult, ranks: Ranks) -> list[dict[str, Any]]:
    """A table for each level: one row per metric, validation and each test as columns."""
    valid_mode, test_mode = (eval_mode(result.config, part) for part in ("valid", "test"))
    columns: dict[str, tuple[Mapping[str, float], Intervals]] = {}
    columns["validation" + (f", {valid_mode}" if valid_mode != "full" else "")] = result.valid, {}
    for ranking, metrics in result.test.items():
        columns[f"test, {describe_ranking(ranking, test_mode)}"] = metrics, _intervals(metrics, ranks, ranking)
    names = shown_metrics(dict.fromkeys(name for metrics, _ in columns.values() for name in metrics))
    tables = []
    for level, words in LEVELS.items():
        of_level = [name for name in names if is_sid_metric(name) == (level == "sid")]
        rows = [
            (
                name.removeprefix("sid_"),
                [_cell(metrics.get(name), intervals.get(name)) for metrics, intervals in columns.values()],
            )
            for name in of_level
        ]
        if rows:
            tables.append({"title": page.capitalize(words), "columns": list(columns), "rows": rows})
    return tables


def _intervals(metrics: Mapping[str, float], ranks: Ranks, ranking: str) -> Intervals:
    intervals: Intervals = {}
    for level in LEVELS:
        key = rank_name(level, ranking)
        if key in ranks:
            names = [name for name in metrics if is_sid_metric(name) == (level == "sid")]
            values = {name: metric_of_targets(name, ranks[key]) for name in names}
            known = {name: of_targets for name, of_targets in values.items() if of_targets is not None}
            intervals |= bootstrap_intervals(known, ranks["user"])
    return intervals


def _cell(value: float | None, interval: tuple[float, float] | None) -> dict[str, Any]:
    """Without an interval where all users have the same value, as in a group without a hit: drawing them again tells
    nothing, and is not certainty."""
    return {"value": value, "interval": interval if interval and interval[0] < interval[1] else None}


def _groupings(result: RunResult, ranks: Ranks) -> list[dict[str, Any]]:
    """NDCG@10 and Recall@10 by groups of test targets, in each ranking: tables with bars, on one scale."""
    groupings = []
    for grouping, title in TITLES.items():
        of_rankings = {ranking: groups.get(grouping, []) for ranking, groups in result.groups.items()}
        rows: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for ranking, lines in of_rankings.items():
            intervals = _group_intervals(grouping, ranks, rank_name("item", ranking))
            for line in lines:
                cell = _cell(line[TESTED_METRIC], intervals.get(line["group"])) | {"recall": line["recall@10"]}
                rows.setdefault((line["group"], line["targets"]), []).append(cell)
        if rows:
            mode = eval_mode(result.config, "test")
            columns = [describe_ranking(ranking, mode) for ranking in of_rankings]
            groupings.append({"title": title, "columns": columns, "rows": rows, "largest": _largest(rows)})
    return groupings


def _group_intervals(grouping: str, ranks: Ranks, key: str) -> Intervals:
    """{group: interval}; empty for a run of an earlier version, which did not keep what targets are grouped by."""
    if key not in ranks or grouping not in ranks:
        return {}
    intervals: Intervals = {}
    for group, is_member in split_targets(grouping, ranks[grouping]).items():
        values = metric_of_targets(TESTED_METRIC, ranks[key][is_member])
        assert values is not None
        intervals |= {group: bootstrap_intervals({TESTED_METRIC: values}, ranks["user"][is_member])[TESTED_METRIC]}
    return intervals


def _largest(rows: Mapping[Any, list[dict[str, Any]]]) -> float:
    """Of all values and intervals: where bars end."""
    ends = [(cell["interval"] or (0, cell["value"]))[1] for cells in rows.values() for cell in cells]
    return max([*ends, 1e-9])


def _curves(result: RunResult) -> list[Chart]:
    entries = list(enumerate(result.curve, start=1))
    parts = dict.fromkeys(name for _, entry in entries for name in entry.get("loss_parts", {}))
    losses = {"loss": [(x, entry["loss"]) for x, entry in entries]}
    if len(parts) > 1:
        losses |= {
            name: [(x, e["loss_parts"][name]) for x, e in entries if name in e.get("loss_parts", {})] for name in parts
        }
    shown = [metric_at(level, name) for level in LEVELS for name in (TESTED_METRIC, "recall@10")]
    valid = {name: [(x, e["valid"][name]) for x, e in entries if name in e.get("valid", {})] for name in shown}
    charts = [
        line_chart("training loss", losses),
        line_chart("validation", {name: points for name, points in valid.items() if points}, from_zero=True),
        line_chart("learning rate", {"learning rate": [(x, entry["learning_rate"]) for x, entry in entries]}),
        line_chart("seconds per epoch", {"seconds": [(x, entry["seconds"]) for x, entry in entries]}, from_zero=True),
    ]
    return [chart for chart in charts if chart]


def _digit_curves(result: RunResult) -> list[Chart]:
    """Statistics that training keeps of each digit, such as its loss, accuracy and confidence."""
    entries = [(x, entry["statistics"]) for x, entry in enumerate(result.curve, start=1) if entry.get("statistics")]
    names = dict.fromkeys(name for _, of in entries for name, value in of.items() if isinstance(value, list))
    charts = []
    for name in names:
        known = [(x, of[name]) for x, of in entries if name in of]
        digits = range(min(len(values) for _, values in known))
        series = {f"digit {digit + 1}": [(x, values[digit]) for x, values in known] for digit in digits}
        charts.append(line_chart(name.removeprefix("digit_").replace("_", " "), series))
    return [chart for chart in charts if chart]


def _code_usage(result: RunResult) -> dict[str, Any] | None:
    """How many items have each code of each digit; None without semantic IDs."""
    path = result.check_file(ITEMS_FILE)
    header = list(read_header(path))
    if "sid" not in header:
        return None
    sids = np.array([row[header.index("sid")].split() for row in read_rows(path)], dtype=np.int64)  # [N, n]
    size = max(int(sids.max()) + 1, result.config.get("sid_codebook_size") or 0)
    counts = [np.bincount(column, minlength=size) for column in sids.T]
    shares = [of_digit[of_digit > 0] / len(sids) for of_digit in counts]
    series = {
        f"digit {number}": list(enumerate(map(float, -np.sort(-of_digit)), start=1))
        for number, of_digit in enumerate(counts, start=1)
    }
    return {
        "chart": line_chart("items per code, most used first", series, x_label="code", from_zero=True),
        "size": size,
        "num_items": len(sids),
        "distinct": len(np.unique(sids, axis=0)),
        "rows": [
            (int((of_digit > 0).sum()), int(of_digit.max()), float(-(share * np.log2(share)).sum()))
            for of_digit, share in zip(counts, shares)
        ],
        "even": float(np.log2(size)),
    }


def _add_ranks(users: list[dict[str, Any]], ranks: Ranks, mode: str) -> list[dict[str, Any]]:
    """What the test made of each example: its rank at the item level in each ranking, where it is in the list."""
    of_rankings = {describe_ranking(ranking, mode): ranks.get(rank_name("item", ranking)) for ranking in RANKINGS}
    with_ranks = []
    for user in users:
        found = {words: int(of_all[user["row"]]) for words, of_all in of_rankings.items() if of_all is not None}
        words = [
            f"{rank} ({name})" if rank < NOT_RANKED else f"not in the list ({name})" for name, rank in found.items()
        ]
        with_ranks.append({**user, "ranks": "; ".join(words)})
    return with_ranks

"""The report of a comparison: its tables, how far models are from the best one, and who wins for which users."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from recbole_diffgrm.errors import UserError
from recbole_diffgrm.evaluation.groups import TITLES, split_targets
from recbole_diffgrm.evaluation.intervals import bootstrap_intervals
from recbole_diffgrm.evaluation.ranks import LEVELS, RANKINGS, describe_ranking, rank_name
from recbole_diffgrm.evaluation.significance import Floats, correct_p_values, ndcg_at
from recbole_diffgrm.experiments.reports import page
from recbole_diffgrm.experiments.results_table import (
    Ranks,
    Row,
    compare_with_best,
    load_ranks,
    metric_at,
    per_user_ndcg,
)

if TYPE_CHECKING:
    from recbole_diffgrm.experiments.comparison import Comparison

LOST = "the ranks of a run are lost"

RanksOfRows = Mapping[str, list[Ranks]]  # {name: ranks of each of its runs}; rows without them are left out


def write(comparison: "Comparison") -> Path:
    assert comparison.path is not None
    return page.write(render(comparison), comparison.path)


def render(comparison: "Comparison") -> str:
    ranks = {row.name: of_row for row in comparison.rows if (of_row := _load_ranks(row))}
    untested = [row for row in comparison.rows if row.runs and row.name not in ranks]
    return page.render(
        "comparison.html",
        title=f"{comparison.dataset}: {', '.join(row.name for row in comparison.rows)}",
        tables=page.html_tables(comparison.tables("html")),
        warnings=[*filter(None, [comparison.warning]), *(f"{row.name} is not tested: {LOST}." for row in untested)],
        failures=[f"{row.name}: {error}" for row in comparison.rows for error in row.errors],
        differences=_differences(ranks, comparison, untested),
        winners=_winners(ranks, comparison),
        winners_ranking=describe_ranking(comparison.rankings[0], comparison.mode),
        runs=[
            (f"{row.name}, seed {run.seed}", _link(run.run_dir, comparison))
            for row in comparison.rows
            for run in row.runs
        ],
    )


def _load_ranks(row: Row) -> list[Ranks]:
    try:
        return [load_ranks(run) for run in row.runs]
    except UserError:  # the comparison has warned of it
        return []


def _link(run_dir: Path, comparison: "Comparison") -> str:
    assert comparison.path is not None
    return quote(Path(os.path.relpath(run_dir / page.REPORT_FILE, comparison.path)).as_posix())


def _differences(ranks: RanksOfRows, comparison: "Comparison", untested: list[Row]) -> list[dict[str, Any]]:
    """For each level and ranking: the users' NDCG@10 of every model minus that of the best one. None where one that
    cannot be tested is better."""
    rows_by_name = {row.name: row for row in comparison.rows}
    tables = []
    for level, ranking in [(level, ranking) for level in LEVELS for ranking in RANKINGS]:
        of_models = {name: per_user_ndcg(of_row, level, ranking) for name, of_row in ranks.items()}
        ndcg = {name: values for name, values in of_models.items() if values is not None}
        best, p_values = compare_with_best(ndcg)
        if best is None or not p_values:
            continue
        metric = metric_at(level)
        known = rows_by_name[best].means(ranking)[metric]
        if any(row.means(ranking).get(metric, 0) > known for row in untested):
            continue
        corrected = correct_p_values(p_values)
        rows: list[dict[str, Any]] = []
        for name, p_value in p_values.items():
            difference = ndcg[name] - ndcg[best]
            interval = bootstrap_intervals({name: difference}, np.arange(len(difference)))[name]
            shares = [float(part.mean()) for part in (difference > 0, difference == 0, difference < 0)]
            rows.append(
                {
                    "name": name,
                    "mean": float(ndcg[name].mean()),
                    "difference": float(difference.mean()),
                    "interval": interval,
                    "p": p_value,
                    "corrected": corrected[name],
                    "shares": shares,
                }
            )
        words = page.capitalize(f"{LEVELS[level]}, {describe_ranking(ranking, comparison.mode)}")
        scale = max(abs(end) for row in rows for end in row["interval"]) or 1.0
        mean = float(ndcg[best].mean())
        tables.append({"title": words, "best": best, "best_mean": mean, "rows": rows, "scale": scale})
    return tables


def _winners(ranks: RanksOfRows, comparison: "Comparison") -> list[dict[str, Any]]:
    """For each grouping of the test targets: NDCG@10 of each model in each group, and how far the first is ahead of the
    second."""
    ranking = comparison.rankings[0]
    key = rank_name("item", ranking)
    ndcg: dict[str, Floats] = {
        name: np.mean([ndcg_at(of_run[key]) for of_run in of_row], axis=0)
        for name, of_row in ranks.items()
        if all(key in of_run for of_run in of_row)
    }
    if not ndcg:
        return []
    first = next(iter(ranks.values()))[0]
    tables = []
    for grouping, title in TITLES.items():
        rows = []
        groups = split_targets(grouping, first[grouping]) if grouping in first else {}
        for group, is_member in groups.items():
            means = {name: float(values[is_member].mean()) for name, values in ndcg.items()}
            ahead, *behind = sorted(means, key=lambda name: -means[name])
            row = {"group": group, "targets": int(is_member.sum()), "means": means, "winner": ahead}
            if behind and means[ahead] > means[behind[0]]:  # else nobody leads
                difference = (ndcg[ahead] - ndcg[behind[0]])[is_member]
                lead = bootstrap_intervals({ahead: difference}, first["user"][is_member])[ahead]
                row |= {"second": behind[0], "lead": float(difference.mean()), "interval": lead}
            rows.append(row)
        if rows:
            tables.append({"title": title, "models": list(ndcg), "rows": rows})
    return tables

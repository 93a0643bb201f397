"""Charts of a study: bars of the short table, validation curves of its runs."""

from pathlib import Path

import numpy as np

from recbole_diffgrm.evaluation.significance import TESTED_METRIC
from recbole_diffgrm.experiments.results_table import describe, draw_bars, metric_at, new_figure, save_figure
from recbole_diffgrm.experiments.study.summary import SHOWN, Summary


def draw_short_table(summary: Summary, path: Path) -> None:
    """Test NDCG@10 of each row of the short table, at each level; whiskers of one standard deviation over seeds."""
    rows = [summary.rows[name] for name in summary.short_table.values()]
    series = {
        describe(level, ranking): [row.values(metric_at(level), ranking) for row in rows] for level, ranking in SHOWN
    }
    figure, (axes,) = new_figure(1, width=9, height=1.2 + 0.55 * len(rows))
    draw_bars(axes, list(summary.short_table), series, horizontal=True)
    axes.set_xlabel(f"{summary.plan['dataset']}, test NDCG@10")
    figure.legend(frameon=False, loc="outside upper center", ncols=len(series))
    save_figure(figure, path, dpi=120)


def draw_curves(summary: Summary, path: Path) -> None:
    """Validation NDCG@10 (item level) over training time, of the first seed."""
    figure, (axes,) = new_figure(1, width=9, height=4.5)
    for label, name in summary.short_table.items():
        run = summary.rows[name].runs[0]
        minutes = np.cumsum([entry["seconds"] for entry in run.curve]) / 60
        points = [(time, entry["valid"][TESTED_METRIC]) for time, entry in zip(minutes, run.curve) if "valid" in entry]
        if points:
            axes.plot(*zip(*points), marker=".", label=label)
    axes.set_xlabel("minutes of training")
    axes.set_ylabel("validation NDCG@10, item level")
    if axes.lines:
        axes.legend(frameon=False, fontsize=8)
    save_figure(figure, path, dpi=120)

"""Pictures of a study: bars of the short table, validation curves of its runs."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from recbole_diffgrm.study.summary import TESTED, Summary

LEVELS = {"items": (TESTED, False), "items, new to the user": (TESTED, True), "IDs": (f"sid_{TESTED}", False)}


def draw_bars(summary: Summary, path: Path) -> None:
    """Test NDCG@10 of each row of the short table, at each level; whiskers of one standard deviation over seeds."""
    labels = list(summary.short_table)
    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.55 * len(labels)), layout="constrained")
    places, height = np.arange(len(labels)), 0.8 / len(LEVELS)
    for number, (level, (metric, new)) in enumerate(LEVELS.items()):
        values = [summary.rows[summary.short_table[label]].values(metric, new) for label in labels]
        means = [of_row.mean() if len(of_row) else 0 for of_row in values]
        spread = [of_row.std(ddof=1) if len(of_row) > 1 else 0 for of_row in values]
        bars = axes.barh(places + (number - 1) * height, means, height, xerr=spread, label=level)
        texts = [f"{mean:.4f}" if len(of_row) else "" for mean, of_row in zip(means, values)]
        axes.bar_label(bars, texts, padding=3, fontsize=7)
    axes.set_yticks(places, labels)
    axes.invert_yaxis()
    axes.set_xlabel(f"{summary.plan['dataset']}, test NDCG@10")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, loc="outside upper center", ncols=len(LEVELS))
    figure.savefig(path, dpi=120)
    plt.close(figure)


def draw_curves(summary: Summary, path: Path) -> None:
    """Validation NDCG@10 (items, as validated) over the time spent in training."""
    figure, axes = plt.subplots(figsize=(9, 4.5), layout="constrained")
    for label, name in summary.short_table.items():
        run = summary.rows[name].runs[0]
        minutes = np.cumsum([entry["seconds"] for entry in run.curve]) / 60
        points = [(time, entry["valid"][TESTED]) for time, entry in zip(minutes, run.curve) if "valid" in entry]
        if points:
            axes.plot(*zip(*points), marker=".", label=label)
    axes.set_xlabel("minutes of training")
    axes.set_ylabel("validation NDCG@10, items")
    axes.spines[["top", "right"]].set_visible(False)
    if axes.lines:
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)

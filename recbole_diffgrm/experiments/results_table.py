"""Tables, tests and bars of test results: one row per model or run, each with one result per seed. Comparisons and
studies are made of these.

Level and ranking (evaluation/ranks.py) are arguments everywhere. Where one key is needed, as for p-values, it is the
name of the pair in ranks.npz: `item_all`, `item_unseen`, `sid_all` or `sid_unseen`.
"""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate

from recbole_diffgrm.evaluation.groups import Groups
from recbole_diffgrm.evaluation.ranks import LEVELS, RANKS_FILE, describe_ranking, rank_name
from recbole_diffgrm.evaluation.significance import TESTED_METRIC, Floats, ndcg_at, paired_p_value
from recbole_diffgrm.experiments.result import RunResult
from recbole_diffgrm.files import atomic_write, reading
from recbole_diffgrm.tokenizer.options import TokenizerOptions

NO_VALUE = "-"
NO_TERMINAL = (120, 24)  # columns and lines, of output that goes to a file
SID_KEYS = TokenizerOptions.keys() - {"sid_collision_order", "cache_dir"}  # settings that semantic IDs depend on

Ranks = Mapping[str, NDArray[Any]]  # {key: [targets] rank of each test target, from 1} and `user`, as in ranks.npz


@dataclass(frozen=True)
class Row:
    """A model, or a planned run, over its seeds."""

    name: str
    runs: list[RunResult]
    errors: list[Exception] = field(default_factory=list)

    def values(self, metric: str, ranking: str = "all") -> Floats:
        """One per run; empty where the runs have no such metric (no semantic IDs, or the ranking was not tested)."""
        tests = [run.test.get(ranking, {}) for run in self.runs]
        return np.array([metrics[metric] for metrics in tests if metric in metrics])

    def cell(self, metric: str, ranking: str = "all") -> str:
        """Mean, and the standard deviation over seeds where there are several."""
        values = self.values(metric, ranking)
        if len(values) == 0:
            return NO_VALUE if self.runs else "failed"
        return f"{values.mean():.4f}" + (f" ± {values.std(ddof=1):.4f}" if len(values) > 1 else "")

    def means(self, ranking: str) -> dict[str, float]:
        """Mean over seeds of every metric of a ranking."""
        names = dict.fromkeys(name for run in self.runs for name in run.test.get(ranking, {}))
        return {name: float(self.values(name, ranking).mean()) for name in names}

    def group_means(self, ranking: str) -> Groups:
        """Mean over seeds of every metric of every group of test targets (the same targets for every seed)."""
        of_runs = [run.groups[ranking] for run in self.runs if ranking in run.groups]
        return {
            grouping: [
                {
                    key: value if key in ("group", "targets") else float(np.mean([line[key] for line in lines]))
                    for key, value in lines[0].items()
                }
                for lines in zip(*(groups[grouping] for groups in of_runs))
            ]
            for grouping in (of_runs[0] if of_runs else {})
        }


def warn_of_other_sids(rows: Iterable[Row]) -> str:
    """A line where runs with the same settings of their semantic IDs do not have the same ones; else empty."""
    digests: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        for run in row.runs:
            settings = {key: value for key, value in run.config.items() if key in SID_KEYS}
            if run.sid_digest and settings:
                of_settings = digests.setdefault(json.dumps(settings, sort_keys=True), {})
                names = of_settings.setdefault(run.sid_digest, [])
                names += [row.name] if row.name not in names else []
    parts = [f"{digest}: {', '.join(names)}" for of in digests.values() if len(of) > 1 for digest, names in of.items()]
    return f"Runs with the same settings have different semantic IDs (by digest: {'; '.join(parts)})." if parts else ""


def describe_sample(runs: Iterable[RunResult]) -> str:
    """In words, where runs were tested on drawn users (num_test_users); else empty. What is a sample is called so."""
    drawn = {run.statistics["test_users"]: run.statistics["all_test_users"] for run in runs if run.test_intervals}
    return " or ".join(f"a sample of {drawn_users:,} of {users:,} test users" for drawn_users, users in drawn.items())


def describe(level: str, ranking: str, mode: str = "full") -> str:
    """In words, for headings and legends. Semantic IDs are shown in one ranking only, which goes without saying."""
    return LEVELS[level] if level == "sid" else f"{LEVELS[level]}, {describe_ranking(ranking, mode)}"


def metric_at(level: str, metric: str = TESTED_METRIC) -> str:
    """The name of a metric at a level: sid_ndcg@10 is ndcg@10 on semantic IDs."""
    return f"sid_{metric}" if level == "sid" else metric


def load_ranks(run: RunResult) -> dict[str, NDArray[Any]]:
    """All arrays of a run's ranks.npz: the ranks by key, and `user` and `target`."""
    path = run.check_file(RANKS_FILE)
    with reading(path), np.load(path) as saved:
        return dict(saved)


def per_user_ndcg(ranks_of_runs: Sequence[Ranks], level: str, ranking: str) -> Floats | None:
    """[users] NDCG@10, the mean over the runs (seeds); None where a run has no such ranks. A user with several targets
    counts once, with their mean: what a model does for one of them says something about the others, and a test that
    took them for independent would find too many differences."""
    key = rank_name(level, ranking)
    if not ranks_of_runs or not all(key in ranks for ranks in ranks_of_runs):
        return None
    ndcg: Floats = np.mean([ndcg_at(ranks[key]) for ranks in ranks_of_runs], axis=0)  # [targets]
    users, number = np.unique(ranks_of_runs[0].get("user", np.arange(len(ndcg))), return_inverse=True)
    if len(users) == len(ndcg):
        return ndcg
    of_users: Floats = np.bincount(number, weights=ndcg) / np.bincount(number)
    return of_users


def compare_with_best(ndcg: Mapping[str, Floats]) -> tuple[str | None, dict[str, float]]:
    """{name: [num_users]} -> the name with the highest mean, and the p-value of each of the others against it."""
    if not ndcg:
        return None, {}
    best = max(ndcg, key=lambda name: float(ndcg[name].mean()))
    return best, {name: paired_p_value(values, ndcg[best]) for name, values in ndcg.items() if name != best}


def shown_metrics(names: Iterable[str]) -> list[str]:
    """Those that tables for people show: with one target a row hit@k is recall@k again. Files for programs have all."""
    names = list(names)
    return [name for name in names if not (name.startswith("hit@") and name.replace("hit", "recall") in names)]


def best_epoch_cell(best_epoch: int | None, epochs: int) -> str:
    """7 of 9; - of 9 where no epoch was validated; empty where none was trained."""
    return f"{best_epoch or NO_VALUE} of {epochs}" if epochs else ""


def format_table(body: Iterable[Sequence[Any]], head: Sequence[str], style: str = "github") -> str:
    """`style`: `screen`, or one of tabulate's; `github` is Markdown. Cells are shown as they are."""
    if style == "screen":
        return _screen_table([list(head), *([str(cell) for cell in line] for line in body)])
    return tabulate(list(body), list(head), tablefmt=style, disable_numparse=True)


def _screen_table(lines: list[list[str]]) -> str:
    """No wider than the terminal: columns that do not fit make a further block, below, with the first column again.
    Of a cell that would fill more than half of it only the beginning is shown."""
    room = shutil.get_terminal_size(NO_TERMINAL).columns
    lines = [[cell if len(cell) <= room // 2 else cell[: room // 2 - 3] + "..." for cell in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*lines)]
    blocks: list[list[int]] = []  # columns of each
    for column in range(1, len(widths)):
        if not blocks or sum(widths[c] + 2 for c in blocks[-1]) + widths[column] > room:
            blocks.append([0])
        blocks[-1].append(column)
    rules = ["-" * width for width in widths]
    return "\n\n".join(
        "\n".join("  ".join(line[c].ljust(widths[c]) for c in block).rstrip() for line in [lines[0], rules, *lines[1:]])
        for block in blocks
    )


def new_figure(rows: int, width: float, height: float) -> tuple[Any, list[Any]]:
    """A figure with `rows` panels one below the other, and these. matplotlib is imported here: it takes a second."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(rows, figsize=(width, height), layout="constrained", squeeze=False)
    for axes in panels[:, 0]:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, list(panels[:, 0])


def draw_bars(
    axes: Any,
    groups: Sequence[str],
    series: Mapping[str, Sequence[Floats]],
    *,
    horizontal: bool = False,
    colors: Sequence[str] = (),
) -> None:
    """Grouped bars: in each group one bar per series, the mean of its values (one per seed), with a whisker of one
    standard deviation where there are several. Horizontal bars run from the top and have their means beside them."""
    thickness = 0.8 / max(1, len(series))
    for number, (label, values) in enumerate(series.items()):
        offset = (number - (len(series) - 1) / 2) * thickness
        means = [of_group.mean() if len(of_group) else 0 for of_group in values]
        spread = [of_group.std(ddof=1) if len(of_group) > 1 else 0 for of_group in values]
        bars = (axes.barh if horizontal else axes.bar)(
            np.arange(len(groups)) + offset,
            means,
            thickness,
            label=label,
            color=colors[number] if colors else None,
            capsize=2,
            **({"xerr" if horizontal else "yerr": spread} if any(spread) else {}),
        )
        if horizontal:
            texts = [f"{mean:.4f}" if len(of_group) else "" for mean, of_group in zip(means, values)]
            axes.bar_label(bars, texts, padding=3, fontsize=7)
    (axes.set_yticks if horizontal else axes.set_xticks)(np.arange(len(groups)), groups)
    if horizontal:
        axes.invert_yaxis()


def save_figure(figure: Any, path: Path, dpi: int) -> None:
    import matplotlib.pyplot as plt

    with atomic_write(path) as file:
        figure.savefig(file, dpi=dpi)
    plt.close(figure)

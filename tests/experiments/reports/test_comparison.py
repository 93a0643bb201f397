"""The report of a comparison: differences, corrected p-values and winners, against numpy and scipy."""

import shutil

import numpy as np
import pytest
from scipy import stats

from recbole_diffgrm.cli.report import main
from recbole_diffgrm.evaluation.significance import ndcg_at
from recbole_diffgrm.experiments.comparison import load
from tests.evaluation.test_intervals import plain_bootstrap
from tests.experiments.reports.conftest import report_of
from tests.experiments.reports.test_run import Page


@pytest.fixture(scope="module")
def ndcg(finished) -> dict[str, np.ndarray]:
    values = {}
    for row in finished.comparison.rows:
        with np.load(row.runs[0].run_dir / "ranks.npz") as saved:
            values[row.name] = ndcg_at(saved["item_all"])
    return values


def test_differences_from_the_best(finished, ndcg):
    best = max(ndcg, key=lambda name: ndcg[name].mean())
    others = [name for name in ndcg if name != best]
    p_values = {name: stats.ttest_rel(ndcg[name], ndcg[best]).pvalue for name in others}
    small, large = sorted(others, key=lambda name: p_values[name])
    corrected = {small: min(1, 2 * p_values[small]), large: max(min(1, 2 * p_values[small]), p_values[large])}
    text = report_of(finished.comparison.path)
    assert f"Item level, all items: best is {best}, {ndcg[best].mean():.4f}" in text
    rows = Page(text).rows
    start = rows.index(["", "NDCG@10", "difference", "p", "corrected", "better, equal, worse"])
    assert [row[0] for row in rows[start + 1 : start + 3]] == others
    for row in rows[start + 1 : start + 3]:
        difference = ndcg[row[0]] - ndcg[best]
        mean, low, _, high = row[2].split()
        assert row[1] == f"{ndcg[row[0]].mean():.4f}" and mean == f"{difference.mean():+.4f}"
        expected = plain_bootstrap(difference, np.arange(len(difference)), seed=4)
        assert (float(low), float(high)) == pytest.approx(tuple(expected), abs=0.08 * np.ptp(expected))
        assert row[3:5] == [f"{p_values[row[0]]:.2g}", f"{corrected[row[0]]:.2g}"]
        shares = [(difference > 0).mean(), (difference == 0).mean(), (difference < 0).mean()]
        assert row[5] == ", ".join(f"{100 * share:.0f} %" for share in shares)


def test_who_wins_for_whom(finished, ndcg):
    rows = Page(report_of(finished.comparison.path)).rows
    with np.load(finished.run.run_dir / "ranks.npz") as saved:
        is_member = (saved["history_length"] >= 6) & (saved["history_length"] <= 10)
    row = next(row for row in rows if row and row[0] == "6-10")
    means = [values[is_member].mean() for values in ndcg.values()]
    assert row[1:5] == [str(is_member.sum()), *(f"{mean:.4f}" for mean in means)]
    first, second = sorted(means, reverse=True)[:2]
    assert row[5].split()[0] == f"{first - second:+.4f}"


def test_tables_and_links_to_the_runs(finished):
    text = report_of(finished.comparison.path)
    for row in finished.comparison.rows:
        assert f'href="../{row.runs[0].run_dir.name}/report.html"' in text
        assert any(cells[:2] == [row.name, row.cell("recall@5")] for cells in Page(text).rows)


def test_again_from_the_directory(finished, capsys):
    path = finished.comparison.path / "report.html"
    before = path.read_bytes()
    path.unlink()
    assert main([str(finished.comparison.path)]) == 0
    assert capsys.readouterr().out == f"report: {path}\n" and path.read_bytes() == before
    loaded = load(finished.comparison.path)
    assert str(loaded) == str(finished.comparison) and loaded.p_values == finished.comparison.p_values


@pytest.mark.parametrize("is_best", [True, False])
def test_nobody_is_best_for_lack_of_ranks(finished, ndcg, is_best, tmp_path):
    """A model whose ranks are lost is named, and no other is called the best if it is better."""
    by_mean = sorted(ndcg, key=lambda name: -ndcg[name].mean())
    lost = by_mean[0] if is_best else by_mean[-1]
    folder = shutil.copytree(finished.comparison.path.parent, tmp_path / "tiny")
    next(folder.glob(f"{lost}-*/ranks.npz")).unlink()
    saved = folder / finished.comparison.path.name
    content = (saved / "comparison.json").read_text()
    (saved / "comparison.json").write_text(content.replace(str(finished.comparison.path.parent), str(folder)))
    assert main([str(saved)]) == 0
    text = report_of(saved)
    assert f"{lost} is not tested" in text
    assert (f"all items: best is {by_mean[0]}" in text) == (
        not is_best
    ) and f"best is {by_mean[1]}, {ndcg[by_mean[1]].mean():.4f}" not in text

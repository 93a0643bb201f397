"""Rows, tests and bars of results, against numbers worked out by hand."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from recbole_diffgrm.experiments.result import RunResult
from recbole_diffgrm.experiments.results_table import (
    Row,
    best_epoch_cell,
    compare_with_best,
    describe,
    draw_bars,
    format_table,
    load_ranks,
    metric_at,
    new_figure,
    per_user_ndcg,
    save_figure,
    shown_metrics,
)

LEVELS = ("item", "sid")
RANKINGS = ("all", "unseen")


def make_run(test, run_dir=Path(), seed=1) -> RunResult:
    return RunResult(
        model="Model",
        dataset="tiny",
        seed=seed,
        config_hash=f"hash{seed}",
        run_dir=run_dir,
        valid={},
        test=test,
        best_epoch=1,
        epochs=1,
        curve=[],
        seconds={"train": 1.0, "valid": 0.0, "test": 0.0},
        peak_memory_mib=1.0,
        parameters=1,
        statistics={},
        config={},
        environment={},
    )


def slow_ndcg(ranks) -> list[float]:
    """Of each user, at 10, one by one."""
    return [1 / np.log2(rank + 1) if rank <= 10 else 0.0 for rank in ranks]


def slow_p_value(first, second) -> float:
    """Two-sided p of a paired t-test, by its formula."""
    difference = [a - b for a, b in zip(first, second)]
    count, mean = len(difference), sum(difference) / len(difference)
    variance = sum((value - mean) ** 2 for value in difference) / (count - 1)
    return 2 * stats.t.sf(abs(mean) / (variance / count) ** 0.5, count - 1)


def test_values_and_cells():
    row = Row(
        "Model",
        [
            make_run({"all": {"ndcg@10": 0.1, "sid_ndcg@10": 0.4}, "unseen": {"ndcg@10": 0.2}}, seed=1),
            make_run({"all": {"ndcg@10": 0.3, "sid_ndcg@10": 0.4}, "unseen": {"ndcg@10": 0.25}}, seed=2),
        ],
    )
    assert row.values("ndcg@10").tolist() == row.values("ndcg@10", "all").tolist() == [0.1, 0.3]
    assert row.values("ndcg@10", "unseen").tolist() == [0.2, 0.25]
    deviation = ((0.1 - 0.2) ** 2 + (0.3 - 0.2) ** 2) ** 0.5  # over n - 1 = 1
    assert row.cell("ndcg@10") == f"0.2000 ± {deviation:.4f}" == "0.2000 ± 0.1414"
    assert row.cell("sid_ndcg@10", "all") == "0.4000 ± 0.0000"
    assert row.means("all") == {"ndcg@10": pytest.approx(0.2), "sid_ndcg@10": pytest.approx(0.4)}
    assert row.means("unseen") == {"ndcg@10": pytest.approx(0.225)}
    assert Row("Model", row.runs[:1]).cell("ndcg@10", "unseen") == "0.2000"


def test_what_a_row_does_not_have():
    filtered = Row("Model", [make_run({"unseen": {"ndcg@10": 0.2}})])  # repeatable: False
    assert len(filtered.values("ndcg@10")) == 0 and filtered.cell("ndcg@10") == "-"
    assert filtered.cell("sid_ndcg@10", "unseen") == "-" and filtered.means("all") == {}
    failed = Row("Model", [], [ValueError("x")])
    assert failed.cell("ndcg@10") == "failed" and failed.means("all") == {}


def test_names_of_levels_and_rankings():
    assert [describe(level, ranking) for level, ranking in (("item", "all"), ("item", "unseen"), ("sid", "all"))] == [
        "item level, all items",
        "item level, seen items filtered",
        "SID level",
    ]
    assert [metric_at(level) for level in LEVELS] == ["ndcg@10", "sid_ndcg@10"]
    assert metric_at("sid", "recall@10") == "sid_recall@10"


def test_per_user_ndcg_and_its_test(tmp_path):
    rng = np.random.default_rng(0)
    ranks = {}  # {model: of each seed}
    for model in ("A", "B", "C"):
        ranks[model] = []
        for seed in (1, 2):
            run_dir = tmp_path / f"{model}-{seed}"
            run_dir.mkdir()
            arrays = {
                f"{level}_{ranking}": rng.integers(1, 30, 50, np.int32) for level in LEVELS for ranking in RANKINGS
            }
            if model == "C":
                del arrays["sid_all"], arrays["sid_unseen"]
            np.savez(run_dir / "ranks.npz", user=np.arange(50).astype(str), target=np.array(["i"] * 50), **arrays)
            ranks[model].append(load_ranks(make_run({}, run_dir, seed)))
    for level in LEVELS:
        for ranking in RANKINGS:
            ndcg, slow = {}, {}
            for model, of_seeds in ranks.items():
                if level == "sid" and model == "C":
                    assert per_user_ndcg(of_seeds, level, ranking) is None
                    continue
                ndcg[model] = per_user_ndcg(of_seeds, level, ranking)
                first, second = (slow_ndcg(of_seed[f"{level}_{ranking}"]) for of_seed in of_seeds)
                slow[model] = [(a + b) / 2 for a, b in zip(first, second)]
                assert ndcg[model].tolist() == pytest.approx(slow[model])
            best, p_values = compare_with_best(ndcg)
            assert best == max(slow, key=lambda model: sum(slow[model]))
            others = {model for model in slow if model != best}
            assert p_values == {model: pytest.approx(slow_p_value(slow[model], slow[best])) for model in others}
    del ranks["A"][1]["item_all"]  # one seed without ranks: no mean over seeds
    assert per_user_ndcg(ranks["A"], "item", "all") is None and per_user_ndcg([], "item", "all") is None
    assert compare_with_best({}) == (None, {})


def test_a_user_with_several_targets_counts_once():
    ranks = {"item_all": np.array([1, 3, 2, 99]), "user": np.array(["b", "b", "a", "b"])}
    first, second, third, fourth = slow_ndcg(ranks["item_all"])
    expected = [third, (first + second + fourth) / 3]  # of a, of b
    assert per_user_ndcg([ranks], "item", "all").tolist() == pytest.approx(expected)


def test_table_shows_cells_as_they_are():
    assert format_table([["A", "0.1000"], ["B", "1e-05"]], ["model", "p"]).splitlines() == [
        "| model   | p      |",
        "|---------|--------|",
        "| A       | 0.1000 |",
        "| B       | 1e-05  |",
    ]


@pytest.mark.parametrize("horizontal", [False, True])
def test_bars_are_means_with_a_standard_deviation(tmp_path, horizontal):
    figure, (axes,) = new_figure(1, width=4, height=3)
    values = {"A": [np.array([0.1, 0.3]), np.array([0.5])], "B": [np.array([]), np.array([0.25])]}
    draw_bars(axes, ["first", "second"], values, horizontal=horizontal)
    bars = [container for container in axes.containers if hasattr(container, "patches")]
    assert [bar.get_label() for bar in bars] == ["A", "B"]
    lengths = [[(p.get_width if horizontal else p.get_height)() for p in bar.patches] for bar in bars]
    assert lengths == [pytest.approx([0.2, 0.5]), pytest.approx([0, 0.25])]
    whisker = bars[0].errorbar.lines[2][0].get_segments()[0][:, 0 if horizontal else 1]
    assert whisker.tolist() == pytest.approx([0.2 - 0.02**0.5, 0.2 + 0.02**0.5])
    assert bars[1].errorbar is None  # a single seed has no deviation
    assert [text.get_text() for text in axes.texts] == (["0.2000", "0.5000", "", "0.2500"] if horizontal else [])
    labels = axes.get_yticklabels() if horizontal else axes.get_xticklabels()
    assert [label.get_text() for label in labels] == ["first", "second"]
    save_figure(figure, tmp_path / "bars.png", dpi=50)
    assert (tmp_path / "bars.png").stat().st_size > 0


# What people see


def test_a_table_is_no_wider_than_the_terminal(monkeypatch):
    head = ["model", "recall@5", "recall@10", "ndcg@5", "ndcg@10", "p vs best", "why"]
    body = [["SASRec", *["0.1234 ± 0.0001"] * 4, "best", ""], ["Pop", *["0.0123"] * 4, 0.5, "x" * 500]]
    for columns in (40, 60, 80, 100, 1200):
        monkeypatch.setenv("COLUMNS", str(columns))
        table = format_table(body, head, "screen")
        assert max(map(len, table.splitlines())) <= columns
        blocks = [block.splitlines() for block in table.split("\n\n")]
        assert (len(blocks) == 1) == (columns == 1200)
        for number, cells in {0: head, 2: body[0]}.items():  # all is there in its order, under the name of the row
            assert {block[number].split()[0] for block in blocks} == {cells[0]}
            shown = [cell.strip() for block in blocks for cell in block[number].split("  ")[1:] if cell.strip()]
            assert shown == [cell for cell in cells[1:] if cell]


def test_hit_is_shown_only_where_recall_is_not():
    assert shown_metrics(["recall@5", "hit@5", "hit@10", "sid_recall@5", "mrr@5"]) == [
        "recall@5",
        "hit@10",
        "sid_recall@5",
        "mrr@5",
    ]


def test_the_best_epoch_is_never_none():
    assert [best_epoch_cell(*pair) for pair in ((7, 9), (None, 9), (None, 0))] == ["7 of 9", "- of 9", ""]

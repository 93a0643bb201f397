"""Comparisons of several models and seeds, as people use them."""

import csv
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from recbole_diffgrm import UserError, compare
from recbole_diffgrm.cli.main import main
from recbole_diffgrm.errors import Interrupted
from recbole_diffgrm.evaluation.significance import ndcg_at, paired_p_value
from recbole_diffgrm.experiments.result import RunResult
from recbole_diffgrm.models import get_model


def arguments(options: dict) -> list[str]:
    settings = {**options, "config_files": " ".join(map(str, options["config_files"]))}
    return ["--dataset=tiny", *(f"--{key}={value}" for key, value in settings.items())]


@pytest.mark.slow
def test_comparison(options, capsys):
    models = ["SASRec", "GRU4Rec"]
    assert main([*arguments(options), "--model=SASRec,GRU4Rec", "--seeds=1,2", "--n_layers=1"]) == 0
    printed = capsys.readouterr().out
    assert "±" in printed and "best" in printed

    (folder,) = (Path(options["output_dir"]) / "tiny").glob("comparison-*")
    content = json.loads((folder / "comparison.json").read_text())
    assert [row["model"] for row in content["models"]] == models
    assert sorted(path.suffix for path in folder.iterdir()) == [".csv", ".html", ".json", ".md", ".png"]
    table = list(csv.DictReader((folder / "comparison.csv").read_text().splitlines()))
    assert [(row["model"], row["seed"]) for row in table] == [(m, s) for m in models for s in ("1", "2")]
    assert "| SASRec" in (folder / "comparison.md").read_text()

    results = {row["model"]: [RunResult.load(Path(run["run_dir"])) for run in row["runs"]] for row in content["models"]}
    for ranking, column in {"all": "ndcg@10", "unseen": "ndcg@10_unseen"}.items():
        per_user = {}
        for row in content["models"]:
            runs = results[row["model"]]
            assert {run.seed for run in runs} == {1, 2}
            saved = [np.load(run.run_dir / "ranks.npz")[f"item_{ranking}"] for run in runs]
            per_user[row["model"]] = np.mean([ndcg_at(ranks) for ranks in saved], axis=0)
            assert row["mean"][ranking]["ndcg@10"] == pytest.approx(np.mean([r.test[ranking]["ndcg@10"] for r in runs]))
            shown = {float(line[column]) for line in table if line["model"] == row["model"]}
            assert shown == {run["test"][ranking]["ndcg@10"] for run in row["runs"]}
        best = max(models, key=lambda model: per_user[model].mean())
        other = next(model for model in models if model != best)
        assert content["best"][f"item_{ranking}"] == best
        p_values = {row["model"]: row["p_values"].get(f"item_{ranking}") for row in content["models"]}
        assert p_values == {best: None, other: pytest.approx(paired_p_value(per_user[other], per_user[best]))}


@pytest.mark.slow
def test_levels_and_rankings_side_by_side(options):
    """Every number is under the name of its level and ranking, in the tables and in all files."""
    comparison = compare(["DiffGRM", "SASRec", "Pop"], "tiny", **options, seeds=[1, 2])
    tables = comparison.tables()
    headings = {"all": "item level, all items", "unseen": "item level, seen items filtered"}
    assert list(tables) == [*headings.values(), "SID level"]
    rows = {row.name: row for row in comparison.rows}
    for ranking, heading in headings.items():
        assert "sid_" not in tables[heading] and "Pop" in tables[heading]
        for row in comparison.rows:
            values = row.values("ndcg@10", ranking)
            saved = [np.load(run.run_dir / "ranks.npz")[f"item_{ranking}"] for run in row.runs]
            assert values == pytest.approx([ndcg_at(ranks).mean() for ranks in saved])
            assert row.cell("ndcg@10", ranking) in tables[heading]
        assert f"item_{ranking}" not in comparison.p_values[comparison.best[f"item_{ranking}"]]
    assert "seconds" in tables[headings["all"]] and "seconds" not in tables[headings["unseen"]]
    assert "sid_ndcg@10" in tables["SID level"] and "SASRec" not in tables["SID level"]
    assert f"{rows['DiffGRM'].values('sid_ndcg@10').mean():.4f}" in tables["SID level"]
    text = (comparison.path / "comparison.md").read_text()
    assert all(
        f"## {words}\n" in text for words in ("Item level, all items", "Item level, seen items filtered", "SID level")
    )
    models = json.loads((comparison.path / "comparison.json").read_text())["models"]
    for ranking in headings:
        assert "sid_ndcg@10" in models[0]["mean"][ranking] and "sid_ndcg@10" not in models[1]["mean"][ranking]
    header, first, *_ = (comparison.path / "comparison.csv").read_text().splitlines()
    assert len(header.split(",")) == len(first.split(",")) and "sid_ndcg@10_unseen" in header
    with np.load(rows["DiffGRM"].runs[0].run_dir / "ranks.npz") as saved:
        item, sid = saved["item_all"], saved["sid_all"]
    assert (sid <= item).all()
    assert np.mean(sid <= 5) == pytest.approx(rows["DiffGRM"].runs[0].test["all"]["sid_recall@5"])


def test_seen_items_filtered_from_every_ranking(options):
    comparison = compare(["HistoryCopy", "Pop"], "tiny", **options, repeatable=False)
    assert list(comparison.tables()) == ["item level, seen items filtered", "SID level"]
    assert "seconds" in comparison.tables()["item level, seen items filtered"]
    assert set(comparison.best) == {"item_unseen"}
    models = json.loads((comparison.path / "comparison.json").read_text())["models"]
    assert [set(row["mean"]) for row in models] == [{"unseen"}, {"unseen"}]
    lines = list(csv.DictReader((comparison.path / "comparison.csv").read_text().splitlines()))
    assert [line["ndcg@10"] for line in lines] == ["", ""]
    assert [float(line["ndcg@10_unseen"]) for line in lines] == [row["mean"]["unseen"]["ndcg@10"] for row in models]


@pytest.mark.slow
def test_finished_runs_are_used_again(options, capsys):
    first = compare(["SASRec", "GRU4Rec"], "tiny", **options)
    again = compare(["SASRec", "GRU4Rec"], "tiny", **options)
    assert [row.runs[0].run_dir for row in again.rows] == [row.runs[0].run_dir for row in first.rows]
    assert again.path != first.path
    anew = compare(["SASRec", "GRU4Rec"], "tiny", **options, rerun=True)
    assert {row.runs[0].run_dir for row in anew.rows}.isdisjoint({row.runs[0].run_dir for row in first.rows})
    data = options["config_files"][0].parent / "tiny" / "tiny.inter"
    before = data.read_text()
    try:  # other data under the same name is not the same configuration
        data.write_text(before + "u0\ti0\t5\t99999\n")
        changed = compare(["SASRec", "GRU4Rec"], "tiny", **options)
    finally:
        data.write_text(before)
    assert changed.rows[0].runs[0].run_dir not in {row.runs[0].run_dir for row in [*first.rows, *anew.rows]}


@pytest.mark.slow
def test_one_failure_does_not_lose_the_others(options, capsys, monkeypatch):
    monkeypatch.setattr(get_model("GRU4Rec"), "calculate_loss", lambda self, interaction: 1 / 0)
    assert main([*arguments(options), "--model=SASRec,GRU4Rec,HGN"]) == 1
    written = capsys.readouterr()
    assert "error: GRU4Rec: division by zero" in written.err
    assert "failed" in written.out and written.out.count("seed 2020") == 2
    (failed,) = (Path(options["output_dir"]) / "tiny").glob("GRU4Rec-*")
    assert "ZeroDivisionError" in (failed / "log.txt").read_text()
    monkeypatch.undo()
    assert main([*arguments(options), "--model=SASRec,GRU4Rec,HGN"]) == 0  # only the missing one is trained
    assert capsys.readouterr().out.count("finished already") == 2


def test_nothing_but_failures(options, capsys, monkeypatch):
    """There are no results to test or draw, and what went wrong is written."""
    for model in ("SASRec", "GRU4Rec"):
        monkeypatch.setattr(get_model(model), "calculate_loss", lambda self, interaction: 1 / 0)
    assert main([*arguments(options), "--model=SASRec,GRU4Rec"]) == 1
    (folder,) = (Path(options["output_dir"]) / "tiny").glob("comparison-*")
    content = json.loads((folder / "comparison.json").read_text())
    assert content["best"] == {} and not (folder / "comparison.png").exists()
    assert [row["errors"] for row in content["models"]] == [["ZeroDivisionError: division by zero"]] * 2
    assert "Failed: GRU4Rec: division by zero" in (folder / "comparison.md").read_text()


@pytest.mark.slow
def test_lists_asked_for_later_are_made(options):
    first = compare(["SASRec", "HGN"], "tiny", **options)
    again = compare(["SASRec", "HGN"], "tiny", **options, save_topk=3)
    for row, other in zip(again.rows, first.rows):
        assert row.runs[0].run_dir != other.runs[0].run_dir
        assert (row.runs[0].run_dir / "topk.tsv").exists()
        assert row.runs[0].test == other.runs[0].test


def test_a_signal_at_the_end_stops_the_comparison(options, monkeypatch):
    save = RunResult.save
    monkeypatch.setattr(RunResult, "save", lambda self: (os.kill(os.getpid(), signal.SIGTERM), save(self)))
    with pytest.raises(Interrupted):
        compare(["SASRec", "GRU4Rec"], "tiny", **options)
    assert [path.name.split("-")[0] for path in (Path(options["output_dir"]) / "tiny").iterdir()] == ["SASRec"]


@pytest.mark.slow
def test_negative_items_are_for_the_models_that_take_them(options):
    settings = {**options, "loss_type": "BPR", "train_neg_sample_args": {"distribution": "uniform", "sample_num": 2}}
    compared = compare(["DiffGRM", "SASRec"], "tiny", **{**settings, "epochs": 1})
    assert [row.errors for row in compared.rows] == [[], []]
    assert {row.name: row.runs[0].config["train_neg_sample_args"] for row in compared.rows} == {
        "DiffGRM": None,
        "SASRec": {"distribution": "uniform", "sample_num": 2},
    }


def test_a_preset_is_for_the_models_that_have_it(options):
    compared = compare(["DiffGRM", "Pop"], "tiny", **{**options, "epochs": 0}, preset="cpu")
    assert [row.errors for row in compared.rows] == [[], []]
    assert [row.runs[0].config["num_valid_users"] for row in compared.rows] == [2000, None]


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"models": ["Pop", "Pop"]}, ["model", "Pop"]),
        ({"seeds": [1, 1]}, ["seeds", "1"]),
        ({"seeds": [1], "seed": 1}, ["seed", "seeds"]),
        ({"resume": True, "rerun": True}, ["resume", "rerun"]),
        ({"eval_args": {"split": {"LS": "valid_only"}}}, ["eval_args", "valid_only"]),
        ({"preset": "nothing"}, ["preset", "nothing"]),
    ],
)
def test_mistakes(options, changes, keys):
    with pytest.raises(UserError) as error:
        compare(**{"models": ["Pop", "SASRec"], "dataset": "tiny", **options, **changes})
    assert all(key in str(error.value) for key in keys)
    assert not Path(options["output_dir"]).exists()


def test_models_with_other_metrics(options, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text("models: {Pop: {topk: [10]}}\n")
    options["config_files"].append(other)
    with pytest.raises(UserError, match=r"metrics and topk.*Pop"):
        compare(["SASRec", "Pop"], "tiny", **options)


def test_a_comparison_prints_as_its_tables(options, capsys, monkeypatch):
    comparison = compare(["Pop", "HistoryCopy"], "tiny", **options, seeds=[1, 2])
    for columns in (80, 100):
        monkeypatch.setenv("COLUMNS", str(columns))
        tables, files = str(comparison).rsplit("\n\n", 1)
        assert max(map(len, tables.splitlines())) <= columns
        assert tables.startswith("tiny: test metrics, item level, all items\n\nmodel")
        assert "tiny: test metrics, SID level" in tables and "Comparison(" not in tables
        assert "recall@10" in tables and "hit@10" not in tables
        assert files.splitlines()[0] == f"Pop, seed 1: {comparison.rows[0].runs[0].run_dir}"
        assert files.endswith(f"comparison: {comparison.path}\nreport: {comparison.path / 'report.html'}")
    page = (comparison.path / "comparison.md").read_text()
    assert "hit@" not in page and comparison._repr_markdown_() == page
    assert "hit@10" in (comparison.path / "comparison.csv").read_text()  # programs get everything
    assert "hit@10" in (comparison.path / "comparison.json").read_text()

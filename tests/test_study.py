"""A study: run, stop, go on, report; and the pages in results/, which nobody may have edited."""

import json

import pytest
import yaml

from recbole_diffgrm.study.__main__ import main
from recbole_diffgrm.study.page import render, short_table, with_short_table
from recbole_diffgrm.study.plan import read_plan
from recbole_diffgrm.study.summary import Summary
from tests.conftest import ROOT, run_python

STUDIES = sorted((ROOT / "properties" / "study").glob("*.yaml"))
FINISHED = sorted((ROOT / "results").glob("*.json"))


@pytest.fixture
def study(options, tmp_path):
    """(path of a plan with three runs, its content, command-line options)."""
    config = yaml.safe_load(options["config_files"][0].read_text())
    models = config.pop("models")
    common = {**config, "epochs": 2, "train_batch_size": 64, "MAX_ITEM_LIST_LENGTH": 10}
    content = {
        "dataset": "tiny",
        "title": "A small study",
        "text": "Why it was made.",
        "settings": common,
        "sections": [
            {"title": "Baselines", "runs": {"Pop": {"model": "Pop"}, "SASRec": {"model": "SASRec", "seeds": [1, 2]}}},
            {
                "title": "DiffGRM",
                "text": "What was tried.",
                "compared_with": "plain",
                "runs": {
                    "plain": {"model": "DiffGRM", "settings": models["DiffGRM"]},
                    "with items": {"model": "DiffGRM", "settings": {**models["DiffGRM"], "item_head": True}},
                    "items alone": {"weights_of": "with items", "settings": {"id_weight": 0}},
                },
            },
        ],
        "short_table": {"SASRec": ["SASRec"], "Pop": ["Pop"], "DiffGRM": ["plain", "with items"]},
        "champion": "DiffGRM",
        "published": {"text": "Other: theirs.", "rows": {"Other": {"level": "SID", "recall@10": 0.5, "ndcg@10": 0.25}}},
    }
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    words = [f"--data_path={options['data_path']}", f"--output_dir={tmp_path / 'runs'}", "--show_progress=False"]
    return path, content, [*words, f"--results={tmp_path / 'results'}"]


def test_from_plan_to_page(study, tmp_path, capsys):
    path, _, options = study
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- small -->\nold\n<!-- end of small -->\nafter\n")
    assert main([str(path), *options, "--only=SASRec; Pop"]) == 0
    page = (tmp_path / "results" / "small.md").read_text()
    assert "Not finished: DiffGRM." in page and "Not finished: plain, with items, items alone." in page
    assert main([str(path), *options, f"--readme={readme}"]) == 0
    assert capsys.readouterr().out.count("finished already") == 3
    results = tmp_path / "results"
    page = (results / "small.md").read_text()
    assert (
        "Not finished" not in page and (results / "small-bars.png").exists() and (results / "small-curves.png").exists()
    )
    found = {
        path.parent.name.split("-")[0]: json.loads(path.read_text())
        for path in (tmp_path / "runs").rglob("result.json")
    }
    assert (
        f"| {found['Pop']['test']['recall@10']:.4f} " in page
        and f"| {found['Pop']['test_new']['ndcg@10']:.4f} " in page
    )
    summary = Summary.load(results / "small.json")
    seeds = [run.test["ndcg@10"] for run in summary.rows["SASRec"].runs]
    assert f"{sum(seeds) / 2:.4f} ± " in page
    best = max(("plain", "with items"), key=lambda name: summary.rows[name].runs[0].valid["ndcg@10"])
    assert summary.short_table["DiffGRM"] == best
    assert set(summary.champion_tests) == {"SASRec", "Pop"} and set(summary.champion_tests["Pop"]) == {
        "rank",
        "rank_new",
    }
    assert set(summary.tests["with items"]) == {"rank", "rank_new", "sid_rank"}
    ours, theirs = (summary.rows[name].runs[0].test["sid_ndcg@10"] for name in ("with items", "plain"))
    assert f"{ours / theirs - 1:+.1%} ({summary.tests['with items']['sid_rank']:.1g})" in page
    assert "0.5000" in page and "Other: theirs." in page and "What was tried." in page
    assert "--seeds=1,2" in page and "--retest=RUN --id_weight=0   # RUN: with items" in page
    alone, fused = (summary.rows[name].runs[0] for name in ("items alone", "with items"))
    assert alone.weights_of == fused.config_hash and alone.test != fused.test and alone.seconds["train"] == 0
    text = readme.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert short_table(summary) in text
    (results / "small.md").unlink()
    assert main([str(path), f"--results={results}", "--render"]) == 0  # without data
    assert (results / "small.md").read_text() == page


def test_through_the_command_line_and_resumed(study, tmp_path):
    """Killed in the second run, the same command finishes it; the first is kept."""
    path, _, options = study
    done = run_python("-m", "recbole_diffgrm.study", path, *options, "--only=Pop")
    assert done.returncode == 0 and "1 of 1: Pop" in done.stdout
    done = run_python("-m", "recbole_diffgrm.study", path, *options, "--report")
    assert done.returncode == 0 and "of 1" not in done.stdout
    assert "Pop" in (tmp_path / "results" / "small.md").read_text()
    assert "--only" in run_python("-m", "recbole_diffgrm.study", "--help").stdout


def test_a_run_that_fails_does_not_lose_the_others(study, tmp_path, capsys):
    path, content, options = study
    content["sections"][0]["runs"]["SASRec"] = {"model": "FDSA", "settings": {"selected_features": ["colour"]}}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    assert main([str(path), *options, "--only=SASRec;Pop"]) == 1
    assert "error: SASRec: " in capsys.readouterr().err
    assert "Not finished: SASRec" in (tmp_path / "results" / "small.md").read_text()


def test_weights_that_are_not_there_yet(study, capsys):
    path, _, options = study
    assert main([str(path), *options, "--only=items alone"]) == 1
    assert "error: items alone: with items has to be finished first" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.pop("dataset"), "dataset is missing"),
        (lambda c: c.update(colour="red"), "'colour' is not one of"),
        (lambda c: c["sections"][0].update(note=""), "'note' is not one of"),
        (lambda c: c["sections"][0]["runs"]["Pop"].pop("model"), "Pop: model is missing"),
        (lambda c: c["sections"][0]["runs"]["Pop"].update(setting={}), "'setting' is not one of"),
        (lambda c: c["sections"][0]["runs"].update(plain={"model": "Pop"}), "two runs have the name 'plain'"),
        (lambda c: c["sections"][1].update(compared_with="plane"), "no run 'plane'"),
        (lambda c: c["short_table"].update(Pop=["pop"]), "no run 'pop'"),
        (lambda c: c["sections"][1]["runs"]["items alone"].update(weights_of="x"), "no run 'x' before it"),
        (lambda c: c["sections"][1]["runs"]["items alone"].update(seeds=[1]), "only settings can be given"),
        (lambda c: c["sections"][1]["runs"]["items alone"].update(settings={"epochs": 1}), "without training anew"),
        (lambda c: c.update(champion="SASREC"), "no row of short_table"),
        (lambda c: c["sections"][0]["runs"]["Pop"].update(settings={"epochz": 1}), "epochz"),
    ],
)
def test_mistakes_in_a_plan(study, capsys, change, words):
    path, content, options = study
    change(content)
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    assert main([str(path), *options]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only=Popp"], "no run 'Popp'"),
        (["--epochs=1"], "the plan decides"),
        (["--report=3"], "takes no value"),
        (["--render", "--results=nowhere"], "run the study first"),
    ],
)
def test_mistakes_on_the_command_line(study, tmp_path, capsys, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    path, _, options = study
    assert main([str(path), *(option for option in options if "results" not in option), *arguments]) == 2
    assert words in capsys.readouterr().err
    assert main(["--only=Pop"]) == 2 and main([]) == 2 and main(["missing.yaml"]) == 2


def test_no_marks_for_the_short_table(study, tmp_path, capsys):
    path, _, options = study
    readme = tmp_path / "README.md"
    readme.write_text("nothing here")
    assert main([str(path), *options, "--only=Pop", f"--readme={readme}"]) == 2
    assert "there are no marks <!-- small -->" in capsys.readouterr().err


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_our_plans_are_valid(path, tmp_path):
    """All their settings are checked, without the data."""
    plan = read_plan(path)
    for run in plan.runs.values():
        assert run.configs(plan.dataset, {"data_path": str(tmp_path)})


@pytest.mark.parametrize("path", FINISHED, ids=lambda path: path.stem)
def test_pages_are_what_the_results_say(path):
    """results/*.md and the tables of the README, to the letter."""
    summary = Summary.load(path)
    assert path.with_suffix(".md").read_text(encoding="utf-8") == render(summary, path.stem)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert with_short_table(readme, summary, path.stem) == readme
    assert summary.plan == read_plan(ROOT / "properties" / "study" / f"{path.stem}.yaml").content

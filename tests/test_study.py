"""A study: run, stop, go on, report; and the pages in results/, which nobody may have edited."""

import json
import shlex
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import yaml

from recbole_diffgrm import compare
from recbole_diffgrm.cli import parse_arguments
from recbole_diffgrm.config.config import build_config
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


def test_stopped_and_resumed(study, tmp_path):
    """Stopped in the second run, the same command finishes it; the first is kept."""
    path, content, options = study
    content["sections"][0]["runs"]["SASRec"] = {"model": "SASRec", "settings": {"epochs": 300, "stopping_step": 300}}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    command = [sys.executable, "-m", "recbole_diffgrm.study", str(path), *options, "--only=Pop;SASRec"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if "train epoch 3:" in line:
                busy = run_python(*command[1:])  # a second process passes over what the first is at
                process.send_signal(signal.SIGTERM)
                break
        assert "SASRec on" not in busy.stderr and "another process is at it" in busy.stdout
        process.stderr.read()
        assert process.wait(60) == 128 + signal.SIGTERM
    assert not list((tmp_path / "runs" / "tiny").glob("SASRec-*/result.json"))
    done = run_python(*command[1:])
    assert done.returncode == 0 and "resumed in train epoch" in done.stderr
    assert "1 of 2: Pop" in done.stdout and done.stdout.count("finished already") == 1
    assert len(list((tmp_path / "runs" / "tiny").glob("SASRec-*"))) == 1


def test_results_outlive_their_run_directories(study, tmp_path):
    """What was gathered stays on the page, and is tested against what comes later, as if the directories were there."""
    path, content, options = study
    assert main([str(path), *options]) == 0
    results, runs = tmp_path / "results", tmp_path / "runs"
    page, whole = (results / "small.md").read_text(), Summary.load(results / "small.json")
    runs.rename(tmp_path / "gone")
    assert main([str(path), *options, "--report"]) == 0
    assert (results / "small.md").read_text() == page
    assert main([str(path), *options, "--only=with items"]) == 0  # the same results, so the same tests
    again = Summary.load(results / "small.json")
    assert (again.tests, again.champion_tests) == (whole.tests, whole.champion_tests)

    # Of a version that kept no ranks: tests of the same results are kept, others are not made.
    (results / "small-ranks.npz").unlink()
    assert main([str(path), *options, "--report"]) == 0
    again = Summary.load(results / "small.json")
    assert (again.tests, again.champion_tests) == (whole.tests, whole.champion_tests)
    (results / "small-ranks.npz").unlink()
    content["sections"][1]["compared_with"] = "with items"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    assert main([str(path), *options, "--report"]) == 0
    again = Summary.load(results / "small.json")
    assert again.tests == {"plain": whole.tests["with items"], "items alone": {}}  # the first in the other direction
    assert again.champion_tests == whole.champion_tests
    ours, theirs = (whole.rows[name].runs[0].test["sid_ndcg@10"] for name in ("items alone", "with items"))
    page = (results / "small.md").read_text()
    assert f"| {ours / theirs - 1:+.1%} " in page and "No p: not tested" in page  # the change alone

    # Nor do the IDs have to be there that a run was made with.
    table = tmp_path / "ready.sid"
    rows = [f"i{item}\t{item % 8} {item // 8} 0" for item in range(40)]
    table.write_text("\n".join(["item_id:token\tsid:token_seq", *rows]) + "\n")
    content["sections"][0]["runs"]["copy"] = {
        "model": "HistoryCopy",
        "settings": {"sid_file": str(table), "sid_digits": 3},
    }
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    assert main([str(path), *options, "--only=copy"]) == 0
    table.unlink()
    assert main([str(path), *options, "--report"]) == 0
    assert "copy" in Summary.load(results / "small.json").rows
    del content["sections"][0]["runs"]["copy"]

    # A run that the plan has changed is no longer there.
    content["sections"][0]["runs"]["SASRec"]["settings"] = {"epochs": 3}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    assert main([str(path), *options, "--report"]) == 0
    assert set(Summary.load(results / "small.json").rows) == {"Pop", "plain", "with items", "items alone"}


def test_a_test_of_other_weights_goes_with_them(study, tmp_path, capsys):
    path, content, options = study
    only = "--only=with items; items alone"
    assert main([str(path), *options, only]) == 0
    (tmp_path / "runs").rename(tmp_path / "gone")
    content["sections"][1]["runs"]["with items"]["settings"]["learning_rate"] = 0.01
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    assert main([str(path), *options, "--report"]) == 0
    assert "no longer has them so: with items, items alone" in capsys.readouterr().out
    assert main([str(path), *options, only]) == 0
    old = Summary.load(tmp_path / "results" / "small.json")
    (tmp_path / "runs").rename(tmp_path / "gone too")
    old.rows["with items"].runs[0] = replace(old.rows["with items"].runs[0], config_hash="other")  # trained anew since
    old.save(tmp_path / "results" / "small.json")
    assert main([str(path), *options, "--report"]) == 0
    assert "no longer has them so: items alone" in capsys.readouterr().out


def test_settings_in_a_config_file_count(study, tmp_path, capsys):
    path, content, options = study
    preset = tmp_path / "preset.yaml"
    preset.write_text("epochs: 1\n")
    content["sections"][0]["runs"]["Pop"] = {"model": "GRU4Rec", "config_files": [str(preset)], "settings": {}}
    del content["settings"]["epochs"]
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    assert main([str(path), *options, "--only=Pop"]) == 0
    (tmp_path / "runs").rename(tmp_path / "gone")
    assert main([str(path), *options, "--report"]) == 0
    assert "Pop" in Summary.load(tmp_path / "results" / "small.json").rows
    preset.write_text("epochs: 2\n")
    assert main([str(path), *options, "--report"]) == 0
    assert "no longer has them so: Pop" in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"PK nothing", b""], ids=["text", "empty"])
def test_damaged_results(study, tmp_path, capsys, content):
    path, _, options = study
    assert main([str(path), *options, "--only=Pop"]) == 0
    results = tmp_path / "results"
    (results / "small-ranks.npz").write_bytes(content)
    assert main([str(path), *options, "--only=SASRec"]) == 2  # before anything is trained
    assert "small-ranks.npz is damaged" in capsys.readouterr().err
    assert main([str(path), f"--results={results}", "--render"]) == 0  # needs no ranks
    (results / "small.json").write_bytes(content)
    assert main([str(path), *options, "--report"]) == 2
    assert "small.json is damaged" in capsys.readouterr().err


def test_runs_on_other_users_are_not_compared(study, capsys):
    path, content, options = study
    content["sections"][0]["runs"]["SASRec"] = {"model": "Pop", "settings": {"user_inter_num_interval": "[9,inf)"}}
    content["champion"] = "Pop"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    assert main([str(path), *options, "--only=Pop;SASRec"]) == 2
    assert "were tested on other users" in capsys.readouterr().err
    del content["champion"]
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    assert main([str(path), *options, "--report"]) == 0  # side by side they may stand


def test_commands_on_the_page_can_be_typed(study):
    """What a page says runs a run alone is the configuration of that run."""
    path, content, options = study
    content["settings"]["seed"] = 5
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    plan = read_plan(path)
    data = {"data_path": options[0].partition("=")[2]}
    for name in ("Pop", "SASRec", "plain"):
        words = parse_arguments(shlex.split(plan.runs[name].command("tiny"))[2:])
        model, dataset, seeds = words.pop("model"), words.pop("dataset"), words.pop("seeds", "5")
        for config, seed in zip(plan.runs[name].configs("tiny", data), str(seeds).split(",")):
            typed = build_config(model, dataset, [], {**words, "seed": int(seed), **data})
            assert typed.values == config.values


def test_commands_on_the_page_name_files_plainly(study):
    path, content, _ = study
    content["sections"][0]["runs"]["copy"] = {"model": "HistoryCopy", "settings": {"sid_file": "{data_path}/a.sid"}}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    assert read_plan(path).runs["copy"].command("tiny").endswith(" --sid_file=FOLDER/a.sid")


def test_a_missing_table_of_ids_is_not_another_run(options):
    """Neither found among the finished runs nor taken for the run without one."""
    settings = {key: value for key, value in options.items() if key != "config_files"}
    compare(["HistoryCopy"], "tiny", options["config_files"], **settings)
    again = compare(["HistoryCopy"], "tiny", options["config_files"], **settings, sid_file="/nope/typo.sid")
    assert "/nope/typo.sid does not exist" in str(again.rows[0].errors[0])
    assert "--only" in run_python("-m", "recbole_diffgrm.study", "--help").stdout


def test_a_run_that_fails_does_not_lose_the_others(study, tmp_path, capsys):
    path, content, options = study
    (tmp_path / "broken.sid").write_text("nothing here")
    broken = {"model": "HistoryCopy", "settings": {"sid_file": str(tmp_path / "broken.sid")}}
    content["sections"][0]["runs"]["SASRec"] = broken
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
        (lambda c: c["sections"][0]["runs"]["Pop"].update(settings=None), "settings must be a mapping, not None"),
        (
            lambda c: c["sections"][0]["runs"]["Pop"].update(settings={"topk": [5], "valid_metric": "NDCG@5"}),
            "needs Recall@10 and NDCG@10",
        ),
        (lambda c: c["sections"][0]["runs"]["Pop"].update(seeds=[1, 1]), "names a seed twice"),
        (lambda c: c["sections"][0]["runs"]["Pop"].update(config_files="a.yaml"), "config_files must be a list"),
        (lambda c: c["sections"][0]["runs"].update({64: {"model": "Pop"}}), "names must be texts"),
        (lambda c: c.update(text=2014), "text must be a text, not 2014"),
        (lambda c: c.update(sections=[3]), "a section: expected lines"),
        (lambda c: c["short_table"].update(Pop="Pop"), "short_table: Pop must be a list of runs"),
        (lambda c: c["published"].pop("text"), "published: text is missing"),
        (lambda c: c["published"]["rows"]["Other"].update(level="ID"), "level must be item or SID, not ID"),
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
        (["--sid_file=x.sid"], "the plan decides"),
        (["--report", "--only=Pop"], "--only is about running"),
        (["--readme=nowhere.md"], "nowhere.md cannot be read"),
        (["--readme"], "--readme needs a value"),
        (["--data_path=nowhere"], "tiny.inter does not exist"),
        (["--data_path=nowhere", "--report"], "tiny.inter does not exist"),
        (["--render", "--gpu_id=0"], "--render reads results/small.json alone"),
        (["--report=3"], "takes no value"),
        (["--render", "--results=nowhere"], "run the study first"),
    ],
)
def test_mistakes_on_the_command_line(study, tmp_path, capsys, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    path, _, options = study
    given = {argument.partition("=")[0] for argument in arguments} | {"--results"}
    kept = [option for option in options if option.partition("=")[0] not in given and "--render" not in arguments]
    assert main([str(path), *kept, *arguments]) == 2
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

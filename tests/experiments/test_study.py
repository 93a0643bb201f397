"""A study: run, stop, resume, report; and the pages in results/, which must be what the command writes."""

import json
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import yaml

from recbole_diffgrm import compare
from recbole_diffgrm.cli.arguments import parse_arguments
from recbole_diffgrm.cli.study import main
from recbole_diffgrm.config import layers
from recbole_diffgrm.experiments.study.page import readme_table, render, update_readme
from recbole_diffgrm.experiments.study.plan import read_plan
from recbole_diffgrm.experiments.study.summary import Summary
from recbole_diffgrm.models import build_config
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
                "reference": "plain",
                "runs": {
                    "plain": {"model": "DiffGRM", "settings": models["DiffGRM"]},
                    "with items": {"model": "DiffGRM", "settings": {**models["DiffGRM"], "item_head": True}},
                    "items alone": {"weights_of": "with items", "settings": {"sid_score_weight": 0}},
                },
            },
        ],
        "short_table": {"SASRec": ["SASRec"], "Pop": ["Pop"], "DiffGRM": ["plain", "with items"]},
        "reference": "DiffGRM",
        "published": {"text": "Other: theirs.", "rows": {"Other": {"level": "sid", "recall@10": 0.5, "ndcg@10": 0.25}}},
    }
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    words = [f"--data_path={options['data_path']}", f"--output_dir={tmp_path / 'runs'}", "--show_progress=False"]
    return path, content, [*words, f"--results={tmp_path / 'results'}"]


@pytest.mark.slow
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
    tests = {
        path.parent.name.split("-")[0]: json.loads(path.read_text())["test"]
        for path in (tmp_path / "runs").rglob("result.json")
    }
    assert f"| {tests['Pop']['all']['recall@10']:.4f} " in page
    assert f"| {tests['Pop']['unseen']['ndcg@10']:.4f} " in page
    summary = Summary.load(results / "small.json")
    seeds = [run.test["all"]["ndcg@10"] for run in summary.rows["SASRec"].runs]
    assert f"{sum(seeds) / 2:.4f} ± " in page
    best = max(("plain", "with items"), key=lambda name: summary.rows[name].runs[0].valid["ndcg@10"])
    assert summary.short_table["DiffGRM"] == best
    assert set(summary.short_table_tests) == {"SASRec", "Pop"}
    assert set(summary.short_table_tests["Pop"]) == {"item_all", "item_unseen"}
    assert set(summary.tests["with items"]) == {"item_all", "item_unseen", "sid_all"}
    ours, theirs = (summary.rows[name].runs[0].test["all"]["sid_ndcg@10"] for name in ("with items", "plain"))
    assert f"{ours / theirs - 1:+.1%} ({summary.tests['with items']['sid_all']:.1g})" in page
    assert "0.5000" in page and "Other: theirs." in page and "What was tried." in page
    assert "--seeds=1,2" in page and "--retest=RUN --sid_score_weight=0   # RUN: with items" in page
    alone, fused = (summary.rows[name].runs[0] for name in ("items alone", "with items"))
    assert alone.weights_of == fused.config_hash and alone.test != fused.test and alone.seconds["train"] == 0
    text = readme.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    table = readme_table(summary)
    assert table in text and "seeds 1, 2, 2020" in table and "| Other " in table
    assert {line.count("|") for line in table.splitlines() if line.startswith("|")} == {7}  # six columns
    (results / "small.md").unlink()
    assert main([str(path), f"--results={results}", "--render"]) == 0  # without data
    assert (results / "small.md").read_text() == page


@pytest.mark.slow
def test_stopped_and_resumed(study, tmp_path):
    """Stopped in the second run, the same command finishes it; the first is kept."""
    path, content, options = study
    content["sections"][0]["runs"]["SASRec"] = {"model": "SASRec", "settings": {"epochs": 12, "stopping_step": 12}}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    command = [sys.executable, "-m", "recbole_diffgrm.study", str(path), *options, "--only=Pop;SASRec"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if "train epoch 3:" in line:
                process.send_signal(signal.SIGSTOP)  # it keeps the lock of its run, and does not finish meanwhile
                busy = run_python(*command[1:])  # a second process skips what the first is running
                process.send_signal(signal.SIGTERM)
                process.send_signal(signal.SIGCONT)
                break
        assert "SASRec on" not in busy.stderr and "running in another process" in busy.stdout
        process.stderr.read()
        assert process.wait(60) == 128 + signal.SIGTERM
    assert not list((tmp_path / "runs" / "tiny").glob("SASRec-*/result.json"))
    done = run_python(*command[1:])
    assert done.returncode == 0 and "resumed in train epoch" in done.stderr
    assert "1 of 2: Pop" in done.stdout and done.stdout.count("finished already") == 1
    assert len(list((tmp_path / "runs" / "tiny").glob("SASRec-*"))) == 1


@pytest.mark.slow
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
    assert (again.tests, again.short_table_tests) == (whole.tests, whole.short_table_tests)

    # Without ranks: tests of the same results are kept, others are not made.
    (results / "small-ranks.npz").unlink()
    assert main([str(path), *options, "--report"]) == 0
    again = Summary.load(results / "small.json")
    assert (again.tests, again.short_table_tests) == (whole.tests, whole.short_table_tests)
    (results / "small-ranks.npz").unlink()
    content["sections"][1]["reference"] = "with items"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    assert main([str(path), *options, "--report"]) == 0
    again = Summary.load(results / "small.json")
    assert again.tests == {"plain": whole.tests["with items"], "items alone": {}}  # the first in the other direction
    assert again.short_table_tests == whole.short_table_tests
    ours, theirs = (whole.rows[name].runs[0].test["all"]["sid_ndcg@10"] for name in ("items alone", "with items"))
    page = (results / "small.md").read_text()
    assert f"| {ours / theirs - 1:+.1%} " in page and "No p: not tested" in page  # the change alone

    # Nor does the SID file that a run was made with have to exist.
    table = tmp_path / "ready.sid"
    rows = [f"i{item}\t{item % 8} {item // 8} 0" for item in range(40)]
    table.write_text("\n".join(["item_id:token\tsid:token_seq", *rows]) + "\n")
    content["sections"][0]["runs"]["copy"] = {
        "model": "HistoryCopy",
        "settings": {"sid_file": str(table), "sid_num_digits": 3},
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


@pytest.mark.slow
def test_a_test_of_other_weights_goes_with_them(study, tmp_path, capsys):
    path, content, options = study
    only = "--only=with items; items alone"
    assert main([str(path), *options, only]) == 0
    (tmp_path / "runs").rename(tmp_path / "gone")
    content["sections"][1]["runs"]["with items"]["settings"]["learning_rate"] = 0.01
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    assert main([str(path), *options, "--report"]) == 0
    assert "no longer has them with these settings: with items, items alone" in capsys.readouterr().out
    assert main([str(path), *options, only]) == 0
    old = Summary.load(tmp_path / "results" / "small.json")
    (tmp_path / "runs").rename(tmp_path / "gone too")
    old.rows["with items"].runs[0] = replace(old.rows["with items"].runs[0], config_hash="other")  # trained anew since
    old.save(tmp_path / "results" / "small.json")
    assert main([str(path), *options, "--report"]) == 0
    assert "no longer has them with these settings: items alone" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["config_files", "preset"])
def test_settings_in_a_file_count(study, tmp_path, capsys, monkeypatch, kind):
    """A result is given up when the config file or the preset of its run says something else."""
    path, content, options = study
    if kind == "preset":
        properties = tmp_path / "properties"
        shutil.copytree(layers.properties_dir(), properties)
        monkeypatch.setattr(layers, "properties_dir", lambda: properties)
        preset, name = properties / "preset" / "GRU4Rec" / "short.yaml", "short"
        preset.parent.mkdir()
    else:
        preset = tmp_path / "preset.yaml"
        name = str(preset)
    preset.write_text("epochs: 1\n")
    content["sections"][0]["runs"]["Pop"] = {"model": "GRU4Rec", kind: [name], "settings": {}}
    del content["settings"]["epochs"]
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    assert main([str(path), *options, "--only=Pop"]) == 0
    (tmp_path / "runs").rename(tmp_path / "gone")
    assert main([str(path), *options, "--report"]) == 0
    assert "Pop" in Summary.load(tmp_path / "results" / "small.json").rows
    preset.write_text("epochs: 2\n")
    assert main([str(path), *options, "--report"]) == 0
    assert "no longer has them with these settings: Pop" in capsys.readouterr().out


@pytest.mark.slow
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


@pytest.mark.slow
def test_runs_on_other_users_are_not_compared(study, capsys):
    path, content, options = study
    content["sections"][0]["runs"]["SASRec"] = {"model": "Pop", "settings": {"user_inter_num_interval": "[9,inf)"}}
    content["reference"] = "Pop"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    assert main([str(path), *options, "--only=Pop;SASRec"]) == 2
    assert "were tested on other users" in capsys.readouterr().err
    del content["reference"]
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    assert main([str(path), *options, "--report"]) == 0  # shown side by side, not tested


def test_commands_on_the_page_can_be_typed(study):
    """What a page says runs a run alone is the configuration of that run."""
    path, content, options = study
    content["settings"]["seed"] = 5
    content["sections"][0]["runs"]["preset"] = {"model": "DiffGRM", "preset": ["item", "item-small"]}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    plan = read_plan(path)
    data = {"data_path": options[0].partition("=")[2]}
    for name in ("Pop", "SASRec", "plain", "preset"):
        words = parse_arguments(shlex.split(plan.runs[name].command("tiny"))[2:])
        model, dataset, seeds = words.pop("model"), words.pop("dataset"), words.pop("seeds", "5")
        presets = words.pop("preset", "")
        assert presets == ("item,item-small" if name == "preset" else "")
        for config, seed in zip(plan.runs[name].configs("tiny", data), str(seeds).split(",")):
            typed = build_config(model, dataset, [], {**words, "seed": int(seed), **data}, presets)
            assert typed.values == config.values


def test_commands_on_the_page_name_files_plainly(study):
    path, content, _ = study
    content["sections"][0]["runs"]["copy"] = {"model": "HistoryCopy", "settings": {"sid_file": "{data_path}/a.sid"}}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    assert read_plan(path).runs["copy"].command("tiny").endswith(" --sid_file=FOLDER/a.sid")


def test_a_missing_sid_file_is_not_another_run(options):
    """It is neither found among the finished runs nor taken for the run without one."""
    settings = {key: value for key, value in options.items() if key != "config_files"}
    compare(["HistoryCopy"], "tiny", options["config_files"], **settings)
    again = compare(["HistoryCopy"], "tiny", options["config_files"], **settings, sid_file="/nope/typo.sid")
    assert "/nope/typo.sid" in str(again.rows[0].errors[0])
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
    error = capsys.readouterr().err
    assert error.startswith("error: items alone: ") and "with items" in error


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.pop("dataset"), ["dataset"]),
        (lambda c: c.update(color="red"), ["'color'", "remarks"]),
        (lambda c: c["sections"][0].update(note=""), ["'note'", "reference"]),
        (lambda c: c["sections"][0]["runs"]["Pop"].pop("model"), ["Pop", "model"]),
        (lambda c: c["sections"][0]["runs"]["Pop"].update(setting={}), ["Pop", "'setting'", "settings"]),
        (lambda c: c["sections"][0]["runs"].update(plain={"model": "Pop"}), ["two", "'plain'"]),
        (lambda c: c["sections"][1].update(reference="plane"), ["'plane'"]),
        (lambda c: c["short_table"].update(Pop=["pop"]), ["'pop'"]),
        (lambda c: c["sections"][1]["runs"]["items alone"].update(weights_of="x"), ["weights_of", "'x'"]),
        (lambda c: c["sections"][1]["runs"]["items alone"].update(seeds=[1]), ["weights_of", "only settings"]),
        (
            lambda c: c["sections"][1]["runs"]["items alone"].update(settings={"epochs": 1}),
            ["epochs", "without training"],
        ),
        (lambda c: c.update(reference="SASREC"), ["reference", "'SASREC'", "short_table"]),
        (lambda c: c["sections"][0]["runs"]["Pop"].update(settings={"epochz": 1}), ["epochz"]),
        (lambda c: c["sections"][0]["runs"]["Pop"].update(settings=None), ["settings", "a mapping", "None"]),
        (
            lambda c: c["sections"][0]["runs"]["Pop"].update(settings={"topk": [5], "valid_metric": "NDCG@5"}),
            ["Pop", "Recall@10", "NDCG@10"],
        ),
        (lambda c: c["sections"][0]["runs"]["Pop"].update(seeds=[1, 1]), ["Pop", "seeds", "twice"]),
        (lambda c: c["sections"][0]["runs"]["Pop"].update(config_files="a.yaml"), ["config_files", "a list"]),
        (lambda c: c["sections"][0]["runs"]["Pop"].update(preset="item"), ["preset", "a list"]),
        (lambda c: c["sections"][0]["runs"]["Pop"].update(preset=["item"]), ["preset", "'item'", "Pop"]),
        (lambda c: c["sections"][0]["runs"]["Pop"].update(model="Popp"), ["Popp"]),
        (lambda c: c["sections"][0]["runs"].update({64: {"model": "Pop"}}), ["runs", "quotes"]),
        (lambda c: c.update(text=2014), ["text", "2014"]),
        (lambda c: c.update(sections=[3]), ["a section", "key: value"]),
        (lambda c: c["short_table"].update(Pop="Pop"), ["short_table", "Pop", "a list"]),
        (lambda c: c["published"].pop("text"), ["published", "text", "missing"]),
        (lambda c: c["published"]["rows"]["Other"].update(level="ID"), ["Other", "level", "ID", "sid"]),
    ],
)
def test_mistakes_in_a_plan(study, capsys, change, words):
    path, content, options = study
    change(content)
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    assert main([str(path), *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and all(word in error for word in words), error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only=Popp"], ["--only", "'Popp'"]),
        (["--epochs=1"], ["--epochs", "plan", "data_path"]),
        (["--sid_file=x.sid"], ["--sid_file", "plan"]),
        (["--report", "--only=Pop"], ["--only", "--report"]),
        (["--readme=nowhere.md"], ["--readme", "nowhere.md"]),
        (["--readme"], ["--readme", "value"]),
        (["--data_path=nowhere"], ["tiny.inter"]),
        (["--data_path=nowhere", "--report"], ["tiny.inter"]),
        (["--render", "--gpu_id=0"], ["--gpu_id", "results/small.json"]),
        (["--report=3"], ["--report", "no value"]),
        (["--render", "--results=nowhere"], ["small.json", "run the study"]),
    ],
)
def test_mistakes_on_the_command_line(study, tmp_path, capsys, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    path, _, options = study
    given = {argument.partition("=")[0] for argument in arguments} | {"--results"}
    kept = [option for option in options if option.partition("=")[0] not in given and "--render" not in arguments]
    assert main([str(path), *kept, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and all(word in error for word in words), error
    assert main(["--only=Pop"]) == 2 and main([]) == 2 and main(["missing.yaml"]) == 2


def test_options_that_some_models_do_not_read(study):
    """cache_dir is for the models with semantic IDs; the others of the study are not given it."""
    path, _, _ = study
    plan, options = read_plan(path), {"cache_dir": "elsewhere", "data_path": "data"}
    plan.check_options(options)
    assert plan.runs["plain"].configs("tiny", options)[0]["cache_dir"] == "elsewhere"
    assert "cache_dir" not in plan.runs["Pop"].configs("tiny", options)[0].values


def test_no_marks_for_the_readme_table(study, tmp_path, capsys):
    path, _, options = study
    readme = tmp_path / "README.md"
    readme.write_text("nothing here")
    assert main([str(path), *options, "--only=Pop", f"--readme={readme}"]) == 2
    error = capsys.readouterr().err
    assert "--readme" in error and "<!-- small -->" in error and "<!-- end of small -->" in error


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_our_plans_are_valid(path, tmp_path):
    """All their settings are checked, without the data."""
    plan = read_plan(path)
    for run in plan.runs.values():
        assert run.configs(plan.dataset, {"data_path": str(tmp_path)})


@pytest.mark.parametrize("path", FINISHED, ids=lambda path: path.stem)
def test_pages_are_what_the_results_say(path):
    """results/*.md and the tables in README.md and docs/, to the letter."""
    summary = Summary.load(path)
    assert path.with_suffix(".md").read_text(encoding="utf-8") == render(summary, path.stem)
    for document in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = document.read_text(encoding="utf-8")
        if f"<!-- {path.stem} -->" in text:
            assert update_readme(text, summary, path.stem) == text, document
    assert summary.plan == read_plan(ROOT / "properties" / "study" / f"{path.stem}.yaml").content


def test_the_readme_has_a_results_table():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert any(f"<!-- {path.stem} -->" in text for path in FINISHED)


@pytest.mark.parametrize("path", FINISHED, ids=lambda path: path.stem)
def test_results_are_those_of_the_plan(path):
    """--report recognizes every result: digests, commands and references are those of the plan as it is now."""
    summary, plan = Summary.load(path, with_ranks=True), read_plan(ROOT / "properties" / "study" / f"{path.stem}.yaml")
    assert set(summary.rows) <= set(plan.runs)
    for run in plan.runs.values():
        assert summary.digests[run.name] == run.digest() and summary.commands[run.name] == run.command(plan.dataset)
        if run.base and run.name in summary.rows:
            trained = [one.config_hash for one in summary.rows[run.base.name].runs]
            assert [one.weights_of for one in summary.rows[run.name].runs] == trained
    hashes = {run.config_hash for row in summary.rows.values() for run in row.runs}
    assert set(summary.ranks) <= hashes
    for row in summary.rows.values():  # ranks that were kept are those of the metrics
        for run, ranks in zip(row.runs, summary.ranks_of(row)):
            for name, values in ranks.items():
                level, ranking = name.split("_")
                metric = "sid_recall@10" if level == "sid" else "recall@10"
                assert (values <= 10).mean() == pytest.approx(run.test[ranking][metric], abs=1e-12)

"""python -m recbole_diffgrm.study: run, stop, resume, report."""

import json
import signal
import subprocess
import sys

import pytest
import yaml

from recbole_diffgrm.cli.study import main
from recbole_diffgrm.experiments.study.page import readme_table
from recbole_diffgrm.experiments.study.summary import Summary
from tests.conftest import ROOT, error_line, run_python


@pytest.mark.slow
def test_from_plan_to_page(study, tmp_path, capsys):
    path, _, options = study
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- small -->\nold\n<!-- end of small -->\nafter\n")
    assert main([str(path), *options, "--only=SASRec; Pop"]) == 0
    page = (tmp_path / "results" / "small.md").read_text()
    assert "Not finished: DiffGRM." in page and "Not finished: plain, with items, SIDs alone." in page
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
    assert "--seeds=1,2" in page and "--retest=RUN --item_scoring=none   # RUN: with items" in page
    alone, both = (summary.rows[name].runs[0] for name in ("SIDs alone", "with items"))
    assert alone.weights_of == both.config_hash and alone.test != both.test and alone.seconds["train"] == 0
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
    assert main([str(path), *options, "--only=SIDs alone"]) == 1
    error = error_line(capsys.readouterr().err)
    assert error.startswith("error: SIDs alone: ") and "with items" in error


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
    error = error_line(capsys.readouterr().err)
    assert all(word in error for word in words), error
    assert main(["--only=Pop"]) == 2 and main([]) == 2 and main(["missing.yaml"]) == 2

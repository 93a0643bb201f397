"""What is gathered from runs, and kept when their directories are gone."""

import shutil
from dataclasses import replace

import pytest
import yaml

from recbole_diffgrm import compare
from recbole_diffgrm.cli.study import main
from recbole_diffgrm.config import layers
from recbole_diffgrm.experiments.study.plan import hide_data_path, read_plan
from recbole_diffgrm.experiments.study.summary import Summary
from tests.conftest import ROOT, run_python

FINISHED = sorted((ROOT / "results").glob("*.json"))


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
    assert again.tests == {"plain": whole.tests["with items"], "SIDs alone": {}}  # the first in the other direction
    assert again.short_table_tests == whole.short_table_tests
    ours, theirs = (whole.rows[name].runs[0].test["all"]["sid_ndcg@10"] for name in ("SIDs alone", "with items"))
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
    assert set(Summary.load(results / "small.json").rows) == {"Pop", "plain", "with items", "SIDs alone"}


@pytest.mark.slow
def test_a_test_of_other_weights_goes_with_them(study, tmp_path, capsys):
    path, content, options = study
    only = "--only=with items; SIDs alone"
    assert main([str(path), *options, only]) == 0
    (tmp_path / "runs").rename(tmp_path / "gone")
    content["sections"][1]["runs"]["with items"]["settings"]["learning_rate"] = 0.01
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    assert main([str(path), *options, "--report"]) == 0
    assert "no longer has them with these settings: with items, SIDs alone" in capsys.readouterr().out
    assert main([str(path), *options, only]) == 0
    old = Summary.load(tmp_path / "results" / "small.json")
    (tmp_path / "runs").rename(tmp_path / "gone too")
    old.rows["with items"].runs[0] = replace(old.rows["with items"].runs[0], config_hash="other")  # trained anew since
    old.save(tmp_path / "results" / "small.json")
    assert main([str(path), *options, "--report"]) == 0
    assert "no longer has them with these settings: SIDs alone" in capsys.readouterr().out


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


def test_a_missing_sid_file_is_not_another_run(options):
    """It is neither found among the finished runs nor taken for the run without one."""
    settings = {key: value for key, value in options.items() if key != "config_files"}
    compare(["HistoryCopy"], "tiny", options["config_files"], **settings)
    again = compare(["HistoryCopy"], "tiny", options["config_files"], **settings, sid_file="/nope/typo.sid")
    assert "/nope/typo.sid" in str(again.rows[0].errors[0])
    assert "--only" in run_python("-m", "recbole_diffgrm.study", "--help").stdout


def test_stored_results_name_no_folder_of_a_machine():
    settings = {"sid_file": "/home/me/data/Some/some.sid", "sid_num_digits": 4, "sid_text_encoder": "bundled"}
    stored = hide_data_path(settings, "/home/me/data")
    assert stored == {**settings, "sid_file": "{data_path}/Some/some.sid"}
    for path in FINISHED:
        assert '"/' not in path.read_text(encoding="utf-8"), path


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

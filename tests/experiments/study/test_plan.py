"""Plans: what they may say, and the commands they stand for."""

import shlex

import pytest
import yaml

from recbole_diffgrm.cli.arguments import parse_arguments
from recbole_diffgrm.cli.study import main
from recbole_diffgrm.experiments.study.plan import read_plan
from recbole_diffgrm.models import build_config
from tests.conftest import ROOT, error_line

STUDIES = sorted((ROOT / "properties" / "study").glob("*.yaml"))


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
        (lambda c: c["sections"][1]["runs"]["SIDs alone"].update(weights_of="x"), ["weights_of", "'x'"]),
        (lambda c: c["sections"][1]["runs"]["SIDs alone"].update(seeds=[1]), ["weights_of", "only settings"]),
        (
            lambda c: c["sections"][1]["runs"]["SIDs alone"].update(settings={"epochs": 1}),
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
    error = error_line(capsys.readouterr().err)
    assert all(word in error for word in words), error


def test_options_that_some_models_do_not_read(study):
    """cache_dir is for the models with semantic IDs; the others of the study are not given it."""
    path, _, _ = study
    plan, options = read_plan(path), {"cache_dir": "elsewhere", "data_path": "data"}
    plan.check_options(options)
    assert plan.runs["plain"].configs("tiny", options)[0]["cache_dir"] == "elsewhere"
    assert "cache_dir" not in plan.runs["Pop"].configs("tiny", options)[0].values


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_our_plans_are_valid(path, tmp_path):
    """All their settings are checked, without the data."""
    plan = read_plan(path)
    for run in plan.runs.values():
        assert run.configs(plan.dataset, {"data_path": str(tmp_path)})

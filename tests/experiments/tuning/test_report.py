import csv
import json

import pytest
import yaml

from recbole_diffgrm.cli.tune import main
from recbole_diffgrm.experiments.pipeline import run
from recbole_diffgrm.experiments.tuning.report import best_settings
from recbole_diffgrm.models import build_config


def folder_of(tmp_path, model="SASRec"):
    [folder] = (tmp_path / "runs" / "tiny").glob(f"tune-{model}-*")
    return folder


@pytest.mark.slow
def test_files_of_a_search_and_its_best_settings(arguments, tmp_path, tiny, space, capsys):
    space.write_text(space.read_text() + "n_heads: [2, 3]\n")  # with 3 a trial fails
    assert main(arguments(trials=9, epochs=4, seed=3)) == 0
    printed = capsys.readouterr().out
    folder = folder_of(tmp_path)
    content = json.loads((folder / "tune.json").read_text())
    states = [trial["state"] for trial in content["trials"]]
    assert len(states) == 9 and {"complete", "fail"} <= set(states)
    assert states == sorted(states, key=["complete", "pruned", "fail"].index)
    completed = [trial for trial in content["trials"] if trial["state"] == "complete"]
    assert [trial["score"] for trial in completed] == sorted((trial["score"] for trial in completed), reverse=True)
    assert sum(content["importances"].values()) == pytest.approx(1)
    assert content["importances"]["learning_rate"] == max(content["importances"].values())
    page = (folder / "tune.md").read_text()
    assert f"| {completed[0]['score']:.6f} " in page and "must be a multiple of n_heads (3)" in page
    assert f"## Test of trial {completed[0]['trial']}" in page and f"{content['test']['all']['ndcg@10']:.4f}" in page
    assert f"results: {folder / 'tune.md'}" in printed and f"best settings: {folder / 'best.yaml'}" in printed
    assert (folder / "tune.png").stat().st_size > 10_000
    with (folder / "tune.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["score"]) for row in rows[: len(completed)]] == [trial["score"] for trial in completed]
    assert float(rows[0]["learning_rate"]) == completed[0]["values"]["learning_rate"]

    # The settings alone make the same run, with the same result to the last digit.
    again = run("SASRec", "tiny", folder / "best.yaml", data_path=str(tiny), output_dir=str(tmp_path / "again"))
    assert again.valid["ndcg@10"] == completed[0]["score"] and again.test == content["test"]
    assert again.config_hash == completed[0]["run_dir"].rsplit("-", 1)[1]


def test_best_settings_hold_what_was_changed_or_searched_and_nothing_else(options):
    config_files = options.pop("config_files")
    config = build_config("SASRec", "tiny", config_files, {**options, "learning_rate": 1.5e-05, "loss_type": "BPR"})
    settings = yaml.safe_load(best_settings(config, ["learning_rate", "n_layers"]))["models"]["SASRec"]
    assert settings.pop("load_col") and settings.pop("seq_separator")  # of the config file
    assert settings == {
        "epochs": 2,
        "train_batch_size": 64,
        "MAX_ITEM_LIST_LENGTH": 10,
        "learning_rate": 1.5e-05,
        "n_layers": 2,  # the default, found best: a preset given beside the file must not change it
        "loss_type": "BPR",
        "train_neg_sample_args": {"distribution": "uniform", "sample_num": 1},
    }


def test_two_models_and_their_best_settings_together(arguments, tmp_path, tiny, space):
    space.write_text("learning_rate: [0.01, 0.02]\nmodels: {GRU4Rec: {embedding_size: [8, 16]}}\n")
    assert main(arguments(model="SASRec,GRU4Rec", epochs=1)) == 0
    files = [folder_of(tmp_path, model) / "best.yaml" for model in ("SASRec", "GRU4Rec")]
    sasrec, gru4rec = (build_config(model, "tiny", files).values for model in ("SASRec", "GRU4Rec"))
    assert sasrec["learning_rate"] in (0.01, 0.02) and sasrec["epochs"] == gru4rec["epochs"] == 1
    assert gru4rec["embedding_size"] in (8, 16)

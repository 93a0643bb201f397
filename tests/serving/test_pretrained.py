"""A recommender that is handed on, without network."""

import json
import shutil

import pytest
import yaml

from recbole_diffgrm import Recommender, UserError, run
from recbole_diffgrm.experiments.result import RunResult

HISTORIES = [["i3", "i4"], ["i5", "i9", "i2"]]


@pytest.fixture(scope="module")
def saved(text_run, tmp_path_factory):
    """A folder, and the recommender that it was made of."""
    recommender, folder = Recommender.load(text_run), tmp_path_factory.mktemp("hand") / "on"
    recommender.add_items([{"item_id": "n1", "title": "Item 7", "categories": "c2"}])
    recommender.save_pretrained(folder)
    return folder, recommender


def test_the_same_lists(saved):
    folder, recommender = saved
    again = Recommender.from_pretrained(folder)
    histories = [*HISTORIES, ["n1", "i1"]]
    assert again.recommend(histories, 41) == recommender.recommend(histories, 41)
    assert again.sid("n1") == recommender.sid("n1") and again.items.titles[-1] == "Item 7"
    assert Recommender.from_pretrained(folder, repeatable=False).recommend([["i3"]], 41)[0][-1].item != "i3"
    again.add_items([{"item_id": "n2", "title": "More"}])  # the tokenizer came along
    with pytest.raises(UserError, match="'n1' is there already"):
        again.add_items([{"item_id": "n1", "title": "More"}])


def test_models_without_sids(text_options, tmp_path):
    settings = {key: value for key, value in text_options.items() if not key.startswith("sid_")}
    recommender = Recommender.load(run("SASRec", "tiny", **settings).run_dir)
    recommender.save_pretrained(tmp_path / "folder")
    assert not (tmp_path / "folder" / "tokenizer.npz").exists()
    again = Recommender.from_pretrained(tmp_path / "folder")
    assert again.recommend(HISTORIES, 40) == recommender.recommend(HISTORIES, 40)


def test_the_card_says_what_was_measured_and_how(saved, text_run):
    folder, _ = saved
    result = RunResult.load(text_run)
    _, header, text = (folder / "README.md").read_text().split("---\n", 2)
    about = yaml.safe_load(header)
    (model,) = about["model-index"]
    told = {metric["type"]: metric["value"] for part in model["results"] for metric in part["metrics"]}
    assert told["ndcg@10 (all)"] == result.test["all"]["ndcg@10"]
    assert f"{result.test['unseen']['recall@10']:.4f}" in text
    assert "seed 2020" in text and "60 test users" in text and "1 item added by their text" in text
    assert "41 items" in text


def test_nothing_of_this_machine_is_in_it(saved, tmp_path, text_run):
    folder, _ = saved
    assert {path.name for path in folder.iterdir()} == {
        "README.md",
        "items.tsv",
        "model.safetensors",
        "result.json",
        "text_whitening.npz",
        "tokenizer.npz",
    }
    for name in ("README.md", "items.tsv"):
        assert str(text_run.parent.parent) not in (folder / name).read_text()
    config = json.loads((folder / "result.json").read_text())["config"]
    assert (config["output_dir"], config["cache_dir"], config["data_path"]) == ("runs", "cache", "dataset")


def test_a_folder_cannot_ask_for_remote_code(saved, tmp_path):
    folder, _ = saved
    result = RunResult.load(folder)
    hostile = tmp_path / "hostile"
    shutil.copytree(folder, hostile)
    result.config["sid_trust_remote_code"] = True
    type(result)(**{**vars(result), "run_dir": hostile}).save()
    assert Recommender.from_pretrained(hostile).config["sid_trust_remote_code"] is False


def test_what_cannot_be_loaded(saved, tmp_path, monkeypatch):
    folder, recommender = saved
    with pytest.raises(UserError, match="is not empty"):
        recommender.save_pretrained(folder)
    damaged = tmp_path / "damaged"
    shutil.copytree(folder, damaged)
    with (damaged / "model.safetensors").open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"\x00\x01\x02\x03")
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        Recommender.from_pretrained(damaged)
    (damaged / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        Recommender.from_pretrained(damaged)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import huggingface_hub

    def no_network(*arguments, **options):
        raise OSError("offline")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", no_network)
    with pytest.raises(UserError, match=r"someone/model is no folder, and cannot be had from the hub \(offline\)"):
        Recommender.from_pretrained("someone/model")


def test_from_the_hub(saved, monkeypatch):
    folder, recommender = saved
    import huggingface_hub

    asked = []
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda name, revision: asked.append((name, revision)) or str(folder)
    )
    again = Recommender.from_pretrained("someone/model", revision="v1")
    assert asked == [("someone/model", "v1")]
    assert again.recommend(HISTORIES, 5) == recommender.recommend(HISTORIES, 5)

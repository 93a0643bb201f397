"""The whole way from a data set to its IDs: as people call it, kept, repaired, and the same every time."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from recbole_diffgrm import Tokenizer, UserError, run
from recbole_diffgrm.config.config import build_config
from recbole_diffgrm.data.dataset import load_dataset
from recbole_diffgrm.decoding.catalogue import Catalogue
from recbole_diffgrm.tokenizer import encoder, prepare
from recbole_diffgrm.tokenizer.__main__ import main
from recbole_diffgrm.training import checkpoint
from tests.conftest import AMAZON_DATA, ROOT, needs_amazon, run_python
from tests.tokenizer.conftest import IDS, make, write_npz


def command_line(settings: dict, **changes) -> list[str]:
    values = {**settings, **changes}
    return ["--dataset=tiny", *(f"--{key}={json.dumps(value)}" for key, value in values.items())]


def test_command_line(settings, capsys):
    assert main(command_line(settings, sid_collisions="reassign")) == 0
    shown = capsys.readouterr()
    assert re.search(r"distinct IDs +40 \(as quantised: \d+\)", shown.out)
    assert "has no price, brand, description: texts are made without" in shown.err
    folder = (ROOT / shown.out.split("results: ")[1].strip()).resolve()
    assert sorted(path.name for path in folder.iterdir()) == [
        "about.json",
        "report.json",
        "report.png",
        "tiny.sid",
        "tokenizer.npz",
    ]
    lines = (folder / "tiny.sid").read_text().splitlines()
    assert lines[0] == "item_id:token\tsid:token_seq"
    assert len({line.split("\t")[1] for line in lines[1:]}) == 40
    plain = [argument for argument in command_line(settings) if "sid_codes" not in argument]
    assert main([*plain, "--sid_codes=4", "--sid_text_template={label} is {text};"]) == 0
    assert main([*plain, "--sid_codes=4", "--sid_text_template={text[a]}"]) == 2
    assert "sid_text_template must be a text with {text}" in capsys.readouterr().err
    assert main(["--dataset=tiny", "--sid_digit=3"]) == 2
    assert "Did you mean sid_digits" in capsys.readouterr().err
    assert main(["--help"]) == 0


def test_from_text_to_table_by_hand(settings):
    """The table against a straightforward account of the same steps."""
    made = make(settings)
    tokenizer = made.tokenizer
    model = encoder.load(settings["sid_encoder"], "cpu", False)
    for item in ("i0", "i17", "i39"):
        number = int(item[1:])
        text = f"Title: Item {number}. Category: c{number % 5}, c{(number + 1) % 5}."
        codes = tokenizer.quantiser.codes(model.encode([text], normalize_embeddings=True))
        assert tokenizer.table([item]).tolist() == codes.tolist()


def test_report(settings):
    made = make(settings)
    sids = [tuple(sid) for sid in made.tokenizer.sids.tolist()]
    report = json.loads((made.folder / "report.json").read_text())
    assert report["items"] == 40
    assert report["distinct_ids"] == len(set(sids))
    assert report["colliding_items"] == sum(sids.count(sid) > 1 for sid in sids)
    assert report["largest_group"] == max(map(sids.count, sids))
    assert report["text_fields"] == ["title", "categories"]
    first = [sid[0] for sid in sids]
    assert report["codes_used"][0] == len(set(first))
    shares = np.array([first.count(code) / 40 for code in set(first)])
    assert report["entropy_bits"][0] == pytest.approx(-(shares * np.log2(shares)).sum())
    pair = sum(
        sids.count(sid) / 40 * np.log2(40 * sids.count(sid) / first.count(sid[0]) / [s[1] for s in sids].count(sid[1]))
        for sid in set(sids)
    )
    assert report["mutual_information_bits"]["1-2"]["measured"] == pytest.approx(pair)
    inter_file = Path(settings["data_path"]) / "tiny" / "tiny.inter"
    lines = [line.split("\t") for line in inter_file.read_text().splitlines()[1:]]
    last = {}
    for user, item, _, time in lines:
        if float(time) >= last.get(user, ("", -1.0))[1]:
            last[user] = (item, float(time))
    of = dict(zip(made.tokenizer.item_ids.tolist(), sids))
    sharing = [sids.count(of[item]) > 1 for item, _ in last.values()]
    assert report["test_targets"] == len(sharing)
    assert report["test_targets_sharing"] == pytest.approx(np.mean(sharing))
    assert 0 < report["error"] < 1
    assert report["error_with_moves"] == report["error"]
    moved = make(settings, sid_collisions="reassign").report
    assert moved["items_moved"] == 40 - report["distinct_ids"]
    assert moved["error_with_moves"] > moved["error"] == report["error"]


def test_only_what_follows_is_made_again(settings, data, work):
    first = make(settings)
    assert work == ["encode", "fit", "resolve"]
    work.clear()
    again = make(settings)
    assert work == []
    assert again.folder == first.folder
    make(settings, sid_collisions="reassign")
    assert work == ["resolve"]
    work.clear()
    make(settings, sid_digits=3)
    assert work == ["fit", "resolve"]
    work.clear()
    make(settings, sid_text_template="{text}")
    assert work == ["encode", "fit", "resolve"]
    work.clear()
    make(settings)
    assert work == []
    item_file = data / "tiny" / "tiny.item"
    item_file.write_text(item_file.read_text().replace("Item 7\t", "Another 7\t"))
    make(settings)
    assert work == ["encode", "fit", "resolve"]
    work.clear()
    inter_file = data / "tiny" / "tiny.inter"  # two users more: other training items
    inter_file.write_text(inter_file.read_text() + "".join(f"new\ti{i}\t1\t{i}\n" for i in range(40)))
    item_file.write_text(item_file.read_text() + "i40\tOnly in the catalogue\tc1\n")
    make(settings)
    assert work == ["encode", "fit", "resolve"]


def test_refusals_come_before_the_work(settings, work):
    for changes, words in (
        ({"sid_codes": 64}, "too few for 64 codes"),
        ({"sid_codes": 2, "sid_collisions": "reassign"}, "cannot all have their own of 4 IDs"),
        ({"sid_pca_dim": 1}, r"sid_pca_dim \(1\) must be at least sid_digits \(2\)"),
    ):
        with pytest.raises(UserError, match=words):
            make(settings, **changes)
    assert work == []


@pytest.mark.parametrize("kind", ["embeddings", "codes", "sid"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "no about"])
def test_damage_is_noticed_and_mended(settings, kind, damage, caplog):
    made = make(settings)
    before = (made.folder / "tiny.sid").read_text()
    root = made.folder.parent
    entry = next(path for path in root.iterdir() if path.name.startswith(f"{kind}-"))
    file = next(path for path in entry.iterdir() if path.suffix in (".npy", ".npz"))
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-10])
    elif damage == "flipped":
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    elif damage == "gone":
        file.unlink()
    else:
        (entry / "about.json").write_text("{")
    # what is asked for again is checked: other rules need the codes, other digits the embeddings
    changes = {"embeddings": {"sid_digits": 3}, "codes": {"sid_collisions": "reassign"}, "sid": {}}[kind]
    make(settings, **changes)
    assert f"{kind}-" in caplog.text
    assert "is damaged" in caplog.text
    caplog.clear()
    assert (make(settings).folder / "tiny.sid").read_text() == before
    assert "damaged" not in caplog.text


def test_interrupted_while_building(settings, monkeypatch):
    """A folder that is not finished is never taken for one that is."""
    original = Tokenizer.save

    def killed(self, path):
        original(self, path)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Tokenizer, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            make(settings)
    assert make(settings).report["items"] == 40


def test_two_processes_at_once(settings, tmp_path):
    arguments = [sys.executable, "-m", "recbole_diffgrm.tokenizer", *command_line(settings)]
    running = [
        subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=200) for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert outputs[0][0] == outputs[1][0]
    assert sum(err.count("encoding ") for _, err in outputs) == 1
    assert sum(err.count("fitting ") for _, err in outputs) == 1
    left = [path.name for path in (tmp_path / "cache" / "tiny").iterdir() if not path.name.startswith(".")]
    assert sorted(name.split("-")[0] for name in left) == ["codes", "embeddings", "sid"]


def test_any_number_of_threads_gives_the_same_ids(settings, tmp_path):
    found = []
    for threads in (1, 2, 3):
        changes = {"cache_dir": str(tmp_path / f"cache{threads}"), "sid_collisions": "reassign", "sid_codes": 16}
        done = run_python(
            "-m", "recbole_diffgrm.tokenizer", *command_line(settings, **changes), OMP_NUM_THREADS=str(threads)
        )
        assert done.returncode == 0, done.stderr
        folder = ROOT / done.stdout.split("results: ")[1].strip()
        found.append(dict(np.load(folder / "tokenizer.npz")))
    for name in found[0]:
        assert (found[0][name] == found[1][name]).all(), name
        assert (found[0][name] == found[2][name]).all(), name


def test_codebooks_come_from_training_items_only(settings, data, tmp_path, vectors):
    """An item that is only a test target may have any embedding."""
    inter_file = data / "tiny" / "tiny.inter"
    inter_file.write_text(inter_file.read_text() + "u0\tlast\t1\t99999\n")
    ids = [*IDS, "last"]
    first = make(settings, sid_encoder=write_npz(tmp_path / "a.npz", ids, vectors)).tokenizer
    vectors[40] = 100
    second = make(settings, sid_encoder=write_npz(tmp_path / "b.npz", ids, vectors)).tokenizer
    for name, array in first.quantiser.arrays().items():
        assert (array == second.quantiser.arrays()[name]).all(), name
    assert (first.table(IDS) == second.table(IDS)).all()
    vectors[3] += 1  # and an item of training may not
    third = make(settings, sid_encoder=write_npz(tmp_path / "c.npz", ids, vectors)).tokenizer
    assert (first.quantiser.mean != third.quantiser.mean).any()


@pytest.mark.parametrize("kind", ["pq", "rq_kmeans"])
def test_other_quantisers(settings, kind):
    made = make(settings, sid_quantiser=kind, sid_collisions="reassign")
    assert made.report["distinct_ids"] == 40
    raw = make(settings, sid_quantiser=kind, sid_pca_dim=None)
    assert raw.report["dimensions"] == 16


def test_catalogue_too_small(settings):
    with pytest.raises(UserError, match="40 different training items are too few for 64 codes: set sid_codes to 32"):
        make(settings, sid_codes=64)
    with pytest.raises(UserError, match="40 items cannot all have their own of 16 IDs"):
        make(settings, sid_codes=4, sid_collisions="reassign")


def test_cache_that_cannot_be_written(settings, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cache_dir: .* cannot be made or read"):
        make(settings, cache_dir=str(tmp_path / "file"))


def test_models_with_semantic_ids_find_them_in_their_data_set(settings, tmp_path):
    """The preprocessor runs by itself, and the run's hash covers all that decides the IDs."""
    options = {**settings, "output_dir": str(tmp_path / "runs"), "epochs": 1, "MAX_ITEM_LIST_LENGTH": 10}
    options |= {"hidden_size": 16, "inner_size": 16}

    def sids(result):
        state = checkpoint.load(result.run_dir / "best.pt")["state_dict"]
        return Catalogue.from_state(state, "catalogue.").sids(torch.arange(1, 41))

    first = run("DiffGRM", "tiny", **options)
    assert sids(first).shape == (40, 2)
    assert first.config["sid_codes"] == 8
    other = run("DiffGRM", "tiny", **options, sid_collisions="extra_digit")
    assert sids(other).shape == (40, 3)
    assert first.config_hash != other.config_hash
    item_file = Path(settings["data_path"]) / "tiny" / "tiny.item"
    item_file.write_text(item_file.read_text().replace("Item 7\t", "Another 7\t"))
    changed = run("DiffGRM", "tiny", **options)
    assert changed.config_hash != first.config_hash
    encoder_copy = tmp_path / "encoder"
    shutil.copytree(settings["sid_encoder"], encoder_copy)
    hashes = []
    for last_byte in (b"\1", b"\2"):  # another model in the same folder
        weights = encoder_copy / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + last_byte)
        hashes.append(run("DiffGRM", "tiny", **{**options, "sid_encoder": str(encoder_copy)}).config_hash)
    assert hashes[0] != hashes[1]


def test_ml_100k(tmp_path):
    """The default: out of the box, without a network."""
    done = run_python(
        "-m", "recbole_diffgrm.tokenizer", f"--cache_dir={tmp_path}", "--sid_collisions=reassign", HF_HUB_OFFLINE="1"
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((ROOT / done.stdout.split("results: ")[1].strip() / "report.json").read_text())
    assert (report["items"], report["distinct_ids"], report["digits"], report["codes"]) == (1682, 1682, 4, 32)
    assert report["text_fields"] == ["movie_title", "release_year", "class"]
    assert report["distinct_ids_as_quantised"] > 1500
    assert report["items_moved"] == 1682 - report["distinct_ids_as_quantised"]


@needs_amazon
def test_shared_ids_of_amazon_beauty(tmp_path):
    """The facts about these IDs that are known from elsewhere."""
    overrides = {
        "data_path": str(AMAZON_DATA),
        "cache_dir": str(tmp_path),
        "sid_file": str(AMAZON_DATA / "Amazon_Beauty" / "Amazon_Beauty.sentence-t5-base.sid"),
    }
    config = build_config("DiffGRM", "Amazon_Beauty", overrides=overrides)
    assert config["sid_encoder"] == "sentence-transformers/sentence-t5-base"
    dataset = load_dataset(config)
    report = prepare.prepare(config, dataset, dataset.build()).report
    assert (report["items"], report["distinct_ids"], report["largest_group"]) == (12101, 10619, 40)
    assert report["test_targets_sharing"] == pytest.approx(0.208, abs=0.0005)

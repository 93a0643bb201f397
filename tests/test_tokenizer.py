"""The tokenizer as people use it: from a data set to IDs, kept, repaired, and open to new items."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from recbole_diffgrm import Tokenizer, UserError
from recbole_diffgrm.config.config import build_config
from recbole_diffgrm.data.dataset import load_dataset
from recbole_diffgrm.tokenizer import encoder, prepare, quantiser
from recbole_diffgrm.tokenizer.__main__ import main
from tests.conftest import AMAZON_DATA, ROOT, needs_amazon, run_python, write_dataset


@pytest.fixture
def data(tmp_path):
    """A data set of the test's own, which it may change."""
    return write_dataset(tmp_path / "data")


@pytest.fixture
def settings(data, encoder_folder, tmp_path) -> dict:
    return {
        "data_path": str(data),
        "cache_dir": str(tmp_path / "cache"),
        "sid_encoder": str(encoder_folder),
        "sid_digits": 2,
        "sid_codes": 8,
        "seq_separator": "|",
        "load_col": {"inter": ["user_id", "item_id", "timestamp"], "item": ["item_id", "categories"]},
        "show_progress": False,
    }


def make(settings: dict, **changes) -> prepare.Prepared:
    config = build_config("SASRec", "tiny", overrides={**settings, **changes}, sids=True)
    dataset = load_dataset(config)
    return prepare.prepare(config, dataset, dataset.build())


@pytest.fixture
def work(monkeypatch) -> list[str]:
    """Which costly steps were taken."""
    steps = []

    def watched(name, original):
        def call(*arguments, **keywords):
            steps.append(name)
            return original(*arguments, **keywords)

        return call

    monkeypatch.setattr(encoder, "encode_to", watched("encode", encoder.encode_to))
    monkeypatch.setattr(quantiser, "fit", watched("fit", quantiser.fit))
    monkeypatch.setattr(prepare, "resolve", watched("resolve", prepare.resolve))
    return steps


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


def write_npz(path, ids, vectors):
    np.savez(path, item_id=np.array(ids), embedding=np.asarray(vectors, np.float32))
    return str(path)


@pytest.fixture
def vectors() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((41, 12)).astype(np.float32)


IDS = [f"i{i}" for i in range(40)]


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


def test_embedding_files(settings, tmp_path, vectors):
    order = np.random.default_rng(1).permutation(40)
    ids = [IDS[i] for i in order]
    first = make(settings, sid_encoder=write_npz(tmp_path / "a.npz", [*ids, "unknown"], vectors)).tokenizer
    np.save(tmp_path / "b.npy", vectors)
    (tmp_path / "b.ids.txt").write_text("\n".join([*ids, "unknown"]) + "\n")
    second = make(settings, sid_encoder=str(tmp_path / "b.npy")).tokenizer
    assert (first.sids == second.sids).all()
    for kind in (np.float64, np.float16):
        np.save(tmp_path / "b.npy", vectors.astype(np.float16).astype(kind))
        rounded = make(settings, sid_encoder=str(tmp_path / "b.npy")).tokenizer
        assert (rounded.sids == first.sids).all(axis=1).mean() > 0.5
    np.savez(tmp_path / "c.npz", item_id=np.array(ids, dtype="S"), embedding=vectors[:40])
    assert (make(settings, sid_encoder=str(tmp_path / "c.npz")).tokenizer.sids == first.sids).all()
    for item, vector in zip(ids[:5], vectors):
        assert first.table([item]).tolist() == first.quantiser.codes(vector[None]).tolist()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda ids, v: (ids[:-1], v[:-1]), "1 of 40 items have no embedding, 'i39' among them"),
        (lambda ids, v: ([*ids[:-1], "i3"], v), "item 'i3' is there twice"),
        (lambda ids, v: (ids, np.where(np.arange(40)[:, None] == 5, np.nan, v)), "item 'i5' holds NaN or infinity"),
        (lambda ids, v: (ids, np.where(np.arange(40)[:, None] == 6, np.inf, v)), "item 'i6' holds NaN or infinity"),
        (lambda ids, v: (ids, v[:-1]), r"40 ids and an array \[39, 12\] do not fit"),
        (lambda ids, v: (ids, v[:, 0]), "do not fit"),
    ],
)
def test_wrong_embedding_files(settings, tmp_path, vectors, change, words):
    path = write_npz(tmp_path / "a.npz", *change(IDS, vectors[:40]))
    with pytest.raises(UserError, match=words):
        make(settings, sid_encoder=path)


def test_files_that_are_no_embeddings(settings, tmp_path, vectors):
    with pytest.raises(UserError, match=r"nowhere.npz does not exist; wanted is a .npz with item_id"):
        make(settings, sid_encoder=str(tmp_path / "nowhere.npz"))
    np.save(tmp_path / "a.npy", vectors)
    with pytest.raises(UserError, match=r"a.ids.txt does not exist"):
        make(settings, sid_encoder=str(tmp_path / "a.npy"))
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(UserError, match=r"folder.npz cannot be read"):
        make(settings, sid_encoder=str(tmp_path / "folder.npz"))
    (tmp_path / "b.npz").write_bytes(b"PK\3\4 and then nothing")
    with pytest.raises(UserError, match="cannot be read"):
        make(settings, sid_encoder=str(tmp_path / "b.npz"))
    np.savez(tmp_path / "c.npz", other=vectors)
    with pytest.raises(UserError, match="cannot be read"):
        make(settings, sid_encoder=str(tmp_path / "c.npz"))
    np.savez(tmp_path / "d.npz", item_id=np.array(IDS, dtype=object), embedding=vectors[:40])  # would run code
    with pytest.raises(UserError, match="cannot be read"):
        make(settings, sid_encoder=str(tmp_path / "d.npz"))


def set_texts(data, change) -> None:
    """Rewrite .item, line by line; None drops a line."""
    path = data / "tiny" / "tiny.item"
    head, *lines = path.read_text().splitlines()
    path.write_text("\n".join([head, *(new for line in lines if (new := change(line)) is not None)]) + "\n")


def test_items_without_text(settings, data, caplog):
    """Drawn IDs, counted, no part in the codebooks; whether the line is empty or missing is all the same."""
    set_texts(data, lambda line: None if line.startswith("i1\t") else line)
    missing = make(settings)
    assert missing.report["items_without_text"] == 1
    set_texts(data, lambda line: "i2\t<br> \t|" if line.startswith("i2\t") else line)
    both = make(settings)
    assert both.report["items_without_text"] == 2
    assert (both.tokenizer.table(["i1"]) == missing.tokenizer.table(["i1"])).all()
    set_texts(data, lambda line: line.split("\t")[0] + "\t\t" if int(line[1:].split("\t")[0]) < 20 else line)
    many = make(settings, sid_codes=4)
    assert many.report["items_without_text"] == 20
    drawn = many.tokenizer.table([f"i{i}" for i in range(20)])
    assert len(np.unique(drawn, axis=0)) > 5
    unique = make(settings, sid_codes=8, sid_collisions="reassign")
    assert unique.report["distinct_ids"] == 40
    set_texts(data, lambda line: line.split("\t")[0] + "\t\t")
    with pytest.raises(UserError, match="no item of tiny has text in title, categories"):
        make(settings)


def test_items_without_text_have_no_part_in_the_codebooks(settings, data):
    """The same codebooks as when the items did not occur in training."""
    set_texts(data, lambda line: None if line.startswith("i1\t") else line)
    first = make(settings).tokenizer.quantiser
    inter_file = data / "tiny" / "tiny.inter"
    lines = [line for line in inter_file.read_text().splitlines() if "\ti1\t" not in line]
    inter_file.write_text("\n".join(lines) + "\n")
    second = make(settings).tokenizer.quantiser
    for name, array in first.arrays().items():
        assert (array == second.arrays()[name]).all(), name


def test_repeated_lines_of_an_item(settings, data, caplog):
    first = make(settings).tokenizer
    set_texts(data, lambda line: line)
    path = data / "tiny" / "tiny.item"
    path.write_text(path.read_text() + "i3\tAnother title\tc1\n")
    again = make(settings).tokenizer
    assert "1 lines repeat an earlier item_id ('i3') and are not read" in caplog.text
    assert (first.sids == again.sids).all()


def test_items_of_another_catalogue(settings, data, caplog):
    set_texts(data, lambda line: "B" + line if line.startswith("i1\t") else line)
    make(settings)
    assert "tiny.item has no line for 1 of 41 items ('i1')" in caplog.text  # Bi1 is an item as well
    settings["load_col"] = {"inter": ["user_id", "item_id", "timestamp"]}
    make(settings)
    assert "tiny.item has no line for 1 of 40 items ('i1')" in caplog.text
    set_texts(data, lambda line: "B" + line)
    with_features = {"inter": ["user_id", "item_id", "timestamp"], "item": ["item_id", "categories"]}
    with pytest.raises(UserError, match="no item that occurs in training has text"):
        make(settings, load_col=with_features)
    with pytest.raises(UserError, match=r"no line for any item of tiny \('i0'\); it has others, such as 'Bi0'"):
        make(settings)


def test_ids_can_be_text(settings):
    with_ids = make(settings, sid_text_fields=["item_id", "title"])
    assert with_ids.report["text_fields"] == ["item_id", "title"]
    assert with_ids.tokenizer.compose({"item_id": "i3", "title": "Item 3"}) == "Item id: i3. Title: Item 3."


def test_wrong_text_fields(settings, caplog):
    with pytest.raises(UserError, match="has none of name; it has item_id, title, categories"):
        make(settings, sid_text_fields=["name"])
    with caplog.at_level("INFO"):
        make(settings, sid_text_fields=["titel", "categories"], sid_codes=4)
    assert "has no titel: texts are made without. Did you mean title?" in caplog.text


def test_no_item_file(settings, data, work):
    (data / "tiny" / "tiny.item").unlink()
    settings["load_col"] = {"inter": ["user_id", "item_id", "timestamp"]}
    with pytest.raises(UserError, match=r"tiny.item does not exist; .* sid_quantiser to random"):
        make(settings)
    made = make(settings, sid_quantiser="random", sid_collisions="reassign")
    assert made.report["distinct_ids"] == 40
    assert work == ["resolve"]
    assert made.report["error"] is None


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


# New items


NEW_TEXTS = {"new1": "Title: Item 3.", "new2": "Title: a lamp.", "new3": "", "new4": "Title: Item 3."}


@pytest.mark.parametrize("rule", ["keep", "reassign", "extra_digit"])
def test_new_items(settings, tmp_path, rule):
    made = make(settings, sid_codes=16, sid_collisions=rule)
    path = made.folder / "tokenizer.npz"
    tokenizer = Tokenizer.load(path)
    before = tokenizer.sids.copy()
    sids = tokenizer.assign(list(NEW_TEXTS), texts=list(NEW_TEXTS.values()))
    assert (tokenizer.table(list(NEW_TEXTS)) == sids).all()
    assert (tokenizer.sids[:40] == before).all()
    if rule == "keep":
        assert (sids[0] == sids[3]).all()
        # in company or alone
        alone = Tokenizer.load(path)
        assert (alone.assign(["new2"], texts=["Title: a lamp."]) == sids[1]).all()
    else:
        assert len(np.unique(tokenizer.sids, axis=0)) == 44
    # what an item of the catalogue has for its columns, a new one with the same columns has as well
    columns = {"title": "Item 7", "categories": "c2|c3", "unused": "x"}
    twin = tokenizer.assign(["twin"], texts=[columns])
    assert (tokenizer.codes[-1] == tokenizer.codes[tokenizer.item_ids.tolist().index("i7")]).all()
    assert rule != "keep" or (twin == tokenizer.table(["i7"])).all()
    tokenizer.save(tmp_path / "grown.npz")
    grown = Tokenizer.load(tmp_path / "grown.npz")
    assert (grown.sids == tokenizer.sids).all()
    assert (grown.item_ids == tokenizer.item_ids).all()
    assert grown.settings == tokenizer.settings


def test_new_items_by_embedding(settings, tmp_path, vectors):
    made = make(settings, sid_encoder=write_npz(tmp_path / "a.npz", IDS, vectors[:40]))
    tokenizer = made.tokenizer
    sids = tokenizer.assign(["new"], embeddings=vectors[7:8])
    assert (sids == tokenizer.table(["i7"])).all()
    assert tokenizer.assign([], embeddings=vectors[:0]).shape == (0, 2)
    with pytest.raises(UserError, match="give a list of item ids"):
        tokenizer.assign("ab", embeddings=vectors[:2])
    for wrong, words in {
        "texts": ({"texts": ["a text"]}, "new items need embeddings, not texts"),
        "shape": ({"embeddings": vectors[:1, :5]}, r"must be \[1, 12\]"),
        "nan": ({"embeddings": vectors[:1] * np.nan}, "NaN"),
        "nothing": ({}, "give texts or embeddings"),
    }.values():
        with pytest.raises(UserError, match=words):
            tokenizer.assign(["newer"], **wrong)
    with pytest.raises(UserError, match="'i3' has an ID already"):
        tokenizer.assign(["i3"], embeddings=vectors[:1])
    with pytest.raises(UserError, match="named twice"):
        tokenizer.assign(["a", "a"], embeddings=vectors[:2])
    with pytest.raises(UserError, match="1 items have no semantic ID, 'nowhere' among them"):
        tokenizer.table(["i3", "nowhere"])


def test_a_catalogue_that_grows(settings, data, work):
    """With an earlier tokenizer as sid_file old items keep their IDs and nothing is fitted again."""
    first = make(settings, sid_collisions="reassign")
    inter_file, item_file = data / "tiny" / "tiny.inter", data / "tiny" / "tiny.item"
    inter_file.write_text(inter_file.read_text() + "u0\tnew\t1\t5\nu1\tnew\t1\t5\n")
    item_file.write_text(item_file.read_text() + "new\tItem 7\tc2|c3\n")
    work.clear()
    grown = make(settings, sid_file=str(first.folder / "tokenizer.npz"))
    assert work == []
    assert (grown.tokenizer.table(IDS) == first.tokenizer.table(IDS)).all()
    assert len(np.unique(grown.tokenizer.sids, axis=0)) == 41
    assert grown.report["items"] == 41
    assert grown.report["text_fields"] == ["title", "categories"]
    with pytest.raises(UserError, match="was made with sid_digits 2, but sid_digits is 3"):
        make(settings, sid_file=str(first.folder / "tokenizer.npz"), sid_digits=3)


def test_new_items_need_the_same_encoder(settings, encoder_folder, tmp_path):
    folder = tmp_path / "encoder"
    shutil.copytree(encoder_folder, folder)
    tokenizer = make(settings, sid_encoder=str(folder)).tokenizer
    tokenizer.assign(["new", "odd"], texts=[{"title": "Lamp", "categories": ["c1", "c2"], "price": 9.5}, None])
    assert tokenizer.compose({"title": "Lamp", "price": 9.5}) == "Title: Lamp."  # no item of the table had a price
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    with pytest.raises(UserError, match="is not what it was when the tokenizer was made"):
        tokenizer.assign(["newer"], texts=["Title: Lamp."])


def test_models_with_semantic_ids_find_them_in_their_data_set(settings, tmp_path, monkeypatch):
    """The preprocessor runs by itself for a model that says uses_sids."""
    from recbole_diffgrm import compat, run

    sasrec = compat.model_class("SASRec")
    original, seen = sasrec.__init__, []

    def initialise(self, config, dataset):
        names = dataset.field2id_token[dataset.iid_field][1:]
        seen.append(dataset.tokenizer.table(names))
        original(self, config, dataset)

    monkeypatch.setattr(sasrec, "uses_sids", True, raising=False)
    monkeypatch.setattr(sasrec, "__init__", initialise)
    options = {**settings, "output_dir": str(tmp_path / "runs"), "epochs": 1, "MAX_ITEM_LIST_LENGTH": 10}
    first = run("SASRec", "tiny", **options)
    assert seen[0].shape == (40, 2)
    assert first.config["sid_codes"] == 8
    other = run("SASRec", "tiny", **options, sid_collisions="extra_digit")
    assert seen[1].shape == (40, 3)
    assert first.config_hash != other.config_hash
    item_file = Path(settings["data_path"]) / "tiny" / "tiny.item"
    item_file.write_text(item_file.read_text().replace("Item 7\t", "Another 7\t"))
    assert run("SASRec", "tiny", **options).config_hash != first.config_hash


def test_damaged_tokenizer(settings, tmp_path):
    (tmp_path / "a.npz").write_bytes(b"nothing")
    with pytest.raises(UserError, match="is no tokenizer, or a damaged one"):
        Tokenizer.load(tmp_path / "a.npz")
    with pytest.raises(UserError, match="does not exist"):
        Tokenizer.load(tmp_path / "b.npz")


# Ready IDs


def write_sids(path, rows) -> str:
    path.write_text("item_id:token\tsid:token_seq\n" + "".join(f"{item}\t{sid}\n" for item, sid in rows))
    return str(path)


def test_ready_ids(settings, tmp_path, work):
    rows = [(item, f"{number % 8} {number // 8}") for number, item in enumerate(IDS)]
    path = write_sids(tmp_path / "a.sid", [*rows, ("unknown", "0 0")])
    made = make(settings, sid_file=path)
    assert work == ["resolve"]
    assert made.tokenizer.table(["i0", "i9", "i39"]).tolist() == [[0, 0], [1, 1], [7, 4]]
    assert made.report["distinct_ids"] == 40
    with pytest.raises(UserError, match="has no codebooks"):
        made.tokenizer.assign(["new"], texts=["a text"])
    with pytest.raises(UserError, match="reassign needs vectors"):
        make(settings, sid_file=path, sid_collisions="reassign")
    shared = write_sids(tmp_path / "b.sid", [(item, f"{number // 8} 0") for number, item in enumerate(IDS)])
    numbered = make(settings, sid_file=shared, sid_collisions="extra_digit")
    assert numbered.report["digits"] == 3
    assert numbered.report["distinct_ids"] == 40
    # what the tokenizer writes, sid_file reads
    written = make(settings)
    assert (make(settings, sid_file=str(written.folder / "tiny.sid")).tokenizer.sids == written.tokenizer.sids).all()


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([("i0", "1 2")], "39 of 40 items have no ID"),
        ([("i0", "1 2 3")], "has 3 digits, but sid_digits is 2"),
        ([("i0", "1 8")], r"leaves 0..7, but sid_codes is 8"),
        ([("i0", "1 -1")], r"leaves 0..7"),
        ([("i0", "1 x")], "not numbers"),
        ([("i0", "1 2"), ("i0", "1 2")], "item 'i0' is there twice"),
    ],
)
def test_wrong_ready_ids(settings, tmp_path, rows, words):
    with pytest.raises(UserError, match=words):
        make(settings, sid_file=write_sids(tmp_path / "a.sid", rows))


def test_file_that_is_no_table(settings, tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        make(settings, sid_file=str(tmp_path / "nowhere.sid"))
    with pytest.raises(UserError, match="cannot be read"):
        make(settings, sid_file=str(tmp_path))
    (tmp_path / "a.sid").write_text("item_id:token\tother:token\n")
    with pytest.raises(UserError, match="must have the columns item_id:token and sid:token_seq"):
        make(settings, sid_file=str(tmp_path / "a.sid"))


def test_cache_that_cannot_be_written(settings, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cache_dir: .* cannot be made or read"):
        make(settings, cache_dir=str(tmp_path / "file"))


# Real data


def test_ml_100k(tmp_path):
    """The default: out of the box, without a network."""
    done = run_python(
        "-m", "recbole_diffgrm.tokenizer", f"--cache_dir={tmp_path}", "--sid_collisions=reassign", HF_HUB_OFFLINE="1"
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((ROOT / done.stdout.split("results: ")[1].strip() / "report.json").read_text())
    assert (report["items"], report["distinct_ids"], report["digits"], report["codes"]) == (1682, 1682, 4, 256)
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
    config = build_config("SASRec", "Amazon_Beauty", overrides=overrides, sids=True)
    assert config["sid_encoder"] == "sentence-transformers/sentence-t5-base"
    dataset = load_dataset(config)
    report = prepare.prepare(config, dataset, dataset.build()).report
    assert (report["items"], report["distinct_ids"], report["largest_group"]) == (12101, 10619, 40)
    assert report["test_targets_sharing"] == pytest.approx(0.208, abs=0.0005)

"""Tokenizers as files, items that are added later, and tables of ready SIDs."""

import shutil

import numpy as np
import pytest

from recbole_diffgrm import Tokenizer, UserError
from recbole_diffgrm.tokenizer import text_encoder
from tests.tokenizer.conftest import IDS, run_tokenizer, write_npz

NEW_TEXTS = {"new1": "Title: Item 3.", "new2": "Title: a lamp.", "new3": "", "new4": "Title: Item 3."}


@pytest.mark.parametrize("rule", ["keep", "reassign", "extra_digit", "random_digit"])
def test_new_items(settings, tmp_path, rule):
    path = run_tokenizer(settings, sid_codebook_size=16, sid_collisions=rule, sid_hash_size=16).folder / "tokenizer.npz"
    tokenizer = Tokenizer.load(path)
    before = tokenizer.sids.copy()
    sids = tokenizer.assign(list(NEW_TEXTS), texts=list(NEW_TEXTS.values()))
    assert (tokenizer.table(list(NEW_TEXTS)) == sids).all()
    assert (tokenizer.sids[:40] == before).all()
    if rule == "keep":
        assert (sids[0] == sids[3]).all()
        # together or alone
        alone = Tokenizer.load(path)
        assert (alone.assign(["new2"], texts=["Title: a lamp."]) == sids[1]).all()
    else:
        assert len(np.unique(tokenizer.sids, axis=0)) == 44
    # a new item with the columns of an old one has its codes
    columns = {"title": "Item 7", "categories": "c2|c3", "unused": "x"}
    twin = tokenizer.assign(["twin"], texts=[columns])
    assert (tokenizer.codes[-1] == tokenizer.codes[tokenizer.item_ids.tolist().index("i7")]).all()
    assert rule != "keep" or (twin == tokenizer.table(["i7"])).all()
    tokenizer.save(tmp_path / "grown.npz")
    grown = Tokenizer.load(tmp_path / "grown.npz")
    assert (grown.sids == tokenizer.sids).all()
    assert (grown.item_ids == tokenizer.item_ids).all()
    assert grown.settings == tokenizer.settings


@pytest.mark.parametrize("quantizer", ["opq", "pq", "rq_kmeans", "rq_vae", "svd", "random"])
def test_saved_quantizer(settings, quantizer):
    """The file names its quantizer and has its arrays; loading finds the class in the registry."""
    path = run_tokenizer(settings, sid_quantizer=quantizer, rq_vae_epochs=1).folder / "tokenizer.npz"
    with np.load(path) as saved:
        assert str(saved["quantizer"]) == quantizer
        arrays = {name for name in saved if name.startswith("quantizer_")}
    tokenizer = Tokenizer.load(path)
    assert tokenizer.quantizer.name == quantizer
    assert arrays == {f"quantizer_{name}" for name in tokenizer.quantizer.state()}
    reads_text = quantizer not in ("svd", "random")
    assert tokenizer.reads_text == reads_text
    assert (tokenizer.quantizer.num_digits, tokenizer.quantizer.codebook_size, tokenizer.codebook_size) == (2, 8, 8)
    inputs = {"texts": ["Title: a lamp."]} if reads_text else {}
    assert tokenizer.assign(["new"], **inputs).shape == (1, 2)


def test_a_file_of_an_earlier_version(settings, tmp_path):
    """Item ids were an array of texts of one width."""
    path = run_tokenizer(settings, sid_quantizer="random").folder / "tokenizer.npz"
    tokenizer = Tokenizer.load(path)
    with np.load(path) as saved:
        np.savez(tmp_path / "earlier.npz", **{**saved, "item_ids": tokenizer.item_ids.astype(str)})
    earlier = Tokenizer.load(tmp_path / "earlier.npz")
    assert earlier.item_ids.tolist() == tokenizer.item_ids.tolist() and (earlier.sids == tokenizer.sids).all()


def test_new_items_by_embedding(settings, tmp_path, vectors):
    path = write_npz(tmp_path / "a.npz", IDS, vectors[:40])
    tokenizer = run_tokenizer(settings, sid_text_encoder=path).tokenizer
    sids = tokenizer.assign(["new"], embeddings=vectors[7:8])
    assert (sids == tokenizer.table(["i7"])).all()
    assert tokenizer.assign([], embeddings=vectors[:0]).shape == (0, 2)
    with pytest.raises(UserError, match="list of item ids"):
        tokenizer.assign("ab", embeddings=vectors[:2])
    for wrong, words in (
        ({"texts": ["a text"]}, "a.npz.* embeddings"),
        ({"embeddings": vectors[:1, :5]}, r"\[1, 12\], not \[1, 5\]"),
        ({"embeddings": vectors[:1] * np.nan}, "NaN"),
        ({}, "texts or embeddings"),
    ):
        with pytest.raises(UserError, match=words):
            tokenizer.assign(["newer"], **wrong)
    with pytest.raises(UserError, match=r"'i3' .* already"):
        tokenizer.assign(["i3"], embeddings=vectors[:1])
    with pytest.raises(UserError, match="twice"):
        tokenizer.assign(["a", "a"], embeddings=vectors[:2])
    with pytest.raises(UserError, match=r"1 item, .* 'nowhere'"):
        tokenizer.table(["i3", "nowhere"])


def test_new_items_by_text(settings):
    tokenizer = run_tokenizer(settings).tokenizer
    with pytest.raises(UserError, match=r"2 items, but 1 text$"):
        tokenizer.assign(["a", "b"], texts=["Title: a lamp."])


def test_a_misspelt_column_is_no_text(settings, caplog):
    """It would silently get random codes."""
    tokenizer = run_tokenizer(settings).tokenizer
    for columns, words in (
        ({"titel": "Lamp"}, "has none of title, categories, .* Did you mean titel?"),
        ({}, "has none of title"),
        (3.5, r"the text of 'new' is 3.5, not a text or \{column: text\}"),
        (float("nan"), "the text of 'new' is nan"),
    ):
        with pytest.raises(UserError, match=words):
            tokenizer.assign(["new"], texts=[columns])
    assert "new" not in tokenizer.item_ids
    with caplog.at_level("WARNING"):
        tokenizer.assign(["new"], texts=[{"title": "Lamp", "category": "c1"}])
    assert "the text of 'new' has no categories" in caplog.text and "Did you mean category?" in caplog.text
    assert tokenizer.compose({"title": float("nan"), "categories": None}) == ""


@pytest.mark.parametrize("bad", ["[PAD]", "x" * 1001, "a\0"])
def test_ids_that_are_refused(settings, bad):
    tokenizer = run_tokenizer(settings).tokenizer
    with pytest.raises(UserError, match=r"assign: item .* cannot be an id"):
        tokenizer.assign([bad], texts=["Title: a lamp."])


def test_new_items_without_the_columns_of_old_ones(settings, data):
    first = run_tokenizer(settings)
    inter_file, item_file = data / "tiny" / "tiny.inter", data / "tiny" / "tiny.item"
    inter_file.write_text(inter_file.read_text() + "u0\tnew\t1\t5\nu1\tnew\t1\t5\n")
    item_file.write_text("item_id:token\tname:token\nnew\tItem 7\n")
    with pytest.raises(UserError, match=r"tiny.item has none of title, categories"):
        columns = {"inter": settings["load_col"]["inter"]}
        run_tokenizer(settings, sid_file=str(first.folder / "tokenizer.npz"), load_col=columns)


def test_a_tokenizer_cannot_allow_program_code(settings, monkeypatch):
    """Of a text encoder: only who calls can."""
    tokenizer = run_tokenizer(settings).tokenizer
    tokenizer.settings["sid_trust_remote_code"] = True
    allowed = []

    def load(name, device, trust_remote_code):
        allowed.append(trust_remote_code)
        raise UserError("enough")

    monkeypatch.setattr(text_encoder, "load", load)
    for trust in ({}, {"trust_remote_code": True}):
        with pytest.raises(UserError, match="enough"):
            tokenizer.assign(["new"], texts=["Title: a lamp."], **trust)
    assert allowed == [False, True]


@pytest.mark.slow
def test_more_items_than_before(settings, data, steps):
    """With an earlier tokenizer as sid_file old items keep their SIDs and nothing is fitted again."""
    first = run_tokenizer(settings, sid_collisions="reassign")
    inter_file, item_file = data / "tiny" / "tiny.inter", data / "tiny" / "tiny.item"
    inter_file.write_text(inter_file.read_text() + "u0\tnew\t1\t5\nu1\tnew\t1\t5\n")
    item_file.write_text(item_file.read_text() + "new\tItem 7\tc2|c3\n")
    steps.clear()
    grown = run_tokenizer(settings, sid_file=str(first.folder / "tokenizer.npz"))
    assert steps == []
    assert (grown.tokenizer.table(IDS) == first.tokenizer.table(IDS)).all()
    assert len(np.unique(grown.tokenizer.sids, axis=0)) == 41
    assert grown.report["num_items"] == 41
    assert grown.report["text_fields"] == ["title", "categories"]
    assert grown.report["dimensions"] == first.report["dimensions"]
    with pytest.raises(UserError, match=r"sid_file: .* sid_num_digits 2, .* 3"):
        run_tokenizer(settings, sid_file=str(first.folder / "tokenizer.npz"), sid_num_digits=3)


@pytest.mark.slow
def test_more_items_than_before_with_embeddings(settings, data, tmp_path, vectors):
    path = write_npz(tmp_path / "a.npz", IDS, vectors[:40])
    first = run_tokenizer(settings, sid_text_encoder=path)
    inter_file = data / "tiny" / "tiny.inter"
    inter_file.write_text(inter_file.read_text() + "u0\tnew\t1\t5\nu1\tnew\t1\t5\n")
    sid_file = str(first.folder / "tokenizer.npz")
    with pytest.raises(UserError, match=r"sid_text_encoder: .*tokenizer.npz.*a.npz.*lacks 1 item;"):
        run_tokenizer(settings, sid_file=sid_file)
    larger = write_npz(tmp_path / "b.npz", ["new", *IDS], vectors)
    grown = run_tokenizer(settings, sid_file=sid_file, sid_text_encoder=larger)
    assert (grown.tokenizer.table(IDS) == first.tokenizer.table(IDS)).all()
    assert (grown.tokenizer.table(["new"]) == first.tokenizer.quantizer.encode(vectors[:1])).all()


def test_new_items_need_the_same_encoder(settings, encoder_folder, tmp_path):
    folder = tmp_path / "encoder"
    shutil.copytree(encoder_folder, folder)
    tokenizer = run_tokenizer(settings, sid_text_encoder=str(folder)).tokenizer
    tokenizer.assign(["new", "odd"], texts=[{"title": "Lamp", "categories": ["c1", "c2"], "price": 9.5}, None])
    assert tokenizer.compose({"title": "Lamp", "price": 9.5}) == "Title: Lamp."  # the file had no prices
    tokenizer.source["encoder"]["versions"]["torch"] = "0.1"  # another library is not another encoder
    tokenizer.assign(["newest"], texts=["Title: Lamp."])
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    with pytest.raises(UserError, match=f"encoder {folder} has changed"):
        tokenizer.assign(["newer"], texts=["Title: Lamp."])


def test_damaged_file(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"nothing")
    np.savez(tmp_path / "b.npz", item_ids=np.array(IDS))
    for name in ("a.npz", "b.npz"):
        with pytest.raises(
            UserError, match=f"{name} is damaged .*expected the tokenizer.npz of an earlier run"
        ) as error:
            Tokenizer.load(tmp_path / name)
        assert "unsafely" not in str(error.value)
    with pytest.raises(UserError, match=r"c.npz does not exist"):
        Tokenizer.load(tmp_path / "c.npz")


@pytest.mark.parametrize(
    "change",
    [
        {"codes": np.full((40, 2), 8, np.uint16)},
        {"codes": np.zeros((39, 2), np.uint16)},
        {"sids": np.zeros((40, 5), np.uint16)},
        {"sids": np.zeros((40, 2))},
        {"item_ids": np.arange(40)},
        {"settings": np.array("{}")},
        {"settings": np.array("[")},
        {"source": np.array("{}")},
        {"quantizer_codebooks": np.zeros((3, 8, 4), np.float32)},
        {"quantizer_codebooks": np.zeros(3)},
        {"quantizer_other": np.zeros(3)},
        {"item_ids": np.array(IDS, dtype=object)},
    ],
    ids=str,
)
def test_parts_that_do_not_fit(settings, tmp_path, change):
    with np.load(run_tokenizer(settings).folder / "tokenizer.npz") as saved:
        arrays = dict(saved)
    np.savez(tmp_path / "a.npz", **{**arrays, **change})
    with pytest.raises(UserError, match=r"a.npz is (damaged|refused)"):
        Tokenizer.load(tmp_path / "a.npz")


def write_sids(path, rows) -> str:
    path.write_text("item_id:token\tsid:token_seq\n" + "".join(f"{item}\t{sid}\n" for item, sid in rows))
    return str(path)


@pytest.mark.slow
def test_ready_sids(settings, tmp_path, steps):
    rows = [(item, f"{number % 8} {number // 8}") for number, item in enumerate(IDS)]
    path = write_sids(tmp_path / "a.sid", [*rows, ("unknown", "0 0")])
    ready = run_tokenizer(settings, sid_file=path)
    assert steps == ["resolve"]
    assert ready.tokenizer.table(["i0", "i9", "i39"]).tolist() == [[0, 0], [1, 1], [7, 4]]
    assert ready.report["distinct_sids"] == 40
    with pytest.raises(UserError, match="sid_file"):
        ready.tokenizer.assign(["new"], texts=["a text"])
    with pytest.raises(UserError, match=r"sid_collisions: reassign .* sid_file"):
        run_tokenizer(settings, sid_file=path, sid_collisions="reassign")
    shared = write_sids(tmp_path / "b.sid", [(item, f"{number // 8} 0") for number, item in enumerate(IDS)])
    numbered = run_tokenizer(settings, sid_file=shared, sid_collisions="extra_digit")
    assert numbered.report["num_digits"] == 3
    assert numbered.report["distinct_sids"] == 40
    # what the tokenizer writes, sid_file reads
    written = run_tokenizer(settings)
    again = run_tokenizer(settings, sid_file=str(written.folder / "tiny.sid"))
    assert (again.tokenizer.sids == written.tokenizer.sids).all()


@pytest.mark.slow
def test_long_ready_sids(settings, tmp_path):
    """Keys that do not fit 64 bits."""
    rows = [(item, " ".join(str((number * (k + 1)) % 8) for k in range(64))) for number, item in enumerate(IDS)]
    report = run_tokenizer(settings, sid_file=write_sids(tmp_path / "a.sid", rows), sid_num_digits=64).report
    assert report["num_digits"] == 64
    assert report["distinct_sids"] == len({sid for _, sid in rows})
    assert report["colliding_items"] == 40


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([("i0", "1 2")], "39 of 40 items .* 'i1'"),
        ([("i0", "1 2 3")], "'i0' has 3 digits, .* sid_num_digits is 2"),
        ([("i0", "1 8")], r"'i0' .* 0\.\.7, .* sid_codebook_size is 8"),
        ([("i0", "1 -1")], r"'i0' .* 0\.\.7"),
        ([("i0", "1 x")], "'i0' is '1 x'"),
        ([("i0", "1 2"), ("i0", "1 2")], "'i0' .* twice"),
    ],
)
def test_wrong_ready_sids(settings, tmp_path, rows, words):
    with pytest.raises(UserError, match=f"a.sid: .*{words}"):
        run_tokenizer(settings, sid_file=write_sids(tmp_path / "a.sid", rows))


def test_file_that_is_not_a_table(settings, tmp_path):
    with pytest.raises(UserError, match=r"nowhere.sid does not exist"):
        run_tokenizer(settings, sid_file=str(tmp_path / "nowhere.sid"))
    with pytest.raises(UserError, match="is a folder where a file is expected"):
        run_tokenizer(settings, sid_file=str(tmp_path))
    (tmp_path / "a.sid").write_text("item_id:token\tother:token\n")
    with pytest.raises(UserError, match=r"a.sid .* item_id:token and sid:token_seq, not item_id, other"):
        run_tokenizer(settings, sid_file=str(tmp_path / "a.sid"))

"""What tokenizers are made from: texts, files of embeddings, ready IDs; and what is refused."""

import numpy as np
import pytest

from recbole_diffgrm import UserError
from tests.tokenizer.conftest import IDS, make, write_npz


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

"""Tokenizers as files, and items that come later."""

import shutil

import numpy as np
import pytest

from recbole_diffgrm import Tokenizer, UserError
from tests.tokenizer.conftest import IDS, make, write_npz

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
    tokenizer.source["encoder"]["versions"]["torch"] = "0.1"  # another library is no other encoder
    tokenizer.assign(["newest"], texts=["Title: Lamp."])
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    with pytest.raises(UserError, match="is not the one that the tokenizer was made with"):
        tokenizer.assign(["newer"], texts=["Title: Lamp."])


def test_damaged_tokenizer(settings, tmp_path):
    (tmp_path / "a.npz").write_bytes(b"nothing")
    with pytest.raises(UserError, match="is no tokenizer, or a damaged one"):
        Tokenizer.load(tmp_path / "a.npz")
    with pytest.raises(UserError, match="does not exist"):
        Tokenizer.load(tmp_path / "b.npz")

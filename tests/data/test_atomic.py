"""Atomic files: what is written can be read, by us and by RecBole."""

import errno
import os

import pandas as pd
import pytest

from recbole_diffgrm import UserError
from recbole_diffgrm.data.atomic import read_rows, write_atomic_file
from recbole_diffgrm.data.dataset import FlatSequentialDataset
from recbole_diffgrm.models import build_config
from tests.data.helpers import read_item_texts

HEADER = {"item_id": "token", "title": "token", "categories": "token_seq"}
ODD = [
    ["i1", 'a lone " quote', "x|y"],
    ["i2", '"begins with one', ""],
    ["i3", '"all quoted"', "x"],
    ["i4", "tab\tinside", 'tab\tand "quotes"'],
    ["i5", "", ""],
    ["i6", "Crème brûlée 日本語 🎈", "ä|ö"],
    ["i7", "NA", "null"],
    ["i8", '""', '"'],
    ["i9", " spaces ", "\\t \\n backslashes"],
]


def test_odd_text_survives(tmp_path):
    path = tmp_path / "a.item"
    assert write_atomic_file(path, HEADER, ODD) == len(ODD)
    assert list(read_rows(path)) == ODD
    assert read_item_texts(path)["i4"] == {"title": "tab\tinside", "categories": 'tab\tand "quotes"'}
    assert list(tmp_path.iterdir()) == [path]


def test_line_breaks_become_spaces(tmp_path):
    path = tmp_path / "a.item"
    write_atomic_file(path, HEADER, [["i1", "two\nlines\r\nand\u2028more", ""]])
    assert list(read_rows(path)) == [["i1", "two lines and more", ""]]


def test_recbole_reads_our_files(tmp_path):
    """With the call of RecBole's own loader, and with ours."""
    path = tmp_path / "odd" / "odd.item"
    path.parent.mkdir()
    write_atomic_file(path, HEADER, ODD)
    stock = pd.read_csv(path, delimiter="\t", dtype=str, encoding=None, engine="python", keep_default_na=False)
    assert stock.values.tolist() == ODD

    write_atomic_file(
        path.with_suffix(".inter"),
        {"user_id": "token", "item_id": "token", "timestamp": "float"},
        [(f"u{u}", f"i{i}", str(i)) for u in range(3) for i in range(1, 10)],
    )
    columns = {"inter": ["user_id", "item_id", "timestamp"], "item": list(HEADER)}
    config = build_config(
        "SASRec", "odd", overrides={"data_path": str(tmp_path), "load_col": columns, "seq_separator": "|"}
    )
    dataset = FlatSequentialDataset(config)
    titles = dataset.field2id_token["title"][dataset.item_feat["title"].astype(int)]
    assert list(titles[1:5]) == ['a lone " quote', '"begins with one', '"all quoted"', "tab\tinside"]
    assert dataset.item_feat["title"][5] == 0  # missing


def test_files_by_others_need_no_quotes(tmp_path):
    path = tmp_path / "a.item"
    path.write_bytes('\ufeffitem_id:token\ttitle:token\r\ni1\t5" screen "HD\r\n\r\ni2\tx\ni2\tsecond\n'.encode())
    assert read_item_texts(path) == {"i1": {"title": '5" screen "HD'}, "i2": {"title": "x"}}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("item_id:token\ttitle:token\ni1\n", "line 2: 1 fields where the header has 2"),
        ("item_id\ttitle\n", "name:type"),
        ("", "the first line is empty"),
        ("\n\nitem_id:token\n", "the first line is empty"),
        ("item_id:token\ttitle:token\ttitle:token\n", "names the column 'title' twice"),
        ("item_id:token\ttitle:token\ni1\tA\n\nitem_id:token\ttitle:token\n", "line 4: repeats the header"),
        ("item_id:token\ttitle:token\ni1\tA\t\n", "line 2: 3 fields"),
        ("x" * 1000, r"found 'x{100}'$"),
        ("item_id:token\n".encode("utf-16"), "not UTF-8"),
        ("item_id:token\ttitle:string\n", "title"),
        ("title:token\nx\n", "no column item_id"),
        (b"item_id:token\xff\n", "not UTF-8"),
        (b"item_id:token\ni\xff\n", "not UTF-8"),
    ],
)
def test_broken_files_are_named(content, words, tmp_path):
    path = tmp_path / "a.item"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=words):
        read_item_texts(path)


def test_long_fields_with_tabs(tmp_path):
    """Longer than Python's csv module reads unless told otherwise."""
    path = tmp_path / "a.item"
    rows = [["i1", "x\ty" * 100_000, ""]]
    write_atomic_file(path, HEADER, rows)
    assert list(read_rows(path)) == rows


def test_text_that_no_file_can_hold(tmp_path):
    with pytest.raises(UserError, match=r"a.item: there is text that UTF-8 cannot hold"):
        write_atomic_file(tmp_path / "a.item", HEADER, [["i1", "\ud800", ""]])
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    def fail(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UserError, match=r"a.item cannot be written \(No space left on device\)"):
        write_atomic_file(tmp_path / "a.item", HEADER, ODD)
    assert not list(tmp_path.iterdir())


def test_missing_file(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        read_item_texts(tmp_path / "none.item")


def test_an_interrupted_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.item"
    write_atomic_file(path, HEADER, ODD)

    def rows():
        yield ["new", "", ""]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomic_file(path, HEADER, rows())
    assert list(read_rows(path)) == ODD
    assert list(tmp_path.iterdir()) == [path]

"""Columns of texts: as the slow readers and writers of data.atomic treat them, and Python's own sorting and hashing."""

import hashlib

import numpy as np
import pytest

from recbole_diffgrm.data import columns
from recbole_diffgrm.data.atomic import read_header, read_rows, write_atomic_file
from recbole_diffgrm.data.columns import find_rows, hash_texts, join_codes, read_columns, sort_order, write_columns
from recbole_diffgrm.errors import UserError

TEXTS = ["b", "", "a", "é中", "\U0001f600", "\uffff", 'say "hi"', "tab\there", "line\nbreak", "\u2028", "a", "z" * 300]


def slow_hash(texts) -> str:
    content = b"".join(len(t.encode()).to_bytes(8, "big") + t.encode() for t in texts)
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("as_array", [list, lambda t: np.array(t, dtype=object), np.array, columns.as_arrow])
def test_sorting_finding_and_hashing(as_array, monkeypatch):
    monkeypatch.setattr(columns, "ROWS_AT_ONCE", 5)
    texts = as_array(TEXTS)
    assert [TEXTS[row] for row in sort_order(texts)] == sorted(TEXTS)
    assert find_rows(["a", "nobody", "", "b"], texts).tolist() == [2, -1, 1, 0]
    assert find_rows(texts, ["b"]).tolist() == [0] + 11 * [-1]
    assert hash_texts(texts) == slow_hash(TEXTS)
    assert hash_texts(texts, TEXTS[::-1]) == slow_hash(t for pair in zip(TEXTS, TEXTS[::-1]) for t in pair)


def test_hashes_differ():
    hashes = [hash_texts(texts) for texts in (["ab"], ["a", "b"], ["b", "a"], [], [""], ["\ud800"], ["\ud800", "a"])]
    assert len(set(hashes)) == len(hashes)
    assert find_rows(["\ud800", "x"], ["y", "\ud800"]).tolist() == [1, -1]  # half of a surrogate pair


def test_codes_as_text():
    codes = np.array([[3, 0, 65535], [17, 255, 1]], np.uint16)
    assert join_codes(codes).to_pylist() == ["3 0 65535", "17 255 1"]
    assert join_codes(codes[:, :1]).to_pylist() == ["3", "17"]


def test_a_file_is_written_as_by_the_slow_writer(tmp_path, monkeypatch):
    monkeypatch.setattr(columns, "ROWS_AT_ONCE", 5)
    header, other = {"item_id": "token", "title": "token"}, TEXTS[::-1]
    write_columns(tmp_path / "fast", header, [TEXTS, other])
    write_atomic_file(tmp_path / "slow", header, zip(TEXTS, other))
    assert (tmp_path / "fast").read_bytes() == (tmp_path / "slow").read_bytes()


FILES = {
    "plain": "i1\tone\ni2\ttwo",
    "no line": "",
    "empty fields and lines": "i1\t\n\n\ti2\n",
    "quotes": 'i1\t"quoted"\n"i2"\ta "word"\ni3\t"lone\ni4\t"two ""inner"" quotes"\n',
    "tab inside quotes": 'i1\t"a\tb"\ni2\tx\n',
    "windows": "i1\tone\r\ni2\ttwo\r\n",
    "carriage return": "i1\to\rne\ni2\ttwo\n",
    "null and NaN": "NULL\tNaN\nNA\tnull\n",
    "numbers": "1\t2.50\n01\t1e5\n",
    "line separators": "i1\ta\u2028b\x0bc\n",
    "says the name of its column": "i1\titem_id:token\n",
}


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_file_is_read_as_by_the_slow_reader(tmp_path, content, mark):
    path = tmp_path / "x.item"
    path.write_bytes((mark + "item_id:token\ttitle:token_seq\n" + content).encode())
    rows, names = list(read_rows(path)), list(read_header(path))
    found = read_columns(path, ["title", "item_id"])
    assert list(found) == ["title", "item_id"]
    for name, column in found.items():
        assert column.to_pylist() == [row[names.index(name)] for row in rows]


WRONG = {
    "a field too few": b"i1\n",
    "a field too many": b"i1\ta\tb\n",
    "header again": b"i1\ta\nitem_id:token\ttitle:token_seq\n",
    "not UTF-8": b"i1\t\xff\n",
}


@pytest.mark.parametrize("content", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said_as_by_the_slow_reader(tmp_path, content):
    path = tmp_path / "x.item"
    path.write_bytes(b"item_id:token\ttitle:token_seq\n" + content)
    messages = []
    for read in (lambda: list(read_rows(path)), lambda: read_columns(path, ["item_id"])):
        with pytest.raises(UserError) as error:
            read()
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_a_column_that_is_not_there(tmp_path):
    (tmp_path / "x.item").write_text("item_id:token\n")
    with pytest.raises(UserError, match=r"no column title; it has item_id"):
        read_columns(tmp_path / "x.item", ["title"])

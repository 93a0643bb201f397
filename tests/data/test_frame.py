"""Datasets from pandas frames."""

import datetime
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import recbole_diffgrm
from recbole_diffgrm import Dataset, Recommender, UserError, compare, retest, run
from recbole_diffgrm.data.atomic import read_header, read_rows
from recbole_diffgrm.models import build_config
from tests.conftest import ROOT
from tests.data.helpers import read_item_texts


@pytest.fixture
def make(tmp_path):
    return lambda *frames, **arguments: Dataset.from_frame(*frames, **{"folder": tmp_path / "frames", **arguments})


def rows_of(dataset, suffix="inter"):
    return list(read_rows(Path(dataset.data_path) / dataset.name / f"{dataset.name}.{suffix}"))


def header_of(dataset, suffix="inter"):
    return read_header(Path(dataset.data_path) / dataset.name / f"{dataset.name}.{suffix}")


def small(**columns):
    return pd.DataFrame({"user_id": ["a", "a", "b"], "item_id": ["x", "y", "x"], "timestamp": [1, 2, 3], **columns})


# Columns


def test_columns_by_recboles_names_or_by_arguments(make):
    frame = small(rating=[1, 2.5, None], ok=[True, False, True], note=["t\tab", "line\nbreak", None])
    named = make(frame, name="shop")
    assert header_of(named) == {
        "user_id": "token",
        "item_id": "token",
        "timestamp": "float",
        "rating": "float",
        "ok": "float",
        "note": "token",
    }
    assert rows_of(named)[0] == ["a", "x", "1", "1", "1", "t ab"]
    assert rows_of(named)[2] == ["b", "x", "3", "", "1", ""]
    renamed = frame.rename(columns={"user_id": "uid", "item_id": "asin", "timestamp": "ts"})
    assert make(renamed, name="shop", user="uid", item="asin", time="ts").data_path == named.data_path


@pytest.mark.parametrize(
    "ids",
    [[1, 2, 1], [1.0, 2.0, 1.0], np.array([1, 2, 1], "float32"), ["1", "2", "1"], pd.array([1, 2, 1], "Int64"),
     pd.Categorical(["1", "2", "1"]), pd.Categorical([1, 2, 1])],
)  # fmt: skip
def test_ids_are_texts_whatever_their_type(make, ids):
    assert [row[1] for row in rows_of(make(small().assign(item_id=ids)))] == ["1", "2", "1"]


TEXTS = ["2024-01-01 00:00:01.25", "1969-12-31 23:59:59", "2024-03-01"]
DATES = pd.to_datetime(TEXTS, format="ISO8601")


@pytest.mark.parametrize(
    "times",
    [
        TEXTS,
        ["2024-01-01T01:00:01.25+01:00", "1969-12-31T22:59:59-01:00", "2024-03-01T00:00Z"],
        DATES,
        DATES.tz_localize("UTC"),
        DATES.tz_localize("UTC").tz_convert("Asia/Tokyo"),
        DATES.astype("datetime64[ms]"),
        pd.Series(DATES).astype("timestamp[us][pyarrow]"),
        pd.Series(DATES.tz_localize("UTC")).astype("timestamp[ns, tz=UTC][pyarrow]"),
        [1704067201.25, -1, 1709251200],
        ["1704067201.25", "-1", "1709251200"],
        [
            datetime.datetime(2024, 1, 1, 0, 0, 1, 250000),
            datetime.datetime(1969, 12, 31, 23, 59, 59),
            datetime.datetime(2024, 3, 1),
        ],
    ],
)
def test_times_become_seconds(make, times):
    assert [row[2] for row in rows_of(make(small().assign(timestamp=times)))] == ["1704067201.25", "-1", "1709251200"]


def test_items(make):
    items = pd.DataFrame(
        {
            "item_id": ["y", "z"],
            "title": ['A "fine"\tcomb\n', None],
            "genres": [["a b", "c|d", ""], None],
            "tags": [{"q", "p"}, set()],
            "vector": [np.array([0.5, 1.0]), np.array([2.0, 3.0])],
            "numbers": [[1, 2], (3,)],
            "brand": pd.Categorical(["B", None]),
            "price": [9.5, None],
            "release date": pd.to_datetime(["2024-01-01", None]),
        }
    )
    dataset = make(small(), items)
    kinds = ["token", "token", "token_seq", "token_seq", "float_seq", "token_seq", "token", "float", "float"]
    assert list(header_of(dataset, "item").values()) == kinds
    assert rows_of(dataset, "item") == [
        ["y", 'A "fine" comb', "a b|c/d", "p|q", "0.5|1.0", "1|2", "B", "9.5", "1704067200"],
        ["z", "", "", "", "2.0|3.0", "3", "", "", ""],
        ["x", *[""] * 8],  # of the interactions
    ]
    assert dataset.settings["load_col"]["item"] == ["item_id", "genres", "tags", "numbers", "brand"]
    assert dataset.settings["sid_text_fields"] == ["title", "genres", "tags", "numbers", "brand"]
    for by_index in (items.set_index("item_id"), items.set_index("item_id", drop=False)):
        assert make(small(), by_index).data_path == dataset.data_path


@pytest.mark.parametrize(
    "frame, message",
    [
        ([1], "interactions must be a pandas DataFrame, not a list"),
        (small().drop(columns="user_id"), "interactions has no column 'user_id': name it, user="),
        (small().drop(columns="timestamp"), "no column 'timestamp'.*order of the rows"),
        (small().iloc[:0], "interactions is empty"),
        (small().assign(user_id=["a", None, "b"]), "user_id is missing in 1 rows, first in row 1:"),
        (small().assign(item_id=[1, np.nan, np.nan]), "item_id is missing in 2 rows"),
        (small().assign(item_id=[["x"], ["y"], ["x"]]), "item_id must hold one id a row"),
        (small().assign(item_id=["x", "", "y"]), "item_id '' cannot be an id"),
        (small().assign(item_id=["x", "a\tb", "y"]), "cannot be an id"),
        (small().assign(item_id=["x", 'a"b', "y"]), "cannot be an id"),
        (small().assign(timestamp=[1, None, 2]), "timestamp is missing or infinite in 1 rows"),
        (small().assign(timestamp=[1, np.inf, 2]), r"infinite in 1 rows, first in row 1 \('inf'\)"),
        (small().assign(timestamp=["1", "2", "-inf"]), r"infinite in 1 rows, first in row 2 \('-inf'\)"),
        (small().assign(timestamp=["1", "2", "1e400"]), "timestamp is neither numbers nor dates"),
        (small().assign(timestamp=[1, 2, 3j]), "timestamp is neither numbers nor dates"),
        (small().assign(timestamp=pd.Series([1, 2, 10**400], dtype=object)), "timestamp is neither numbers nor dates"),
        (small().assign(item_id=[1j, 2, 3]), "cannot be an id: ids are texts or numbers"),
        (small().assign(item_id=[b"a", b"b", b"c"]), "cannot be an id: ids are texts or numbers"),
        (small().assign(item_id=["[PAD]", "b", "c"]), r"item_id '\[PAD\]' cannot be an id: RecBole reserves it"),
        (small().assign(item_id=["x" * 1001, "b", "c"]), "cannot be an id: it has 1,001 characters"),
        (small().assign(user_id=["a\0", "b", "c"]), "cannot be an id: it has a tab, line break or NUL"),
        (
            small().assign(timestamp=pd.to_datetime(["2024-01-01", None, "2024-01-01"])),
            "timestamp is missing or infinite in 1",
        ),
        (small().assign(timestamp=["soon", "later", "now"]), "timestamp is neither numbers nor dates"),
        (small().assign(timestamp=["01/02/2024", "02/02/2024", "03/02/2024"]), "timestamp is neither.*to_datetime"),
        (small().assign(timestamp=pd.to_timedelta([1, 2, 3])), "timestamp is neither numbers nor dates"),
        (small().assign(timestamp=[True, False, True]), "timestamp is neither numbers nor dates"),
        (small().rename(columns={"timestamp": "user_id"}), "no column 'timestamp'"),
        (pd.concat([small(), small()[["item_id"]]], axis=1), "two columns 'item_id'"),
        (small(**{"a:b": [1, 2, 3]}), "column 'a:b' cannot be written"),
        (small().assign(**{"x": 1}).rename(columns={"x": 7}), "column 7 cannot be written"),
    ],
)
def test_frames_that_cannot_be_used(make, tmp_path, frame, message):
    with pytest.raises(UserError, match=message) as error:
        make(frame)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "frames").exists()


@pytest.mark.parametrize(
    "items, message",
    [
        (pd.DataFrame({"title": ["T"]}), "items has no column 'item_id': name it, item="),
        (pd.DataFrame({"item_id": ["x", "y", "x"]}), "items: item_id 'x' has several rows"),
        (pd.DataFrame({"item_id": [None]}), "items: item_id is missing"),
        (pd.DataFrame({"item_id": ["X", "Y"]}), r"no item_id of interactions is in it \('x' is not, 'X' is\)"),
    ],
)
def test_items_that_cannot_be_used(make, items, message):
    with pytest.raises(UserError, match=message):
        make(small(), items)


def test_text_that_is_not_unicode(make):
    with pytest.raises(UserError, match="UTF-8 cannot hold"):
        make(small(title=["a", "b", "\ud83d"]))


def test_a_column_in_the_way(make):
    with pytest.raises(UserError, match="column 'user_id' is in the way"):
        make(small(uid=[1, 2, 3]), user="uid")


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", None])
def test_names(make, name):
    with pytest.raises(UserError, match="name must be"):
        make(small(), name=name)


# Files


def test_the_same_content_is_the_same_folder(make, tmp_path):
    first = make(small())
    again = make(small().set_index(pd.Index([7, 8, 9])))
    assert first == again
    others = [make(small().assign(timestamp=[1, 2, 4])), make(small(), pd.DataFrame({"item_id": ["x"]}))]
    assert len({first.data_path, *(other.data_path for other in others)}) == 3
    assert Path(make(small(), name="b").data_path) == Path(first.data_path)  # a folder for every name in it
    assert not list((tmp_path / "frames").glob(".*"))


def test_files_that_were_changed_or_deleted_are_written_again(make):
    dataset = make(small())
    path = Path(dataset.data_path) / "frame" / "frame.inter"
    content = path.read_bytes()
    path.write_text("changed")
    assert make(small()) == dataset and path.read_bytes() == content


def test_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"folder: .* cannot be written"):
        Dataset.from_frame(small(), folder=tmp_path / "file" / "x")


WORK = """
import sys, pandas as pd
from recbole_diffgrm import Dataset
frame = pd.DataFrame({"user_id": range(2000), "item_id": 1, "timestamp": 1})
for _ in range(10):
    dataset = Dataset.from_frame(frame, frame[["item_id"]].drop_duplicates(), folder=sys.argv[1])
    assert len(open(f"{dataset.data_path}/frame/frame.inter").readlines()) == 2001
print(dataset.data_path)
"""


def test_two_processes_at_once(tmp_path):
    command = [sys.executable, "-c", WORK, str(tmp_path)]
    both = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert len({process.communicate()[0] for process in both}) == 1
    assert [process.returncode for process in both] == [0, 0]
    assert len(list(tmp_path.iterdir())) == 1


# Runs


@pytest.fixture
def frames(tiny):
    """The frames of the data set `tiny`."""
    rows = pd.DataFrame(read_rows(tiny / "tiny" / "tiny.inter"), columns=["user_id", "item_id", "rating", "timestamp"])
    texts = read_item_texts(tiny / "tiny" / "tiny.item")
    items = pd.DataFrame([{"item_id": i, **of, "categories": of["categories"].split("|")} for i, of in texts.items()])
    return rows, items


def test_a_run_is_that_of_the_files(make, frames, options):
    """The same interactions, in files and in frames: the same metrics."""
    of_files = run("SASRec", "tiny", **options)
    settings = {key: value for key, value in options.items() if key not in ("data_path", "config_files")}
    dataset = make(*frames, name="tiny")
    of_frames = run("SASRec", dataset, **settings)
    assert of_frames.test == of_files.test and of_frames.valid == of_files.valid
    assert of_frames.dataset == "tiny" and of_frames.config["data_path"] == dataset.data_path
    assert run("SASRec", make(*frames, name="tiny"), **settings, resume=True).run_dir == of_frames.run_dir
    [recommended] = Recommender.load(of_frames.run_dir).recommend([["i1", "i2"]], k=3)
    assert [one.title for one in recommended] == [f"Item {one.item[1:]}" for one in recommended]
    assert retest(of_frames.run_dir, repeatable=False).test["unseen"] == of_frames.test["unseen"]


def test_compare(make, frames, options):
    settings = {key: value for key, value in options.items() if key not in ("data_path", "config_files")}
    sids = {"sid_quantizer": "random", "sid_num_digits": 3, "sid_codebook_size": 8}
    sids["cache_dir"] = str(Path(options["output_dir"]) / "cache")
    dataset = make(*frames, name="tiny")
    table = compare(["FDSA", "Pop", "HistoryCopy"], dataset, **settings, **sids, selected_features=["categories"])
    assert table.dataset == "tiny" and not any(row.errors for row in table.rows)
    assert table.path.parent.name == "tiny"


def test_settings_of_a_dataset(make, frames, tmp_path):
    dataset = make(*frames)
    config = build_config("DiffGRM", dataset)
    assert config["sid_text_fields"] == ["title", "categories"] and config["seq_separator"] == "|"
    (tmp_path / "mine.yaml").write_text("sid_text_fields: [title]\ndata_path: elsewhere\n")
    changed = build_config("DiffGRM", dataset, tmp_path / "mine.yaml")
    assert changed["sid_text_fields"] == ["title"] and changed["data_path"] == config["data_path"]
    assert "sid_text_fields" not in build_config("SASRec", dataset).values  # not a key of that model
    with pytest.raises(UserError, match="data_path: frame is in"):
        build_config("SASRec", dataset, overrides={"data_path": "x"})
    with pytest.raises(UserError, match="dataset must be the name"):
        recbole_diffgrm.run("SASRec", frames[0])


@pytest.mark.parametrize("name", ["a\0b", "a\nb", "\ud800", "a/b", "..", "", b"x", "a\\b"], ids=repr)
def test_names_that_are_none(tmp_path, name):
    with pytest.raises(UserError, match="name must be a name for files"):
        Dataset.from_frame(small(), name=name, folder=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"user": ["user_id"]}, "user must be the name of one column"),
        ({"folder": "a\0b"}, "folder must be a folder"),
        ({"folder": "/dev/null/x"}, "folder: /dev/null/x cannot be written"),
        ({"items": pd.DataFrame({"item_id": ["x"], "c": [1j]})}, "column 'c' holds complex numbers"),
        ({"items": pd.DataFrame({"item_id": ["x"], "a\0": [1]})}, "cannot be written: names are texts"),
        ({"items": pd.DataFrame({"item_id": ["x"], "c": ["\ud800"]})}, "text that UTF-8 cannot hold"),
    ],
)
def test_arguments_that_cannot_be_used(tmp_path, arguments, words):
    with pytest.raises(UserError, match=words):
        Dataset.from_frame(small(), **{"folder": tmp_path, **arguments})


def test_dates_of_several_time_zones(make):
    """As text or as objects; each its own offset."""
    texts = ["2024-01-01T00:00:00+01:00", "2024-01-01T00:00:00-05:30", "2024-01-01T00:00:00Z"]
    for times in (texts, [datetime.datetime.fromisoformat(text) for text in texts]):
        assert [row[2] for row in rows_of(make(small().assign(timestamp=times)))] == [
            "1704063600",
            "1704087000",
            "1704067200",
        ]

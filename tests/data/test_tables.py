"""What the readers of atomic files refuse: each is one line that names file, line or column, and value."""

import os

import pytest

from recbole_diffgrm import UserError
from recbole_diffgrm.cli.main import main
from recbole_diffgrm.data.dataset import load_dataset
from tests.conftest import error_line, write_dataset
from tests.data.helpers import make_config

HEADER = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
ITEM_HEADER = "item_id:token\ttitle:token\tprice:float\tweights:float_seq\n"
COLUMNS = {"inter": ["user_id", "item_id", "rating", "timestamp"]}


def load(folder, inter: str = "", item: str | None = None, name="t", **overrides):
    (folder / name).mkdir(exist_ok=True)
    rows = "".join(f"u{user}\ti{item}\t3\t{item}\n" for user in range(3) for item in range(5))
    (folder / name / f"{name}.inter").write_text(HEADER + rows + inter)
    columns = COLUMNS
    if item is not None:
        (folder / name / f"{name}.item").write_text(ITEM_HEADER + item)
        columns = COLUMNS | {"item": ["item_id", "title", "price", "weights"]}
    return load_dataset(make_config(folder, dataset=name, **{"load_col": columns, **overrides}))


@pytest.mark.parametrize("value", ["nan", "NaN", "inf", "-inf", "infinity", "1e400", "-1e400", "noon", "", " ", "5\0"])
@pytest.mark.parametrize("column", ["timestamp", "rating"])
def test_numbers_that_are_none(tmp_path, value, column):
    fields = {"rating": "3", "timestamp": "9"} | {column: value}
    with pytest.raises(UserError) as error:
        load(tmp_path, f"\n\nu1\ti9\t{fields['rating']}\t{fields['timestamp']}\nu1\ti8\t3\t9\n")
    shown = f"{column} is {value!r}, not a finite number" if value.strip() else f"{column} is empty"
    assert str(error.value) == f"{tmp_path / 't' / 't.inter'}, line 19: {shown}"  # blank lines count


def test_numbers_too_large_for_float32(tmp_path):
    """Features become float32, times do not."""
    load(tmp_path, "u1\ti9\t3\t1e300\n")
    with pytest.raises(UserError, match="rating is '1e39', not a finite number"):
        load(tmp_path, "u1\ti9\t1e39\t9\n")


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("i1\tA\tinf\t1\n", "line 2: price is 'inf', not a finite number"),
        ("i1\tA\t1\t1\ni2\tB\t1e39\t1\n", "line 3: price is '1e39'"),
        ("i1\tA\tcheap\t1\n", "line 2: price is 'cheap'"),
        ("i1\tA\t1\t1 inf\n", "weights is 'inf'"),
        ("i1\tA\t1\t1 x\n", "weights is 'x'"),
        (f"i1\tA\t1\t{'1 ' * 10_001}\n", "weights has a list of 10,001 values; at most 10,000"),
        (f"i1\t{'A' * 10_001}\t1\t1\n", "title has a value of 10,001 characters; at most 10,000"),
        ("", "t.item has no lines after its header"),
        (ITEM_HEADER + "i1\tA\t1\t1\n", "line 2: repeats the header"),
    ],
)
def test_features_that_cannot_be_used(tmp_path, item, words):
    with pytest.raises(UserError, match=words):
        load(tmp_path, item=item)


def test_missing_features_are_left_to_recbole(tmp_path):
    dataset = load(tmp_path, item="i1\tA\t\t1\ni2\tB\tnan\t\ni3\tC\t4\t2\n")
    assert dataset.item_feat["price"].tolist() == [4] * 6  # the mean


BAD_IDS = {
    "[PAD]": "RecBole reserves it for padding",
    "x" * 1001: "it has 1,001 characters, and ids have at most 1,000",
    "a\0": "it has a tab, line break or NUL",
    "a\u2028b": "it has a tab, line break or NUL",
}


@pytest.mark.parametrize("bad", BAD_IDS, ids=["padding", "long", "nul", "break"])
def test_ids_that_are_refused(tmp_path, bad):
    words = rf"(user|item)_id .* cannot be an id: {BAD_IDS[bad]}$"
    for inter in (f"u1\t{bad}\t3\t9\n", f"{bad}\ti1\t3\t9\n"):
        with pytest.raises(UserError, match=words) as error:
            load(tmp_path, inter)
        assert "t.inter" in str(error.value) and len(str(error.value)) < 400
    with pytest.raises(UserError, match=words):
        load(tmp_path, item=f"{bad}\tA\t1\t1\n")


def test_ids_of_1000_characters_are_ids(tmp_path):
    dataset = load(tmp_path, f"u1\t{'é' * 1000}\t3\t9\n")
    assert "é" * 1000 in dataset.field2token_id["item_id"]


def test_quoted_ids_are_the_same_in_every_file(tmp_path):
    """As CSV writers quote: some lines, with quotes doubled. A lone quote is a part of the id."""
    inter = '"u1"\t"i1"\t3\t20\nu1\t"a""b"\t3\t21\nu1\t"c\t3\t22\n'
    item = '"i1"\t"T"\t1\t1\ni0\tU\t1\t1\n"a""b"\tV\t1\t1\n"c\tW\t1\t1\n'
    dataset = load(tmp_path, inter, item)
    assert dataset.field2id_token["user_id"].tolist() == ["[PAD]", "u0", "u1", "u2"]
    assert dataset.field2id_token["item_id"].tolist() == ["[PAD]", "i0", "i1", "i2", "i3", "i4", 'a"b', '"c']
    titles = dataset.field2id_token["title"][dataset.item_feat["title"].astype(int)]
    assert titles.tolist() == ["[PAD]", "U", "T", "[PAD]", "[PAD]", "[PAD]", "V", "W"]


def test_a_quoted_nothing_is_missing(tmp_path):
    assert load(tmp_path, 'u1\t""\t3\t9\n').item_num == load(tmp_path, "u1\t\t3\t9\n").item_num == 6


def test_joined_files(tmp_path):
    with pytest.raises(UserError, match=r"t.inter, line 17: repeats the header"):
        load(tmp_path, HEADER + "u1\ti9\t3\t9\n")


@pytest.mark.parametrize("value", ["nan", "inf", ""])
def test_ready_made_splits_are_checked_too(tmp_path, value):
    folder = tmp_path / "t"
    folder.mkdir()
    for part in ("train", "valid", "test"):
        (folder / f"t.{part}.inter").write_text(f"{HEADER}u1\ti1\t3\t{value if part == 'valid' else 4}\n")
    with pytest.raises(UserError, match=r"t.valid.inter, line 2: timestamp is "):
        load_dataset(make_config(tmp_path, dataset="t", benchmark_filename=["train", "valid", "test"]))


def test_a_column_has_one_type(tmp_path):
    (tmp_path / "t").mkdir()
    for kind in ("float", "token_seq"):
        (tmp_path / "t" / "t.item").write_text(f"item_id:{kind}\trating:float\n1\t2\n")
        with pytest.raises(UserError, match=rf"t.item: item_id:{kind} must be item_id:token"):
            load(tmp_path, load_col=COLUMNS | {"item": ["item_id"]})
    (tmp_path / "t" / "t.item").write_text("item_id:token\trating:token\ni1\tgood\n")
    with pytest.raises(UserError, match=r"t.item: rating:token must be rating:float"):
        load(tmp_path, load_col=COLUMNS | {"item": ["item_id", "rating"]})


@pytest.mark.parametrize("suffix", ["user", "item"])
def test_load_col_names_a_file_that_is_not_there(tmp_path, suffix):
    columns = COLUMNS | {suffix: [f"{suffix}_id", "age"]}
    with pytest.raises(UserError, match=rf"t.{suffix} does not exist; .* leave {suffix} out of load_col"):
        load(tmp_path, load_col=columns)
    (tmp_path / "t" / f"t.{suffix}").mkdir()
    with pytest.raises(UserError, match=rf"t.{suffix} is a folder"):
        load(tmp_path, load_col=columns)


@pytest.mark.parametrize("suffix", ["inter", "item"])
@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_what_is_no_file(tmp_path, capsys, suffix, kind):
    """On the command line, where files are hashed before they are read: a pipe must not be waited for."""
    data = write_dataset(tmp_path / "data")
    path = data / "tiny" / f"tiny.{suffix}"
    path.unlink()
    {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path), "device": lambda: path.symlink_to("/dev/zero")}[kind]()
    arguments = ["--dataset=tiny", "--model=Pop", f"--data_path={data}", f"--config_files={data / 'tiny.yaml'}"]
    assert main([*arguments, f"--output_dir={tmp_path / 'runs'}"]) == 2
    expected = "is a folder where a file is expected" if kind == "folder" else "is not a file but a pipe"
    assert error_line(capsys.readouterr().err).startswith(f"error: {path} {expected}")

"""Loading against RecBole's own dataset: order, filters, refusals."""

import pytest
import torch

from recbole_diffgrm import UserError
from recbole_diffgrm.data.dataset import FlatSequentialDataset, load_dataset
from tests.conftest import write_dataset
from tests.data.helpers import make_config


def test_order_is_exact_in_time_and_ties_keep_file_order(tmp_path):
    """Seconds near 1.4e9 differ by less than float32 can tell (RecBole sorts in float32)."""
    (tmp_path / "t").mkdir()
    start = 1_400_000_000
    rows = [("a", 3), ("b", 1), ("c", 2), ("d", 2), ("e", 0), ("f", 2)]
    lines = [
        "user_id:token\titem_id:token\ttimestamp:float",
        *(f"u\t{item}\t{start + second}" for item, second in rows),
    ]
    (tmp_path / "t" / "t.inter").write_text("\n".join(lines) + "\n")
    dataset = FlatSequentialDataset(make_config(tmp_path, dataset="t"))
    dataset._change_feat_format()
    order = dataset.id2token("item_id", dataset.inter_feat.flat.item)
    assert list(order) == ["e", "b", "c", "d", "f", "a"]


@pytest.mark.parametrize(
    ("times", "kind"),
    [
        ([1_400_000_000, 1_400_000_001, 1_400_000_003], torch.int32),  # seconds
        ([1.25, 2.5, 1e9 + 0.5], torch.float64),
        ([1.4e12, 1.4e12 + 1, 1.4e12 + 2], torch.float64),  # milliseconds
    ],
)
def test_times_are_kept_exactly(times, kind, tmp_path):
    """And in as little memory as float32 takes, where they fit."""
    (tmp_path / "t").mkdir()
    lines = ["user_id:token\titem_id:token\ttimestamp:float", *(f"u\ti{i}\t{time!r}" for i, time in enumerate(times))]
    (tmp_path / "t" / "t.inter").write_text("\n".join(lines) + "\n")
    dataset = FlatSequentialDataset(make_config(tmp_path, dataset="t"))
    dataset._change_feat_format()
    kept = dataset.inter_feat.flat.features["timestamp"]
    assert kept.tolist() == times
    assert kept.dtype == kind


def test_tokens_that_look_like_missing_values_stay(tmp_path):
    (tmp_path / "t").mkdir()
    tokens = ["NA", "null", "nan", "None", "1", "01"]
    lines = ["user_id:token\titem_id:token\ttimestamp:float"]
    lines += [f"{user}\t{item}\t{time}" for user in ("NaN", '"q') for time, item in enumerate(tokens)]
    (tmp_path / "t" / "t.inter").write_text("\n".join(lines) + "\n")
    dataset = FlatSequentialDataset(make_config(tmp_path, dataset="t"))
    assert dataset.field2id_token["item_id"].tolist() == ["[PAD]", *tokens]
    assert dataset.field2id_token["user_id"].tolist() == ["[PAD]", "NaN", '"q']


def test_memory_per_interaction(tmp_path):
    """All that stays in memory after loading: flat arrays and row numbers, nothing padded."""
    write_dataset(tmp_path, users=500)
    dataset = FlatSequentialDataset(make_config(tmp_path, MAX_ITEM_LIST_LENGTH=50))
    parts = dataset.build()
    flat = dataset.inter_feat.flat
    assert all(part.inter_feat.flat is flat for part in parts)
    tensors = [flat.user, flat.item, flat.position, *flat.features.values(), dataset.inter_feat.rows]
    tensors += [part.inter_feat.rows for part in parts]
    used = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert used <= 24 * len(dataset.inter_feat)  # RecBole's copies: over 800


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["u1\ti1\t0", "u1\ti2\t1"], "too small for the split"),
        (["u1\ti1\t0"], "too small for the split"),
        (["u1\ti1\t0", "u1\ti2\t1", "u1\ti3\t2"], "no validation sample"),
        (["u1\ti1\tnoon"], "line 2: timestamp is 'noon', not a finite number"),
        (["u1\ti1\t"], "line 2: timestamp is empty"),
        (["u1\ti1\t1\t2\t3"], r"Row #2: Expected 3 columns, got 5"),
        (["u1\ti1\t1", "u1\t2"], r"Row #3: Expected 3 columns, got 2"),
        ([], "too small"),
    ],
)
def test_data_that_cannot_be_used(lines, words, tmp_path):
    (tmp_path / "t").mkdir()
    text = "\n".join(["user_id:token\titem_id:token\ttimestamp:float", *lines]) + "\n"
    (tmp_path / "t" / "t.inter").write_text(text)
    with pytest.raises(UserError, match=words):
        FlatSequentialDataset(make_config(tmp_path, dataset="t")).build()


def test_missing_column(tmp_path):
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "t.inter").write_text("user_id:token\titem_id:token\nu\ti\n")
    with pytest.raises(UserError, match="must have a column timestamp:float"):
        FlatSequentialDataset(make_config(tmp_path, dataset="t"))


def test_column_of_another_type(tmp_path):
    """As tokens, times would be numbered by appearance."""
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "t.inter").write_text("user_id:token\titem_id:token\ttimestamp:token\nu\ti\t3\n")
    with pytest.raises(UserError, match=r"must have a column timestamp:float; it has .*timestamp:token"):
        FlatSequentialDataset(make_config(tmp_path, dataset="t"))


@pytest.mark.parametrize(
    "overrides",
    [
        {"load_col": {"inter": ["user_id", "item_id", "timestamp", "rated"]}},
        {"load_col": {"inter": ["user_id", "item_id", "timestamp"], "item": ["categories"]}},
        {"val_interval": {"stars": "[3,inf)"}},
        {"seq_len": {"categories": "a"}},
        {"user_inter_num_interval": "[1000,inf)"},
    ],
)
def test_settings_that_do_not_fit_the_data(tiny, overrides):
    with pytest.raises(UserError):
        load_dataset(make_config(tiny, **overrides))


def test_filters_by_value(tiny):
    """Against a loop over the lines of the file."""
    lines = (tiny / "tiny" / "tiny.inter").read_text().splitlines()[1:]
    rows = [line.split("\t") for line in lines]
    columns = ["user_id", "item_id", "timestamp", "rating"]
    for wanted, keeps in [
        ({"rating": "[2,4)"}, lambda row: 2 <= float(row[2]) < 4),
        ({"rating": "[1,1];(4,inf)"}, lambda row: float(row[2]) in (1, 5)),
        ({"item_id": ["i1", "i7", "none"]}, lambda row: row[1] in ("i1", "i7")),
    ]:
        dataset = load_dataset(make_config(tiny, val_interval=wanted, load_col={"inter": columns}))
        assert len(dataset.inter_feat) == sum(map(keeps, rows)) > 0


def test_duplicates_keep_the_order_of_ties(tmp_path):
    (tmp_path / "t").mkdir()
    lines = ["user_id:token\titem_id:token\ttimestamp:float", *(f"u\ti{i % 30}\t{i // 20}" for i in range(60))]
    (tmp_path / "t" / "t.inter").write_text("\n".join(lines) + "\n")
    dataset = FlatSequentialDataset(make_config(tmp_path, dataset="t", rm_dup_inter="last"))
    dataset._change_feat_format()
    order = [int(token[1:]) for token in dataset.id2token("item_id", dataset.inter_feat.flat.item)]
    assert order == list(range(30))


def test_filters_of_recbole_still_work(tiny):
    config = make_config(
        tiny, user_inter_num_interval="[8,inf)", load_col={"inter": ["user_id", "item_id", "timestamp"]}
    )
    dataset = FlatSequentialDataset(config)
    dataset.build()
    assert int(torch.bincount(dataset.inter_feat["user_id"])[1:].min()) >= 8

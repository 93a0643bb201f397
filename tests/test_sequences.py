"""Flat sequences against RecBole's own padded table, and the batches cut from them."""

import contextlib
import sys

import numpy as np
import pytest
import torch

from recbole_diffgrm import UserError
from recbole_diffgrm.config.config import build_config
from recbole_diffgrm.data.dataset import FlatSequentialDataset, load_dataset
from recbole_diffgrm.data.loader import EvalLoader, TrainLoader
from recbole_diffgrm.data.sequences import FlatSequences, leave_last_out
from tests.conftest import write_dataset


def make_config(folder, model="SASRec", dataset="tiny", **overrides):
    overrides = {"data_path": str(folder), "MAX_ITEM_LIST_LENGTH": 5, **overrides}
    return build_config(model, dataset, [folder / "tiny.yaml"] if dataset == "tiny" else [], overrides)


def as_tuples(batch) -> list[tuple]:
    """(user, history, target) of every sample, unpadded."""
    items = batch["item_id_list"].tolist()
    lengths = batch["item_length"].tolist()
    histories = [tuple(row[:length]) for row, length in zip(items, lengths)]
    assert all(not any(row[length:]) for row, length in zip(items, lengths)), "padding is on the right, with 0"
    return list(zip(batch["user_id"].tolist(), histories, batch["item_id"].tolist()))


@contextlib.contextmanager
def stock_config(config):
    """RecBole's own Config on the same settings."""
    from recbole.config import Config

    arguments, sys.argv = sys.argv, ["test"]
    try:
        yield Config(
            model="SASRec",
            dataset=config.dataset,
            config_dict={
                "data_path": config.values["data_path"],
                "MAX_ITEM_LIST_LENGTH": config["MAX_ITEM_LIST_LENGTH"],
                "load_col": config["load_col"],
                "seq_separator": config["seq_separator"],
                "eval_args": {"split": {"LS": "valid_and_test"}, "order": "TO", "mode": "full"},
                "train_neg_sample_args": None,
            },
        )
    finally:
        sys.argv = arguments


@pytest.mark.parametrize("longest", [3, 50])
def test_same_samples_as_recbole(tiny, longest):
    from recbole.data.dataset import SequentialDataset

    config = make_config(tiny, MAX_ITEM_LIST_LENGTH=longest)
    ours = FlatSequentialDataset(config)
    with stock_config(config) as stock:
        theirs = SequentialDataset(stock)
    for field in ("user_id", "item_id", "categories"):
        assert ours.field2id_token[field].tolist() == theirs.field2id_token[field].tolist()
    parts, stock_parts = ours.build(), theirs.build()
    assert torch.equal(ours.item_feat["categories"], theirs.item_feat["categories"])
    for part, stock_part in zip(parts, stock_parts):
        expected = as_tuples(stock_part.inter_feat)
        assert sorted(as_tuples(part[torch.arange(len(part))])) == sorted(expected)
        assert len(part) == len(expected) > 0
        assert part.inter_feat["item_id"].tolist() == [target for *_, target in as_tuples(part[range(len(part))])]


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


def test_tokens_that_look_like_missing_values_stay(tmp_path):
    (tmp_path / "t").mkdir()
    tokens = ["NA", "null", "nan", "None", "1", "01"]
    lines = ["user_id:token\titem_id:token\ttimestamp:float"]
    lines += [f"{user}\t{item}\t{time}" for user in ("NaN", '"q') for time, item in enumerate(tokens)]
    (tmp_path / "t" / "t.inter").write_text("\n".join(lines) + "\n")
    dataset = FlatSequentialDataset(make_config(tmp_path, dataset="t"))
    assert dataset.field2id_token["item_id"].tolist() == ["[PAD]", *tokens]
    assert dataset.field2id_token["user_id"].tolist() == ["[PAD]", "NaN", '"q']


@pytest.mark.parametrize("mode", ["valid_and_test", "valid_only", "test_only"])
def test_split_against_a_loop(mode):
    generator = np.random.default_rng(3)
    counts = generator.integers(1, 7, 50)
    user = np.repeat(np.arange(1, 51), counts)
    flat = FlatSequences.build(user, generator.integers(1, 9, len(user)), {})
    train, valid, test = ([], [], [])
    row = 0
    for count in counts:
        samples = list(range(row + 1, row + count))  # the first interaction has no history
        row += count
        if mode == "valid_and_test":
            held_out = min(2, max(0, len(samples) - 1))
            if held_out == 2:
                valid.append(samples[-2])
            if held_out:
                test.append(samples[-1])
        else:
            held_out = min(1, max(0, len(samples) - 1))
            (valid if mode == "valid_only" else test).extend(samples[len(samples) - held_out :])
        train.extend(samples[: len(samples) - held_out])
    assert [part.tolist() for part in leave_last_out(flat, mode)] == [train, valid, test]


def test_full_histories_reach_beyond_the_window(tiny):
    dataset = FlatSequentialDataset(make_config(tiny, MAX_ITEM_LIST_LENGTH=2))
    *_, test = dataset.build()
    flat = test.inter_feat.flat
    index = torch.tensor([5, 0, 7])
    rows, items = test.inter_feat.full_histories(index)
    for place, number in enumerate(index.tolist()):
        row = int(test.inter_feat.rows[number])
        user = flat.user[row]
        expected = [int(flat.item[r]) for r in range(row) if flat.user[r] == user]
        assert items[rows == place].tolist() == expected
        assert len(expected) > 2


@pytest.mark.parametrize("trim", [True, False])
def test_every_sample_once_an_epoch(tiny, trim):
    config = make_config(tiny, train_batch_size=16)
    train, *_ = FlatSequentialDataset(config).build()
    loader = TrainLoader(config, train, trim)
    everything = sorted(as_tuples(train[torch.arange(len(train))]))
    epochs = []
    for epoch in (0, 1):
        batches = list(loader.batches(epoch))
        assert len(batches) == len(loader)
        seen = [sample for batch in batches for sample in as_tuples(batch)]
        assert sorted(seen) == everything
        epochs.append(seen)
        for batch in batches:
            width = batch["item_id_list"].shape[1]
            assert width == (int(batch["item_length"].max()) if trim else 5)
    assert epochs[0] != epochs[1]
    assert [as_tuples(b) for b in loader.batches(1, start=3)] == [as_tuples(b) for b in loader.batches(1)][3:]


def test_order_depends_on_seed_and_epoch_alone(tiny):
    def plan(seed, epoch, disturb=False):
        config = make_config(tiny, train_batch_size=16, seed=seed)
        train, *_ = FlatSequentialDataset(config).build()
        loader = TrainLoader(config, train, True)
        if disturb:
            torch.manual_seed(99)
            list(loader.batches(7))
        return [batch.tolist() for batch in loader.plan(epoch)]

    assert plan(1, 2) == plan(1, 2, disturb=True)
    assert plan(1, 2) != plan(2, 2)


def test_buckets_hold_little_padding(tiny):
    config = make_config(tiny, train_batch_size=8, MAX_ITEM_LIST_LENGTH=50)
    train, *_ = FlatSequentialDataset(config).build()
    cells = sum(batch["item_id_list"].numel() for batch in TrainLoader(config, train, True).batches(0))
    items = int(train.inter_feat["item_length"].sum())
    assert items <= cells < 1.25 * items


def test_negative_items_for_pairwise_losses(tiny):
    config = make_config(tiny, loss_type="BPR", train_batch_size=32)
    train, *_ = FlatSequentialDataset(config).build()
    batch = next(TrainLoader(config, train, True).batches(0))
    assert len(batch) == 32
    assert (batch["neg_item_id"] != batch["item_id"]).all()
    assert batch["neg_item_id"].min() >= 1 and batch["neg_item_id"].max() < train.item_num


def test_evaluation_visits_every_user_once(tiny):
    config = make_config(tiny, eval_batch_size=7, repeatable=False)
    *_, test = FlatSequentialDataset(config).build()
    visited = [int(i) for index, batch in EvalLoader(config, test, True) for i in index]
    assert sorted(visited) == list(range(len(test)))


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
        (["u1\ti1\tnoon"], "cannot be read"),
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
        {"load_col": {"inter": ["user_id", "item_id"]}},
        {"load_col": {"inter": ["user_id", "item_id", "timestamp"], "item": ["categories"]}},
        {"val_interval": {"stars": "[3,inf)"}},
        {"threshold": {"stars": 3}},
        {"seq_len": {"categories": "a"}},
        {"user_inter_num_interval": "[1000,inf)"},
    ],
)
def test_settings_that_do_not_fit_the_data(tiny, overrides):
    with pytest.raises(UserError):
        load_dataset(make_config(tiny, **overrides))


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


def test_choice_of_training_samples(tiny):
    """Against loops over the users' own sequences; validation and test are the same whatever is chosen."""
    from collections import defaultdict

    def parts(**changes):
        config = make_config(tiny, MAX_ITEM_LIST_LENGTH=50, **changes)
        return [sorted(as_tuples(part.inter_feat[range(len(part))])) for part in FlatSequentialDataset(config).build()]

    train, valid, test = parts()
    of_user = defaultdict(list)
    for user, history, target in train:
        of_user[user].append((user, history, target))
    between = parts(min_history=2, max_history=4)
    assert between[0] == [sample for sample in train if 2 <= len(sample[1]) <= 4]
    longest = [max(samples, key=lambda sample: len(sample[1])) for samples in of_user.values()]
    assert parts(sliding_window=False, max_history=1)[0] == sorted(longest)
    once = parts(sliding_window=False, min_history=3)
    assert once[0] == sorted(sample for sample in longest if len(sample[1]) >= 3)
    assert between[1:] == once[1:] == [valid, test]
    with pytest.raises(UserError, match="no training sample of tiny has 30 items"):
        parts(min_history=30)


@pytest.mark.parametrize("longest", [3, 4, 50])
def test_whole_sequences(tiny, longest):
    """Every item but a user's first is a target once: the last of a sample, or one of its history but the first."""
    config = make_config(tiny, "DiffGRM", every_position=True, min_history=1, MAX_ITEM_LIST_LENGTH=longest)
    dataset = FlatSequentialDataset(config)
    train, valid, test = dataset.build()
    flat, samples = train.inter_feat.flat, train.inter_feat
    targets = []
    for row, length in zip(samples.rows.tolist(), samples.lengths(samples.rows).tolist()):
        assert length >= 1
        targets += range(row - length + 1, row + 1)
    held_out = {*valid.inter_feat.rows.tolist(), *test.inter_feat.rows.tolist()}
    expected = [row for row in range(len(flat.item)) if flat.position[row] > 0 and row not in held_out]
    assert sorted(targets) == expected
    if longest == 50:
        assert len(samples) == 60  # one a user

"""Splits against loops, pandas and RecBole's own; the choice of training samples; and that nothing leaks."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from recbole.data.dataset import Dataset, SequentialDataset

from recbole_diffgrm import UserError
from recbole_diffgrm.data.dataset import FlatSequentialDataset, load_dataset
from recbole_diffgrm.data.sequences import FlatSequences
from recbole_diffgrm.data.source import check_files
from recbole_diffgrm.data.splits import Split, count_by_ratio, leave_last_out, make_split
from recbole_diffgrm.tokenizer.interaction_factors import training_matrix
from recbole_diffgrm.tokenizer.split_items import SplitItems
from tests.data.helpers import as_tuples, make_config, stock_config


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
    part = leave_last_out(flat, mode)
    targets = [torch.nonzero((part == number) & (flat.position > 0)).squeeze(1).tolist() for number in range(3)]
    assert targets == [train, valid, test]
    assert not part[flat.position == 0].any()


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


# By time, by ratio, ready-made


def write_interactions(folder: Path, rows: list[tuple[str, str, float]], name: str = "t", middle: str = "") -> None:
    (folder / name).mkdir(exist_ok=True)
    lines = ["user_id:token\titem_id:token\ttimestamp:float", *("\t".join(map(str, row)) for row in rows)]
    (folder / name / f"{name}{middle}.inter").write_text("\n".join(lines) + "\n")


def random_rows(seed: int = 0, users: int = 40, items: int = 25) -> list[tuple[str, str, int]]:
    """In random order, with many equal times; some users begin late, some have one interaction."""
    draw = np.random.default_rng(seed)
    rows = []
    for user in range(users):
        begin, count = draw.integers(0, 100), draw.integers(1, 12)
        times = begin + draw.integers(0, 30, count)
        rows += [(f"u{user}", f"i{draw.integers(items)}", int(time)) for time in times]
    rows += [("u2", "i1", time) for time in (60, 70, 80)] + [("u0", "late", 110), ("u1", "late", 111)]
    draw.shuffle(rows)
    return [(str(user), str(item), int(time)) for user, item, time in rows]


def split_of(folder: Path, **changes) -> Split:
    config = make_config(folder, dataset="t", **{"MAX_ITEM_LIST_LENGTH": 100, **changes})
    return make_split(config, load_dataset(config))


def named(split: Split, part) -> list[tuple]:
    """(user, history, target) of every sample, by the data's own names, sorted."""
    dataset, samples = split.dataset, part.inter_feat
    if len(samples) == 0:
        return []
    item, user = (dataset.field2id_token[field] for field in ("item_id", "user_id"))
    return sorted(
        (str(user[u]), tuple(str(item[i]) for i in history), str(item[target]))
        for u, history, target in as_tuples(samples[range(len(samples))])
    )


def slow_time_split(rows, valid_from, test_from) -> list[list[tuple]]:
    table = pd.DataFrame(rows, columns=["user", "item", "time"]).sort_values("time", kind="stable")
    parts = [[], [], []]
    for user, of_user in table.groupby("user"):
        history = []
        for item, time in zip(of_user["item"], of_user["time"]):
            if history:
                parts[0 if time < valid_from else 1 if time < test_from else 2].append((user, tuple(history), item))
            history.append(item)
    return [sorted(part) for part in parts]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("points", [[60, 80], [59.5, 80.0], [70, 70], [0.7, 0.1, 0.2], [8, 1, 1]])
def test_split_by_time_against_pandas(tmp_path, seed, points):
    rows = random_rows(seed)
    write_interactions(tmp_path, rows)
    times = sorted(time for *_, time in rows)
    bounds = points
    if len(points) == 3:
        shares = [sum(points[:1]) / sum(points), sum(points[:2]) / sum(points)]
        bounds = [times[round(share * len(times))] for share in shares]
    split = split_of(tmp_path, eval_args={"split": {"TS": points}})
    expected = slow_time_split(rows, *bounds)
    assert [named(split, part) for part in split.parts[1:]] == expected
    assert any(time in bounds for time in times)  # interactions at a bound belong to the later part
    table = pd.DataFrame(rows, columns=["user", "item", "time"])
    training = table[table["time"] < bounds[0]]
    popularity = training["item"].value_counts()
    assert split.popularity[1:].tolist() == [popularity.get(item, 0) for item in split.item_ids]
    assert split.popularity[1 + split.item_ids.tolist().index("late")] == 0  # rankable, but not in training
    assert len(split.training_rows) == len(training)
    held_out = len(table) - len(training)
    assert split.statistics() == {
        "valid_targets": len(expected[1]),
        "test_targets": len(expected[2]),
        "test_targets_not_in_training": sum(target not in popularity for *_, target in expected[2]),
        "held_out_without_history": held_out - len(expected[1]) - len(expected[2]),
    }
    assert split.statistics()["held_out_without_history"] > 0 < split.statistics()["test_targets_not_in_training"]


@pytest.mark.parametrize("unit", [1, 1000])
def test_dates(tmp_path, unit):
    """UTC; Unix seconds or milliseconds."""
    start, day = 1388534400, 86400  # 2014-01-01
    rows = [("u", f"i{number}", (start + number * day) * unit) for number in range(10)]
    write_interactions(tmp_path, rows)
    split = split_of(tmp_path, eval_args={"split": {"TS": ["2014-01-04", "2014-01-07T00:00:01"]}})
    assert [target for *_, target in named(split, split.valid)] == ["i3", "i4", "i5", "i6"]
    assert [target for *_, target in named(split, split.test)] == ["i7", "i8", "i9"]


@pytest.mark.parametrize("part", ["validation", "test"])
def test_bounds_beyond_the_data(tmp_path, part):
    write_interactions(tmp_path, random_rows())
    points = [50, 200] if part == "test" else [200, 300]
    with pytest.raises(UserError, match=rf"split TS .*: no {part} sample .*from time [0-9]+ to 1"):
        split_of(tmp_path, eval_args={"split": {"TS": points}})


RATIOS = [[0.8, 0.1, 0.1], [0.5, 0.3, 0.2], [7, 2, 1], [0.7, 0.0, 0.3], [0.34, 0.33, 0.33]]


@pytest.mark.parametrize("ratios", RATIOS)
def test_counts_by_ratio_are_recboles(ratios):
    shares = [ratio / sum(ratios) for ratio in ratios]
    for total in range(1, 200):
        ends = Dataset._calcu_split_ids(None, total, shares)
        counts = np.diff([0, *ends, total]).tolist()
        assert count_by_ratio(total, ratios) == counts, total


@pytest.mark.parametrize("ratios", RATIOS[:3])
def test_split_by_ratio_is_recboles(tmp_path, ratios):
    rows, draw = [], np.random.default_rng(1)
    for user in range(30):  # no equal times: RecBole leaves their order open
        times = draw.permutation(100)[: user + 2]
        rows += [(f"u{user}", f"i{draw.integers(20)}", int(time)) for time in times]
    write_interactions(tmp_path, rows)
    eval_args = {"split": {"RS": ratios}, "order": "TO", "group_by": "user", "mode": "full"}
    config = make_config(tmp_path, dataset="t", MAX_ITEM_LIST_LENGTH=20, eval_args=eval_args)
    split = make_split(config, load_dataset(config))
    with stock_config(config, eval_args=eval_args) as stock:
        theirs = SequentialDataset(stock).build()
    for ours, part in zip(split.parts[1:], theirs):
        expected = as_tuples(part.inter_feat)
        assert len(expected) > 0 and sorted(as_tuples(ours.inter_feat[range(len(ours))])) == sorted(expected)


def test_ready_made_split(tmp_path):
    """Histories are made of earlier files only, whatever the times; within a file they follow time."""
    write_interactions(tmp_path, [("a", "i1", 5), ("a", "i2", 3), ("b", "i1", 1), ("b", "i3", 2)], middle=".train")
    write_interactions(tmp_path, [("b", "i2", 0), ("a", "i4", 9), ("a", "i5", 8)], middle=".valid")
    write_interactions(tmp_path, [("a", "i1", 1), ("new", "i1", 1), ("a", "late", 2), ("b", "i4", 7)], middle=".test")
    split = split_of(tmp_path, benchmark_filename=["train", "valid", "test"])
    assert named(split, split.train) == [("a", ("i2",), "i1"), ("b", ("i1",), "i3")]
    of_training = {"a": ("i2", "i1"), "b": ("i1", "i3")}
    assert named(split, split.valid) == [
        ("a", of_training["a"], "i4"),
        ("a", of_training["a"], "i5"),
        ("b", of_training["b"], "i2"),
    ]
    of_both = {"a": ("i2", "i1", "i5", "i4"), "b": ("i1", "i3", "i2")}
    assert named(split, split.test) == [
        ("a", of_both["a"], "i1"),
        ("a", of_both["a"], "late"),
        ("b", of_both["b"], "i4"),
    ]
    assert split.statistics()["held_out_without_history"] == 1  # the user `new`
    assert dict(zip(split.item_ids.tolist(), split.popularity[1:].tolist())) == {
        "i1": 2,
        "i2": 1,
        "i3": 1,
        "i4": 0,
        "i5": 0,
        "late": 0,
    }
    row, item = split.test.inter_feat.full_histories(torch.tensor([1, 2]))
    assert [(int(r), str(split.item_ids[i - 1])) for r, i in zip(row, item)] == [
        *((0, name) for name in of_both["a"]),
        *((1, name) for name in of_both["b"]),
    ]
    short = split_of(tmp_path, benchmark_filename=["train", "valid", "test"], MAX_ITEM_LIST_LENGTH=2)
    assert named(short, short.test)[0] == ("a", ("i5", "i4"), "i1")


def test_ready_made_leave_last_out_is_leave_last_out(tmp_path):
    rows = random_rows(5)
    write_interactions(tmp_path, rows)
    split = split_of(tmp_path)
    flat = split.dataset.inter_feat.flat
    ids = [split.dataset.field2id_token[field] for field in ("user_id", "item_id")]
    for part, middle in enumerate([".train", ".valid", ".test"]):
        of_part = torch.nonzero(split.part_of_row == part).squeeze(1)
        columns = [ids[0][flat.user[of_part]], ids[1][flat.item[of_part]], flat.features["timestamp"][of_part].tolist()]
        write_interactions(tmp_path, list(zip(*columns)), middle=middle)
    ready = split_of(tmp_path, benchmark_filename=["train", "valid", "test"])
    assert [named(ready, part) for part in ready.parts[1:]] == [named(split, part) for part in split.parts[1:]]
    assert ready.target_counts.total() == split.target_counts.total()


def test_refused_ready_made_files(tmp_path):
    names = ["train", "valid", "test"]
    write_interactions(tmp_path, [("a", "i1", 5), ("a", "i2", 3)], middle=".train")
    write_interactions(tmp_path, [("a", "i1", 5)], middle=".valid")
    config = make_config(tmp_path, dataset="t", benchmark_filename=names)
    with pytest.raises(UserError, match=r"t\.test\.inter does not exist"):
        check_files(config)
    write_interactions(tmp_path, [("new", "i1", 5)], middle=".test")
    check_files(config)
    with pytest.raises(UserError, match="benchmark_filename have no test sample"):
        split_of(tmp_path, benchmark_filename=names)
    write_interactions(tmp_path, [("", "i1", 5)], middle=".test")
    with pytest.raises(UserError, match="without user_id or item_id"):
        split_of(tmp_path, benchmark_filename=names)
    augmented = "user_id:token\titem_id_list:token_seq\titem_id:token\ttimestamp:float\na\ti1 i2\ti3\t1\n"
    (tmp_path / "t" / "t.test.inter").write_text(augmented)
    with pytest.raises(UserError, match=r"t\.test\.inter holds ready-made histories \(item_id_list\)"):
        split_of(tmp_path, benchmark_filename=names)


PROTOCOLS = [{"LS": "valid_and_test"}, {"TS": [60, 80]}, {"TS": [0.7, 0.1, 0.2]}, {"RS": [0.6, 0.2, 0.2]}]


@pytest.mark.parametrize("sample_unit", ["prefix", "sequence"])
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
def test_training_does_not_see_what_is_held_out(tmp_path, protocol, sample_unit):
    """Other held-out items: the same training samples, popularity and input of the tokenizer."""
    rows = random_rows(2)
    write_interactions(tmp_path, rows)

    def seen_in_training() -> tuple:
        config = make_config(
            tmp_path,
            model="HSTU",
            dataset="t",
            eval_args={"split": protocol},
            sample_unit=sample_unit,
            MAX_ITEM_LIST_LENGTH=4,
        )
        split = make_split(config, load_dataset(config))
        items = SplitItems.from_split(split)
        matrix = training_matrix(split, items.number[items.in_training])
        per_user = dict(zip(split.dataset.field2id_token["user_id"][1:], matrix.toarray().tolist()))
        seen = (
            named(split, split.train),
            dict(zip(split.item_ids.tolist(), split.popularity[1:].tolist())),
            {str(split.item_ids[item - 1]): count for item, count in split.target_counts.items()},
            dict(zip(items.item_ids.tolist(), items.in_training.tolist())),
            items.item_ids[items.in_training].tolist(),
            per_user,
        )
        return split, seen

    split, before = seen_in_training()
    flat = split.dataset.inter_feat.flat
    held_out = torch.nonzero(split.part_of_row > 0).squeeze(1)
    assert len(held_out) > 20
    user, item, times = flat.user.clone(), flat.item.clone(), flat.features["timestamp"]
    item[held_out] = item[held_out.flip(0)]
    ids = [split.dataset.field2id_token[field] for field in ("user_id", "item_id")]
    write_interactions(tmp_path, list(zip(ids[0][user], ids[1][item], times.tolist())))
    changed, after = seen_in_training()
    assert after == before
    assert named(changed, changed.test) != named(split, split.test)

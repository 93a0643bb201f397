"""Flat sequences against RecBole's own padded table, and the batches cut from them."""

import pytest
import torch

from recbole_diffgrm.data.dataset import FlatSequentialDataset
from tests.data.helpers import as_tuples, make_config, stock_config


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


@pytest.mark.parametrize("longest", [3, 4, 50])
def test_whole_sequences(tiny, longest):
    """Every item but a user's first is a target once: the last of a sample, or one of its history but the first."""
    config = make_config(tiny, "DiffGRM", sample_unit="sequence", min_history=1, MAX_ITEM_LIST_LENGTH=longest)
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

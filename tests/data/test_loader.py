"""Batches: every sample once, buckets by length, negative items."""

import pytest
import torch

from recbole_diffgrm.data.dataset import FlatSequentialDataset
from recbole_diffgrm.data.loader import EvalLoader, TrainLoader
from recbole_diffgrm.data.splits import make_split
from recbole_diffgrm.errors import UserError
from tests.conftest import write_dataset
from tests.data.helpers import as_tuples, make_config


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
    visited = [int(i) for index, batch in EvalLoader(config, test, True, batch_size=4096) for i in index]
    assert sorted(visited) == list(range(len(test)))


def test_inverse_histories(tiny):
    """SHAN reads histories padded on the left, in training and evaluation."""
    config = make_config(tiny, model="SHAN")
    split = make_split(config, FlatSequentialDataset(config))
    batches = list(TrainLoader(config, split.train, False).batches(0))
    batches += [batch.interaction for _, batch in EvalLoader(config, split.test, False, 16)]
    for batch in batches:
        for history, inverse, length in zip(
            batch["item_id_list"].tolist(), batch[config["INVERSE_ITEM_SEQ"]].tolist(), batch["item_length"].tolist()
        ):
            assert inverse == [0] * (len(history) - length) + history[:length] and 0 not in history[:length]


@pytest.mark.parametrize(("items", "alpha"), [(1, 1.0), (30, 10.0)])
def test_negatives_that_would_be_drawn_for_ever(tmp_path, items, alpha):
    (tmp_path / "t").mkdir()
    rows = [f"u{user}\ti{0 if step < 9 else user % items}\t{step}" for user in range(30) for step in range(12)]
    lines = ["user_id:token\titem_id:token\ttimestamp:float", *rows]
    (tmp_path / "t" / "t.inter").write_text("\n".join(lines) + "\n")
    arguments = {"distribution": "popularity", "alpha": alpha}
    config = make_config(tmp_path, dataset="t", loss_type="BPR", train_neg_sample_args=arguments)
    train, *_ = FlatSequentialDataset(config).build()
    with pytest.raises(UserError, match="nearly all negatives would be one item: lower alpha"):
        TrainLoader(config, train, True)


def test_popular_negatives_follow_their_shares(tiny):
    """RecBole's table of aliases may draw item -1."""
    config = make_config(tiny, loss_type="BPR", train_neg_sample_args={"distribution": "popularity", "alpha": 0.0})
    train, *_ = FlatSequentialDataset(config).build()
    loader = TrainLoader(config, train, True)
    assert -1 not in loader.negatives.sampler.alias.values()
    drawn = torch.cat([batch["neg_item_id"] for epoch in range(40) for batch in loader.batches(epoch)])
    counts = torch.bincount(drawn, minlength=train.item_num)[1:].double()
    assert drawn.min() >= 1 and (counts / counts.mean() - 1).abs().max() < 0.3  # alpha 0: all alike


def test_masks_that_would_look_for_a_negative_for_ever(tmp_path):
    write_dataset(tmp_path, users=12, items=4)
    config = make_config(tmp_path, model="BERT4Rec", MAX_ITEM_LIST_LENGTH=10)
    train, *_ = FlatSequentialDataset(config).build()
    with pytest.raises(UserError, match="a history holds all 4 items"):
        TrainLoader(config, train, True)

"""The non-learned baselines, against loops."""

import numpy as np
import pytest
import torch

from recbole_diffgrm import run
from tests.conftest import build_tiny


def count_training_items(flat) -> np.ndarray:
    """[41] interactions of each item, without the targets of validation and test."""
    rows_of: dict[int, list[int]] = {}
    for row, user in enumerate(flat.user.tolist()):
        rows_of.setdefault(user, []).append(row)
    return np.bincount([int(flat.item[row]) for rows in rows_of.values() for row in rows[:-2]], minlength=41)


def test_history_copy(options):
    """SIDs of the history from its end, each once; then items by popularity in training."""
    _, _, model, loader = build_tiny(options, "HistoryCopy", sid_codebook_size=4, sid_num_digits=2)
    sids = [None, *map(tuple, model.semantic_ids.lookup(torch.arange(1, 41)).tolist())]
    popularity = count_training_items(loader.samples.flat)
    by_popularity = sorted(range(1, 41), key=lambda item: (-popularity[item], item))
    for user in range(60):
        batch = loader.samples.cut(torch.tensor([user]))
        history = batch["item_id_list"][0, : batch["item_length"][0]].tolist()
        recent = list(dict.fromkeys(sids[item] for item in reversed(history)))
        expected = [item for sid in recent for item in by_popularity if sids[item] == sid]
        expected += [item for item in by_popularity if item not in expected]
        candidates = model.candidates(batch, depth=40)
        assert candidates.top_k(40).items[0].tolist() == expected
        rows = [row for row in candidates.generated.rows[0].tolist() if row >= 0]
        assert [tuple(model.semantic_ids.sids[row].tolist()) for row in rows] == recent
        assert candidates.generated.num_generated.tolist() == [len(history)]
        assert candidates.generated.num_distinct.tolist() == [len(recent)]


def test_pop(options):
    _, _, model, loader = build_tiny(options, "Pop")
    counts = count_training_items(loader.samples.flat).tolist()
    batch = loader.samples.cut(torch.arange(3))
    scores = model.candidates(batch, depth=10).dense_scores()
    assert scores[:, 1:].tolist() == [counts[1:]] * 3
    assert torch.equal(model.full_sort_predict(batch), scores)
    assert model.predict(batch).tolist() == [counts[item] for item in batch["item_id"].tolist()]


@pytest.mark.parametrize("model", ["Pop", "HistoryCopy"])
def test_baselines_learn_nothing(options, model):
    result = run(model, "tiny", **options)
    assert (result.epochs, result.best_epoch, result.parameters, result.curve) == (0, None, 0, [])
    for metrics in result.test.values():
        assert ("sid_ndcg@10" in metrics) == (model == "HistoryCopy")
        assert set(result.valid) == set(metrics)
    again = run(model, "tiny", **options, resume=True)
    assert again.run_dir == result.run_dir

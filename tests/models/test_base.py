"""Every model in RecBole's interface: it agrees with ours, and RecBole's own trainer works with it."""

import pytest
import torch
from recbole.data.dataloader import FullSortEvalDataLoader, TrainDataLoader
from recbole.trainer import Trainer
from recbole.utils import init_seed

from recbole_diffgrm import UserError
from recbole_diffgrm.data.loader import TrainLoader
from recbole_diffgrm.evaluation.evaluator import evaluate
from recbole_diffgrm.models.base import MAX_SCORES, Model, users_per_batch
from tests.conftest import SMALL, build_tiny

VARIANTS = [
    ("DiffGRM", {}),
    ("DiffGRM", {"item_head": True}),
    ("DiffGRM", {"item_head": True, "sample_unit": "sequence", "min_history": 1}),
    *((name, {}) for name in SMALL),
    ("HSTU", {"item_input": "codes", "num_negatives": None}),
    ("RecJPQ", {"loss_type": "CE"}),
    ("TIGER", {"user_tokens": 7}),
    ("SASRec", {}),
    ("S3Rec", {}),
]


@pytest.mark.parametrize(("name", "changes"), VARIANTS, ids=str)
def test_losses_are_recboles_losses(options, name, changes):
    config, split, model, _ = build_tiny(options, name, **changes)
    batch = next(TrainLoader(config, split.train, trim=model.variable_length).batches(epoch=0))
    init_seed(3, True)
    output = model.losses(batch)
    init_seed(3, True)
    loss = model.calculate_loss(batch)
    theirs = loss if isinstance(loss, tuple) else (loss,)
    assert [part.item() for part in output.parts.values()] == pytest.approx([part.item() for part in theirs])
    expected = int(batch["item_length"].sum()) if config["sample_unit"] == "sequence" else len(batch)
    assert output.num_targets == expected


@torch.inference_mode()
@pytest.mark.parametrize(("name", "changes"), [*VARIANTS[:-1], ("HistoryCopy", {}), ("Pop", {})], ids=str)
def test_candidates_rank_as_recboles_scores_do(options, name, changes):
    _, _, model, loader = build_tiny(options, name, **changes)
    batch = next(iter(loader))[1].interaction
    candidates = model.candidates(batch, depth=40)
    scores = model.full_sort_predict(batch).view(len(batch), -1)
    if isinstance(model, Model):
        assert torch.equal(candidates.dense_scores(), scores)
    else:
        assert torch.equal(candidates.dense_scores()[:, 1:], scores[:, 1:].float())
    for items, row in zip(candidates.top_k(40).items.tolist(), scores.float().tolist()):
        assert items == sorted(range(1, 41), key=lambda item: (-row[item], item))
    of_targets = scores.gather(1, batch["item_id"][:, None]).squeeze(1)
    assert model.predict(batch).tolist() == pytest.approx(of_targets.tolist())


@pytest.mark.parametrize("changes", [{}, {"item_head": True}], ids=str)
def test_recboles_trainer_evaluates_it(options, changes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # it writes saved/ and log_tensorboard/
    config, split, model, loader = build_tiny(options, **changes)
    theirs = Trainer(config, model).evaluate(
        FullSortEvalDataLoader(config, split.test, None, shuffle=False), load_best_model=False
    )
    ours = evaluate(config, model, loader)["all"].metrics
    assert theirs == pytest.approx({name: value for name, value in ours.items() if not name.startswith("sid_")})
    assert theirs["recall@10"] > 0


def test_recboles_trainer_trains_it(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # RecBole has one metric of selection, and its way to clip gradients is a mapping.
    config, split, model, _ = build_tiny(options, std=None, epochs=5, clip_grad_norm=None, valid_metric="NDCG@10")
    trainer = Trainer(config, model.float())
    score, metrics = trainer.fit(
        TrainDataLoader(config, split.train, None, shuffle=True),
        FullSortEvalDataLoader(config, split.valid, None, shuffle=False),
        saved=False,
    )
    assert trainer.train_loss_dict[4] < trainer.train_loss_dict[0]
    assert score == metrics["ndcg@10"] > 0


def test_models_that_generate_nothing_say_so(options):
    for name in ("SASRec", "Pop", "HistoryCopy"):
        _, _, model, loader = build_tiny(options, name)
        with pytest.raises(UserError, match=f"explain.*{name}"):
            model.generate_beams(loader.samples.cut(torch.arange(2)))


@pytest.mark.parametrize(
    ("changes", "is_dense"), [({}, False), ({"item_head": True, "item_scoring": "full"}, True)], ids=str
)
def test_large_catalogs_are_scored_for_fewer_users_at_once(options, changes, is_dense):
    config = build_tiny(options, **changes).config
    assert users_per_batch(config, 40) == config["eval_batch_size"]
    assert users_per_batch(config, MAX_SCORES // 2) == (2 if is_dense else config["eval_batch_size"])
    assert users_per_batch(config, MAX_SCORES * 2) == (1 if is_dense else config["eval_batch_size"])


@torch.inference_mode()
@pytest.mark.parametrize("name", ["RPG", "RecJPQ", "VQRec"])
def test_later_items_and_trimming_change_nothing(options, name):
    _, _, model, loader = build_tiny(options, name)
    for index, batch in loader:
        batch = batch.interaction
        trimmed = model._encode(batch)
        whole = loader.samples.cut(index, 10)
        for row, length in enumerate(batch["item_length"].tolist()):
            torch.testing.assert_close(model._encode(whole)[row, :length], trimmed[row, :length])
        batch["item_id_list"][:, 2:] = 7
        torch.testing.assert_close(model._encode(batch)[:, :2], trimmed[:, :2])


def test_what_is_kept_between_batches_follows_the_weights(options):
    changes = {"sid_quantizer": "random", "sid_num_digits": 4, "sid_codebook_size": 8, "hidden_size": 16, "n_heads": 2}
    _, _, model, loader = build_tiny(options, "VQRec", inner_size=8, **changes)
    batch = next(iter(loader))[1].interaction
    made = []
    original = model._scored_vectors
    model._scored_vectors = lambda items: made.append(items) or original(items)

    def score():
        with torch.inference_mode():
            return model.candidates(batch, depth=10).scores

    first = score()
    assert (score() == first).all() and len(made) == 1
    with torch.no_grad():
        model.code_embedding.mul_(torch.rand(8, 1))
    changed = score()
    assert len(made) == 2 and (changed != first).any()
    model.eval()  # an evaluation begins
    assert (score() == changed).all() and len(made) == 3
    model.candidates(batch, depth=10)  # with gradients, nothing is kept
    model.candidates(batch, depth=10)
    assert len(made) == 5

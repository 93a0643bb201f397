"""DiffGRM with a softmax over items beside the decoder, and training at every position of a sequence."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from recbole_diffgrm import Recommender, UserError, run
from recbole_diffgrm.config.config import build_config
from recbole_diffgrm.decoding.scores import mask_scores
from recbole_diffgrm.evaluation.evaluate import evaluate_rankings
from recbole_diffgrm.evaluation.ranking import NOT_RANKED, target_ranks
from recbole_diffgrm.model.diffgrm import Targets
from recbole_diffgrm.network.network import TEXT_SCALE
from tests.model import test_diffgrm, test_recommending

EVERY = {"every_position": True, "min_history": 1}


@pytest.mark.parametrize("item_head", [True, False])
def test_every_position_is_the_mean_over_prefixes(options, item_head):
    """One pass over a sequence trains on the same as each of its prefixes by itself."""
    model, loader = test_diffgrm.made(options, item_head=item_head, **EVERY)
    index = torch.tensor([3, 17, 40])
    together = model.calculate_loss(loader.samples.cut(index))
    model.every_position = False  # the last item is the one target
    alone = []
    for number in index.tolist():
        last = int(loader.samples.rows[number])
        for row in range(last - int(loader.samples.lengths(loader.samples.rows)[number]) + 1, last + 1):
            prefix = loader.samples.select(torch.tensor([row], dtype=torch.int32)).cut(torch.tensor([0]))
            alone.append(model.calculate_loss(prefix))
    if item_head:
        assert [part.item() for part in together] == pytest.approx(
            [float(np.mean([part.item() for part in parts])) for parts in zip(*alone)], abs=1e-9
        )
    else:
        assert together.item() == pytest.approx(np.mean([part.item() for part in alone]), abs=1e-9)


def test_targets_of_a_sequence(options):
    model, loader = test_diffgrm.made(options, **EVERY)
    batch = loader.samples.cut(torch.arange(9))
    targets = model._targets(batch)
    expected = []
    for row, (items, length, last) in enumerate(
        zip(*(batch[name].tolist() for name in ("item_id_list", "item_length", "item_id")))
    ):
        sequence = [*items[:length], last]
        expected += [(row, place, sequence[place + 1]) for place in range(length)]
    assert list(zip(*(part.tolist() for part in targets))) == expected


def test_some_targets_of_each_sample():
    row = torch.tensor([0, 0, 0, 1, 2, 2])
    targets = Targets(row, torch.tensor([0, 1, 2, 0, 0, 1]), torch.arange(10, 16))
    torch.manual_seed(0)
    drawn = [targets.some(2) for _ in range(300)]
    everything = list(zip(*(part.tolist() for part in targets)))
    for some in drawn:
        found = list(zip(*(part.tolist() for part in some)))
        assert len(set(found)) == 5 and set(found) <= set(everything)
        assert [entry[0] for entry in found] == [0, 0, 1, 2, 2]
    missing = [33 - sum({10, 11, 12} & set(some.item.tolist())) for some in drawn]  # in the first sample
    assert all(60 < missing.count(item) < 140 for item in (10, 11, 12))
    assert targets.some(None) is targets


def test_fewer_targets_for_the_decoder(options):
    """All positions train the item head, some of them the decoder."""
    model, loader = test_diffgrm.made(options, item_head=True, id_targets=1, **EVERY)
    batch = loader.samples.cut(torch.arange(20))
    _, of_items = model.calculate_loss(batch)
    assert int(model.step_sums["hardest"].sum()) == 20  # decoded targets
    model.id_targets = None
    assert model.calculate_loss(batch)[1].item() == pytest.approx(of_items.item())
    assert int(model.step_sums["hardest"].sum()) == int(batch["item_length"].sum())


@torch.inference_mode()
@pytest.mark.parametrize("changes", [{}, {"sid_codes": 4, "sid_digits": 2}])
@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_items_are_ranked_by_both(options, weight, changes):
    config, model, loader = test_recommending.made(options, item_head=True, id_weight=weight, **EVERY, **changes)
    rows = model.catalogue.row.tolist()
    for _, batch in loader:
        scores = model.full_sort_predict(batch.interaction)
        generated = model.generate(batch.interaction, validation=False)
        states = model._read(batch.interaction)
        for user in range(len(batch.target)):
            length = int(batch.interaction["item_length"][user])
            history = batch.interaction["item_id_list"][user, :length]
            vectors = model.network.item_vectors(torch.arange(41), model.catalogue.sids(torch.arange(41)))
            logits = model.network.item_logits(states[user, length - 1][None], vectors, history[None])[0]
            log_probability = F.log_softmax(logits.float(), dim=0)
            found = dict(zip(generated.rows[user].tolist(), generated.score[user].tolist()))
            found.pop(-1, None)
            for item in range(1, 41):
                expected = float(log_probability[item]) + weight * found.get(rows[item], min(found.values()))
                assert float(scores[user, item]) == pytest.approx(expected, abs=1e-4)
        lists = model.rank(batch.interaction, 40, batch.seen)
        seen = set(zip(*(part.tolist() for part in batch.seen)))
        for user, (items, values) in enumerate(zip(lists.items.tolist(), lists.item_score.tolist())):
            kept = [i for i in range(1, 41) if (user, i) not in seen]
            order = sorted(kept, key=lambda item: (-float(scores[user, item]), item))
            assert [item for item in items if item] == order
            assert values[: len(order)] == pytest.approx([float(scores[user, item]) for item in order])
            ids = list(dict.fromkeys(rows[item] for item in order))
            assert [row for row in lists.rows[user].tolist() if row >= 0] == ids[: lists.rows.shape[1]]
    everything, new = evaluate_rankings(config, model, loader, [False, True])
    for found, leave_out in ((everything, False), (new, True)):
        ranks = []
        for _, batch in loader:
            scores = mask_scores(model.full_sort_predict(batch.interaction), batch.seen if leave_out else None)
            ranks.append(target_ranks(scores, batch.target))
        ranks = torch.cat(ranks)
        expected = torch.where(ranks <= 10, ranks, NOT_RANKED)
        assert found.ranks[torch.cat([index for index, _ in loader])].tolist() == expected.tolist()


@pytest.mark.parametrize(
    "changes", [{"enable_amp": True}, EVERY, {**EVERY, "id_targets": 1, "encoder_dropout_prob": 0.5}]
)
def test_runs_and_recommends(options, changes):
    result = run("DiffGRM", "tiny", **options, item_head=True, valid_users=20, **changes)
    assert result.statistics["valid_users"] == 20
    assert all(len(entry["loss_parts"]) == 2 for entry in result.curve)
    assert result.curve[-1]["loss"] < result.curve[0]["loss"]
    assert result.test["sid_recall@10"] >= result.test["recall@10"] and result.sid_shares["filled"] == 0
    found = Recommender.load(result.run_dir).recommend([["i1", "i2", "i3"]], k=7)[0]
    assert len(found) == 7
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


def test_learns_that_nothing_is_bought_twice(options):
    """Users of `tiny` never come back to an item within a history of so few steps."""
    result = run("DiffGRM", "tiny", **{**options, "epochs": 30}, item_head=True, **EVERY, learning_rate=0.01)
    state = torch.load(result.run_dir / "best.pt", weights_only=True)["state_dict"]
    assert state["network.repeat_weight"] < -0.05
    assert result.test["ndcg@10"] == pytest.approx(result.test_new["ndcg@10"], abs=0.02)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"every_position": True}, "min_history: 1"),
        ({**EVERY, "sliding_window": False}, "sliding_window: True"),
        ({**EVERY, "max_history": 50}, "max_history: ~"),
        ({"id_targets": 2}, "only every_position reads it"),
        ({"id_weight": 0.5}, "only item_head reads it"),
        ({"item_text": True}, "only item_head reads it"),
        ({"item_head": True, "decoding": "paper"}, "needs decoding catalogue"),
        ({"item_head": True, "shared_id_order": "number"}, "not read with item_head"),
    ],
)
def test_settings_that_do_not_fit(options, settings, words):
    merged = {**options, **settings}
    with pytest.raises(UserError, match=words):
        build_config("DiffGRM", "tiny", merged.pop("config_files"), merged)


def test_valid_users_are_the_same_every_time(options):
    first, second = (run("DiffGRM", "tiny", **options, valid_users=15, seed=seed).valid for seed in (1, 1))
    assert first == second
    assert run("DiffGRM", "tiny", **options, valid_users=1000).statistics["valid_users"] == 60


WITH_TEXT = {**EVERY, "item_head": True, "item_text": True, "sid_quantiser": "opq", "sid_digits": 2, "sid_codes": 4}


@pytest.fixture
def vectors(tiny, tmp_path):
    """A file of embeddings for the items of `tiny`, and {item: embedding}."""
    names = [f"i{item}" for item in range(40)]
    embedding = np.random.default_rng(0).normal(size=(40, 9)).astype(np.float32)
    np.savez(tmp_path / "vectors.npz", item_id=names, embedding=embedding)
    return str(tmp_path / "vectors.npz"), dict(zip(names, embedding.astype(np.float64)))


def test_text_is_part_of_an_item(options, vectors):
    path, embedding = vectors
    model, loader = test_diffgrm.made(options, **WITH_TEXT, sid_encoder=path)
    dataset, net = loader.dataset, model.network
    names = dataset.id2token("item_id", np.arange(1, dataset.item_num))
    flat = loader.samples.flat
    trained = {*(i for r in loader.samples.rows.tolist() for i in range(r - int(flat.position[r]), r + 1))}
    trained = sorted({dataset.id2token("item_id", int(flat.item[row])) for row in trained})
    fitted = np.stack([embedding[name] for name in trained])
    centred = np.stack([embedding[name] for name in names]) - fitted.mean(0)
    whitened = np.linalg.inv(np.cov(fitted.T, bias=True)) @ centred.T  # distances after whitening are Mahalanobis's
    expected = centred @ whitened
    expected /= np.sqrt(np.outer(np.diag(expected), np.diag(expected)))  # cosines
    text = model.text_vectors.numpy()
    assert text[0].tolist() == [0] * text.shape[1]
    assert np.allclose(text[1:] @ text[1:].T, expected, atol=1e-4)
    items = torch.tensor([[3, 0], [40, 7]])
    without = net.item_vectors(items, model.catalogue.sids(items))
    added = TEXT_SCALE * model.text_vectors[items].double() @ net.text_projection.weight.T
    assert torch.allclose(model._vectors(items), without + added)


def test_runs_and_recommends_with_text(options, vectors, tmp_path):
    settings = {**options, **WITH_TEXT}
    made = run("DiffGRM", "tiny", **settings, sid_encoder=vectors[0])
    table = tmp_path / "ready.sid"
    rows = [f"i{item}\t{item % 4} {item // 4 % 4}" for item in range(40)]
    table.write_text("\n".join(["item_id:token\tsid:token_seq", *rows]) + "\n")
    ready = run("DiffGRM", "tiny", **settings, sid_encoder=vectors[0], sid_file=str(table))
    for result in (made, ready):
        assert len(Recommender.load(result.run_dir).recommend([["i1", "i2", "i3"]], k=7)[0]) == 7
    assert made.config_hash != ready.config_hash
    with pytest.raises(UserError, match="id_weight: only item_head reads it"):
        Recommender.load(run("DiffGRM", "tiny", **options).run_dir, id_weight=0.5)
    run("DiffGRM", "tiny", **{**settings, "sid_quantiser": "random"}, sid_encoder=vectors[0])  # codes need no text


def test_raw_text_vectors_have_length_one(options, vectors):
    model, _ = test_diffgrm.made(options, **{**WITH_TEXT, "sid_pca_dim": None, "sid_digits": 3}, sid_encoder=vectors[0])
    assert torch.allclose(model.text_vectors[1:].norm(dim=1), torch.ones(40, dtype=torch.double), atol=1e-6)

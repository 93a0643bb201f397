"""DiffGRM with a softmax over items beside the decoder, and trained at every position of a sequence."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from recbole_diffgrm import Recommender, UserError, run
from recbole_diffgrm.evaluation.evaluator import evaluate
from recbole_diffgrm.generation.semantic_ids import MASKED
from recbole_diffgrm.models.candidates import NOT_RANKED, GeneratedItems, ItemScores
from recbole_diffgrm.models.diffgrm import model as diffgrm_model
from recbole_diffgrm.models.diffgrm import prior
from recbole_diffgrm.models.diffgrm.model import Targets
from recbole_diffgrm.nn.item_embeddings import TEXT_SCALE
from tests.conftest import build_tiny

ALL_POSITIONS = {"sample_unit": "sequence", "min_history": 1}


# Training


@pytest.mark.parametrize("item_head", [True, False])
def test_a_sequence_trains_as_all_its_prefixes_do(options, item_head):
    """One pass over a sequence has the mean loss of its prefixes, each by itself."""
    _, split, model, _ = build_tiny(options, item_head=item_head, **ALL_POSITIONS)
    samples, index = split.train.inter_feat, torch.tensor([3, 17, 40])
    together = model.losses(samples.cut(index))
    model.sample_unit = "prefix"  # the last item is the only target
    alone = []
    for last, length in zip(samples.rows[index].tolist(), samples["item_length"][index].tolist()):
        for row in range(last - length + 1, last + 1):
            prefix = samples.select(torch.tensor([row], dtype=torch.int32)).cut(torch.tensor([0]))
            alone.append(model.losses(prefix).parts)
    assert list(together.parts) == (["sid", "item"] if item_head else ["sid"])
    for name, part in together.parts.items():
        assert part.item() == pytest.approx(np.mean([parts[name].item() for parts in alone]), abs=1e-9)
    assert together.num_targets == len(alone)


def test_targets_of_a_sequence(options):
    _, split, model, _ = build_tiny(options, **ALL_POSITIONS)
    batch = split.train.inter_feat.cut(torch.arange(9))
    expected = []
    columns = (batch[name].tolist() for name in ("item_id_list", "item_length", "item_id"))
    for row, (items, length, last) in enumerate(zip(*columns)):
        sequence = [*items[:length], last]
        expected += [(row, position, sequence[position + 1]) for position in range(length)]
    assert list(zip(*(part.tolist() for part in model.targets(batch)))) == expected


def test_random_targets_of_each_sample():
    row = torch.tensor([0, 0, 0, 1, 2, 2])
    targets = Targets(row, torch.tensor([0, 1, 2, 0, 0, 1]), torch.arange(10, 16))
    torch.manual_seed(0)
    samples = [targets.sample(2) for _ in range(300)]
    everything = set(zip(*(part.tolist() for part in targets)))
    for sample in samples:
        chosen = list(zip(*(part.tolist() for part in sample)))
        assert len(set(chosen)) == 5 and set(chosen) <= everything
        assert [entry[0] for entry in chosen] == [0, 0, 1, 2, 2]
    missing = [33 - sum({10, 11, 12} & set(sample.item.tolist())) for sample in samples]  # in the first sample
    assert all(60 < missing.count(item) < 140 for item in (10, 11, 12))
    assert targets.sample(None) is targets


def test_fewer_targets_for_the_decoder(options):
    """All positions train the item head, some of them the decoder."""
    _, split, model, _ = build_tiny(options, item_head=True, decoder_targets=1, **ALL_POSITIONS)
    batch = split.train.inter_feat.cut(torch.arange(20))
    some = model.losses(batch)
    assert int(some.statistics["hardest"].sum()) == 20  # decoded targets
    model.decoder_targets = None
    everything = model.losses(batch)
    assert everything.parts["item"].item() == pytest.approx(some.parts["item"].item())
    assert int(everything.statistics["hardest"].sum()) == int(batch["item_length"].sum())
    assert some.num_targets == everything.num_targets == int(batch["item_length"].sum())


# Ranking


@torch.inference_mode()
@pytest.mark.parametrize("changes", [{}, {"sid_codebook_size": 4, "sid_num_digits": 2}], ids=str)
def test_items_are_ranked_by_the_item_head(options, changes):
    config, _, model, loader = build_tiny(options, item_head=True, **ALL_POSITIONS, **changes)
    sid_index = model.semantic_ids.sid_index.tolist()
    items = torch.arange(41)
    vectors = model.network.embed_items(items, model.semantic_ids.lookup(items))
    ranks = {"all": [], "unseen": []}
    for _, batch in loader:
        scores = model.full_sort_predict(batch.interaction)
        states = model._encode(batch.interaction)
        for user in range(len(batch.target)):
            length = int(batch.interaction["item_length"][user])
            history = batch.interaction["item_id_list"][user, :length]
            logits = model.network.item_logits(states[user, length - 1][None], vectors, history[None])[0]
            log_prob = F.log_softmax(logits.float(), dim=0)
            assert scores[user, 1:].tolist() == pytest.approx(log_prob[1:].tolist(), abs=1e-4)
        candidates = model.candidates(batch.interaction, depth=40)
        top, sid_ranks = candidates.top_k(40, batch.seen), candidates.sid_target_rank(batch.target, batch.seen)
        seen = set(zip(*(part.tolist() for part in batch.seen)))
        for user, (listed, values) in enumerate(zip(top.items.tolist(), top.scores.tolist())):
            unseen = [item for item in range(1, 41) if (user, item) not in seen]
            order = sorted(unseen, key=lambda item: (-float(scores[user, item]), item))
            assert [item for item in listed if item] == order
            assert values[: len(order)] == pytest.approx([float(scores[user, item]) for item in order])
            sids, target = list(dict.fromkeys(sid_index[item] for item in order)), sid_index[batch.target[user]]
            assert sid_ranks[user] == (sids.index(target) + 1 if target in sids else NOT_RANKED)
        for ranking, exclude in (("all", None), ("unseen", batch.seen)):
            ranks[ranking].append(ItemScores(scores).target_rank(batch.target, exclude))
    for ranking, evaluation in evaluate(config, model, loader, list(ranks)).items():
        assert evaluation.ranks[loader.order].tolist() == torch.cat(ranks[ranking]).tolist()


@torch.inference_mode()
@pytest.mark.parametrize("changes", [{}, {"sid_codebook_size": 4, "sid_num_digits": 2}], ids=str)
@pytest.mark.parametrize("normalize", [True, False])
def test_generate_then_rank_with_all_branches_is_a_ranking_of_all_items(options, changes, normalize):
    """Branches that hold every SID: what the item head says, in both rankings and levels."""
    settings = {"item_head": True, "normalize_codes": normalize, **ALL_POSITIONS, **changes}
    _, _, model, loader = build_tiny(options, beam_size=200, leaf_size=8, **settings)
    assert model.item_scoring == "full"
    for _, batch in loader:
        model.item_scoring = "full"
        full = model.candidates(batch.interaction, depth=40)
        model.item_scoring = "generated"
        some = model.candidates(batch.interaction, depth=40)
        for exclude in (None, batch.seen):
            assert torch.equal(some.top_k(40, exclude).items, full.top_k(40, exclude).items)
            scores, expected = (candidates.top_k(9, exclude).scores for candidates in (some, full))
            torch.testing.assert_close(scores - scores[:, :1], expected - expected[:, :1], atol=1e-4, rtol=0)
            for rank in ("target_rank", "sid_target_rank"):
                ranks, expected = (getattr(candidates, rank)(batch.target, exclude) for candidates in (some, full))
                assert torch.equal(ranks, expected)
        assert torch.equal(some.dense_scores()[:, 1:].argsort(descending=True), full.top_k(40).items - 1)
        counts = some.count_sids(batch.target, 10)
        assert counts["scored"] == counts["scored_at_most"] == 40 * len(batch.target)


@torch.inference_mode()
@pytest.mark.parametrize("leaf_size", [1, 3, 8])
def test_generate_then_rank_scores_what_is_below_its_branches(options, leaf_size):
    settings = {"item_head": True, "item_scoring": "generated", **ALL_POSITIONS}
    _, _, model, loader = build_tiny(options, beam_size=10, leaf_size=leaf_size, **settings)
    ids, items = model.semantic_ids, torch.arange(41)
    vectors = model.network.embed_items(items, ids.lookup(items))
    for _, batch in loader:
        beams, states = model.generate_beams(batch.interaction), model._encode(batch.interaction)
        top = model.candidates(batch.interaction, depth=40).top_k(40)
        for user in range(len(batch.target)):
            below = set()
            for branch in range(beams.scores.shape[1]):
                begin, length = beams.below.begin[user, branch], beams.below.length[user, branch]
                assert length <= leaf_size
                for row in beams.below.rows[begin : begin + length].tolist():
                    for item in torch.nonzero(ids.sid_index == row).flatten().tolist():
                        below.add(item)
            length = int(batch.interaction["item_length"][user])
            history = batch.interaction["item_id_list"][user, :length]
            logits = model.network.item_logits(states[user, length - 1][None], vectors, history[None])[0]
            expected = dict(zip(sorted(below), logits[sorted(below)].log_softmax(0).tolist()))
            order = sorted(expected, key=lambda item: (-expected[item], item))
            assert top.items[user, : len(order)].tolist() == order
            assert top.scores[user, : len(order)].tolist() == pytest.approx(
                [expected[item] for item in order], abs=1e-4
            )
            assert (top.scores[user, len(order) :] == -torch.inf).all()
            assert sorted(top.items[user].tolist()) == list(range(1, 41))  # popular items follow


def test_large_catalogues_are_not_scored_whole(options, monkeypatch, caplog):
    monkeypatch.setattr(diffgrm_model, "FULL_SCORING", 30)
    caplog.set_level("INFO")
    config, _, model, _ = build_tiny(options, item_head=True, **ALL_POSITIONS)
    assert model.item_scoring == "generated" and "of 40 items, those below branches" in caplog.text
    assert not model.scores_every_item(config, 41) and model.scores_every_item(config, 29)


@torch.inference_mode()
def test_items_in_the_order_of_their_sids(options):
    """item_scoring none: as a model without an item head ranks."""
    _, _, model, loader = build_tiny(options, item_head=True, item_scoring="none", beam_size=10, **ALL_POSITIONS)
    for _, batch in loader:
        generated = model.generate(batch.interaction, [10])
        expected = GeneratedItems(generated, model.semantic_ids, 40)
        ranked = model.candidates(batch.interaction, depth=40)
        assert torch.equal(ranked.top_k(40).items, expected.top_k(40).items)
        assert torch.equal(ranked.target_rank(batch.target), expected.target_rank(batch.target))


# The prior of codes


@pytest.mark.parametrize("most", [64, 2])
def test_the_prior_is_linear_in_the_state(options, most, monkeypatch):
    """state . mean vector of a code's items + log of their number, item by item; of the first `most` items."""
    monkeypatch.setattr(prior, "ITEMS_OF_A_CODE", most)
    _, _, model, _ = build_tiny(options, item_head=True, code_prior=True, sid_codebook_size=32, **ALL_POSITIONS)
    codes_of = model.semantic_ids.lookup(torch.arange(41)).tolist()
    vectors = model._item_vectors(None)
    state = torch.randn(5, vectors.shape[1], dtype=vectors.dtype)
    found = model._prior(state)
    absent = 0
    for digit in range(model.semantic_ids.num_digits):
        for code in range(32):
            own = [item for item in range(1, 41) if codes_of[item][digit] == code]
            absent += not own
            if not own:
                assert (found[:, digit, code] == -torch.inf).all()
                continue
            expected = state @ vectors[own[:most]].mean(0) + np.log(len(own))
            torch.testing.assert_close(found[:, digit, code], expected.detach(), rtol=1e-4, atol=1e-5)
    assert not found.requires_grad and 0 < absent < 100


def test_the_decoder_adds_to_the_prior(options):
    """In training and in the search; the item head learns nothing from it."""
    settings = {"item_head": True, "code_prior": True, "sid_codebook_size": 8, **ALL_POSITIONS}
    _, split, model, _ = build_tiny(options, **settings)
    batch = split.train.inter_feat.cut(torch.arange(4))
    states, targets = model._encode(batch), model.targets(batch)
    history = model._history(states, batch["item_length"])
    known = torch.full((4, 1, model.semantic_ids.num_digits), MASKED)
    plain = model.network.predict(known, history._replace(prior=None))
    torch.testing.assert_close(model.network.predict(known, history), plain + history.prior[:, None])
    step, _ = model.search_parts(batch)
    torch.testing.assert_close(step(known, None), (plain + history.prior[:, None]).log_softmax(-1))
    loss, _ = model._sid_loss(states.detach(), targets)
    loss.backward()
    assert torch.isfinite(loss) and model.network.id_embedding.grad is None


# Runs


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"enable_amp": True},
        ALL_POSITIONS,
        {**ALL_POSITIONS, "decoder_targets": 1, "encoder_dropout_prob": 0.5},
        {**ALL_POSITIONS, "item_scoring": "generated", "leaf_size": 5, "code_prior": True},
    ],
    ids=str,
)
def test_runs_and_recommends(options, changes):
    result = run("DiffGRM", "tiny", **options, item_head=True, num_valid_users=20, **changes)
    assert result.statistics["valid_users"] == 20
    for entry in result.curve:
        assert set(entry["loss_parts"]) == {"sid", "item"}
        assert sum(entry["loss_parts"].values()) == pytest.approx(entry["loss"])
    assert result.curve[-1]["loss"] < result.curve[0]["loss"]
    assert (
        result.test["all"]["sid_recall@10"] >= result.test["all"]["recall@10"]
        and result.sid_shares.get("filled", 0) == 0
    )
    recommended = Recommender.load(result.run_dir).recommend([["i1", "i2", "i3"]], k=7)[0]
    assert len(recommended) == 7
    assert [one.score for one in recommended] == sorted((one.score for one in recommended), reverse=True)


@pytest.mark.slow
def test_learns_that_nothing_is_bought_twice(options):
    """Users of `tiny` never come back to an item: their histories are too short."""
    result = run("DiffGRM", "tiny", **{**options, "epochs": 30}, item_head=True, **ALL_POSITIONS, learning_rate=0.01)
    state = torch.load(result.run_dir / "best.pt", weights_only=True)["state_dict"]
    assert state["network.repeat_weight"] < -0.05
    assert result.test["all"]["ndcg@10"] == pytest.approx(result.test["unseen"]["ndcg@10"], abs=0.02)


@pytest.mark.slow
def test_valid_users_are_the_same_every_time(options):
    options["epochs"] = 1
    first, second = (run("DiffGRM", "tiny", **options, num_valid_users=15).valid for _ in range(2))
    assert first == second
    assert run("DiffGRM", "tiny", **options, num_valid_users=1000).statistics["valid_users"] == 60


# Text

WITH_TEXT = {
    **ALL_POSITIONS,
    "item_head": True,
    "item_text": True,
    "sid_quantizer": "opq",
    "sid_num_digits": 2,
    "sid_codebook_size": 4,
}


@pytest.fixture
def vectors(tmp_path):
    """A file of embeddings for the items of `tiny`, and {item: embedding}."""
    names = [f"i{item}" for item in range(40)]
    embedding = np.random.default_rng(0).normal(size=(40, 9)).astype(np.float32)
    np.savez(tmp_path / "vectors.npz", item_id=names, embedding=embedding)
    return str(tmp_path / "vectors.npz"), dict(zip(names, embedding.astype(np.float64)))


def test_text_is_part_of_an_item(options, vectors):
    path, embedding = vectors
    _, split, model, _ = build_tiny(options, **WITH_TEXT, sid_text_encoder=path)
    samples, network = split.train.inter_feat, model.network
    flat = samples.flat
    trained = {i for row in samples.rows.tolist() for i in range(row - int(flat.position[row]), row + 1)}
    trained = sorted({split.dataset.id2token("item_id", int(flat.item[row])) for row in trained})
    fitted = np.stack([embedding[name] for name in trained])
    centered = np.stack([embedding[name] for name in split.item_ids]) - fitted.mean(0)
    whitened = np.linalg.inv(np.cov(fitted.T, bias=True)) @ centered.T  # distances after whitening are Mahalanobis's
    expected = centered @ whitened
    expected /= np.sqrt(np.outer(np.diag(expected), np.diag(expected)))  # cosines
    text = model.text_vectors.numpy()
    assert text[0].tolist() == [0] * text.shape[1]
    assert np.allclose(text[1:] @ text[1:].T, expected, atol=1e-4)
    items = torch.tensor([[3, 0], [40, 7]])
    without = network.embed_items(items, model.semantic_ids.lookup(items))
    added = TEXT_SCALE * model.text_vectors[items].double() @ network.item_embedding.text_projection.weight.T
    assert torch.allclose(model._embed(items), without + added)


@pytest.mark.slow
def test_runs_and_recommends_with_text(options, vectors, tmp_path):
    settings = {**options, **WITH_TEXT}
    made = run("DiffGRM", "tiny", **settings, sid_text_encoder=vectors[0])
    table = tmp_path / "ready.sid"
    rows = [f"i{item}\t{item % 4} {item // 4 % 4}" for item in range(40)]
    table.write_text("\n".join(["item_id:token\tsid:token_seq", *rows]) + "\n")
    ready = run("DiffGRM", "tiny", **settings, sid_text_encoder=vectors[0], sid_file=str(table))
    for result in (made, ready):
        assert len(Recommender.load(result.run_dir).recommend([["i1", "i2", "i3"]], k=7)[0]) == 7
    assert made.config_hash != ready.config_hash
    with pytest.raises(UserError, match=r"item_scoring.*item_head"):
        Recommender.load(run("DiffGRM", "tiny", **options).run_dir, item_scoring="full")
    run("DiffGRM", "tiny", **{**settings, "sid_quantizer": "random"}, sid_text_encoder=vectors[0])  # codes need no text


def test_raw_text_vectors_have_length_one(options, vectors):
    settings = {**WITH_TEXT, "sid_pca_dim": None, "sid_num_digits": 3}
    model = build_tiny(options, **settings, sid_text_encoder=vectors[0]).model
    assert torch.allclose(model.text_vectors[1:].norm(dim=1), torch.ones(40, dtype=torch.double), atol=1e-6)

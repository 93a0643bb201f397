"""RPG against plain loops, and its graph against scores of all items."""

import math

import pytest
import torch

from recbole_diffgrm import Recommender, UserError, checkpoint, retest, run
from recbole_diffgrm.models import build_config
from tests.conftest import build_tiny

SIZES = {"hidden_size": 16, "inner_size": 24, "n_heads": 2, "sid_quantizer": "random", "sid_num_digits": 4}
SIZES |= {"sid_codebook_size": 8, "graph_edges": 12, "graph_beams": 15, "train_batch_size": 16, "warmup_steps": 2}


@pytest.fixture
def settings(options, tiny):
    return {**options, **SIZES, "cache_dir": str(tiny / "cache")}


@pytest.mark.parametrize(("digits", "published"), [(16, 8_528_384), (32, 13_581_824), (64, 23_688_704)])
def test_parameters_of_the_published_model(digits, published):
    config = build_config("RPG", "ml-100k", overrides={"sid_num_digits": digits, "sid_codebook_size": 256})

    class Ids:
        num_digits, codebook_size, num_sids = digits, 256, 0

    class Data:
        semantic_ids = Ids()

        def num(self, field):
            return 10

    with torch.device("meta"):
        model = config.model_class(config, Data())
    # The release also has a row for padding and an unused one for the end of a sequence.
    assert sum(parameter.numel() for parameter in model.parameters()) + 2 * 448 == published


def slow_log_probs(model, history: list[int]) -> torch.Tensor:
    """[m, M] for one history, one operation at a time."""
    sids = model.semantic_ids.lookup(torch.tensor(history)).tolist()
    num_digits, table = len(sids[0]), model.code_embedding
    x = torch.stack([sum(table[j, code] for j, code in enumerate(sid)) / num_digits for sid in sids])
    x = x + model.position_embedding[: len(history)]
    for layer in model.layers:
        d, heads = x.shape[1], layer.num_heads
        query, key, value = layer.query_key_value(layer.attention_norm(x)).split(d, dim=1)
        mixed = torch.zeros_like(x)
        for head in range(heads):
            part = slice(head * d // heads, (head + 1) * d // heads)
            for i in range(len(history)):
                weights = torch.softmax(key[: i + 1, part] @ query[i, part] / math.sqrt(d // heads), 0)
                mixed[i, part] = weights @ value[: i + 1, part]
        x = x + layer.attention_out(mixed)
        x = x + layer.outer(torch.nn.functional.gelu(layer.inner(layer.norm(x)), approximate="tanh"))
    state = model.norm(x)[-1]
    log_probs = []
    for j in range(num_digits):
        projected = state @ model.head_weight[j] + model.head_bias[j]
        output = state + projected * torch.sigmoid(projected)
        cosine = torch.stack([output @ code / (output.norm() * code.norm()) for code in table[j]])
        log_probs.append(torch.log_softmax(cosine / model.temperature, 0))
    return torch.stack(log_probs)


def test_scores_of_all_items(settings):
    built = build_tiny(settings, "RPG")
    _, batch = next(iter(built.loader))
    scores = built.model.full_sort_predict(batch.interaction)
    for row in (0, 7, len(scores) - 1):
        length = int(batch.interaction["item_length"][row])
        log_probs = slow_log_probs(built.model, batch.interaction["item_id_list"][row, :length].tolist())
        for item in (1, 5, 40):
            sid = built.model.semantic_ids.lookup(torch.tensor(item)).tolist()
            expected = sum(log_probs[j, code] for j, code in enumerate(sid)) / len(sid)
            assert scores[row, item].item() == pytest.approx(expected.item(), abs=1e-5)
    assert (scores[:, 0] == -torch.inf).all()  # padding


def test_loss_at_every_position_is_the_mean_over_digits_and_targets(settings):
    built = build_tiny(settings, "RPG")
    batch = built.split.train.inter_feat.cut(torch.arange(4))
    total, count = 0.0, 0
    for row in range(4):
        length = int(batch["item_length"][row])
        items = [*batch["item_id_list"][row, :length].tolist(), int(batch["item_id"][row])]
        for position in range(1, len(items)):
            log_probs = slow_log_probs(built.model, items[:position])
            sid = built.model.semantic_ids.lookup(torch.tensor(items[position])).tolist()
            total -= sum(log_probs[j, code].item() for j, code in enumerate(sid)) / len(sid)
            count += 1
    output = built.model.losses(batch)
    assert output.num_targets == count
    assert output.parts["sid"].item() == pytest.approx(total / count, abs=1e-6)


def test_the_graph_holds_the_most_similar_sids(settings):
    model = build_tiny(settings, "RPG").model
    assert model.finish_training()
    sids, table = model.semantic_ids.sids.tolist(), model.code_embedding
    cosine = torch.nn.functional.cosine_similarity

    def similarity(a, b):
        return sum((1 + cosine(table[j, x], table[j, y], dim=0).item()) / 2 for j, (x, y) in enumerate(zip(a, b)))

    for node in (0, 11, len(sids) - 1):
        expected = sorted(range(len(sids)), key=lambda other: -similarity(sids[node], sids[other]))[:12]
        assert set(model.graph[node].tolist()) == set(expected) and node in expected


def test_a_complete_graph_finds_what_scores_of_all_items_find(settings):
    built = build_tiny(settings, "RPG", graph_edges=1000)
    built.model.finish_training()
    _, batch = next(iter(built.loader))
    exhaustive = built.model.candidates(batch.interaction, 10)
    built.model.scoring, built.model.steps = "graph", 1
    walked = built.model.candidates(batch.interaction, 10)
    rows = walked.generated.rows
    assert walked.generated.num_generated.tolist() == [15] * len(rows)
    best = exhaustive.scores[:, 1:].sort(dim=1, descending=True).values
    assert torch.allclose(walked.generated.scores[:, :5], _distinct_best(exhaustive, 5), atol=1e-6)
    assert best[:, 0].allclose(walked.generated.scores[:, 0])


def _distinct_best(candidates, k):
    """[B, k] best scores of distinct SIDs."""
    best = []
    for scores in candidates.scores:
        of_sid = {}
        for item, score in enumerate(scores.tolist()):
            if item:
                of_sid.setdefault(int(candidates.semantic_ids.sid_index[item]), score)
        best.append(sorted(of_sid.values(), reverse=True)[:k])
    return torch.tensor(best)


def test_a_walk_does_not_depend_on_the_batch(settings):
    built = build_tiny(settings, "RPG", scoring="graph")
    built.model.finish_training()
    _, batch = next(iter(built.loader))
    whole = built.model.candidates(batch.interaction, 10).top_k(10).items
    parts = (batch.interaction[:9], batch.interaction[9:20])
    halves = [built.model.candidates(part, 10).top_k(10).items for part in parts]
    assert torch.equal(torch.cat(halves), whole[:20])
    for row in built.model.candidates(batch.interaction, 10).generated.rows.tolist():
        kept = [sid for sid in row if sid >= 0]
        assert len(set(kept)) == len(kept)


def test_the_graph_is_saved_with_the_weights_and_used_by_retest_and_recommend(settings):
    result = run("RPG", "tiny", **settings)
    graph = checkpoint.load(result.run_dir / "best.pt")["state_dict"]["graph"]
    assert (graph.sort(dim=1).values.diff(dim=1) > 0).all()
    walked = retest(result.run_dir, scoring="graph")
    assert walked.sid_shares["existing"] == 1 and "existing" not in result.sid_shares
    assert len(Recommender.load(result.run_dir, scoring="graph").recommend([["i1", "i2"]], k=5)[0]) == 5


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"scoring": "graph", "graph_edges": 0}, ["graph_edges"]),
        ({"scoring": "graph", "graph_beams": 5}, ["graph_beams", "10"]),
        ({"sid_collision_order": "number"}, ["sid_collision_order", "graph"]),
        ({"hidden_size": 30, "n_heads": 4}, ["hidden_size", "n_heads"]),
        ({"temperature": 0}, ["temperature", "from 1e-06"]),
    ],
)
def test_wrong_settings(wrong, words):
    with pytest.raises(UserError) as error:
        build_config("RPG", "ml-100k", overrides=wrong)
    assert all(word in str(error.value) for word in words)

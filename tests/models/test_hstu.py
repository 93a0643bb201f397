"""HSTU: what it may look at, its losses against slow references, its size, and the check for clocks."""

import math

import pytest
import torch

from recbole_diffgrm import Recommender, UserError, run
from recbole_diffgrm.data.dataset import load_dataset
from recbole_diffgrm.data.loader import TrainLoader
from recbole_diffgrm.models import build_config
from recbole_diffgrm.models.candidates import SidItemScores
from recbole_diffgrm.models.hstu import are_clocks
from tests.conftest import AMAZON_DATA, build_tiny, needs_amazon

CODES = {"item_input": "codes", "sid_quantizer": "random", "sid_num_digits": 3, "sid_codebook_size": 8}


@pytest.fixture
def options(options, tmp_path):
    return {**options, "hidden_size": 8, "n_heads": 2, "n_layers": 2, "cache_dir": str(tmp_path / "cache")}


def first_batch(config, split):
    return next(TrainLoader(config, split.train, trim=True).batches(epoch=0))


def count_parameters(model) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_published_size(options):
    options |= {"hidden_size": 64, "n_heads": 4, "n_layers": 4, "MAX_ITEM_LIST_LENGTH": 50}
    model = build_tiny(options, "HSTU").model
    assert count_parameters(model) - model.n_items * 64 == 87_080
    model = build_tiny(options, "HSTU", time_bias=False).model
    assert count_parameters(model) - model.n_items * 64 == 87_080 - 4 * 129
    model = build_tiny(options, "HSTU", **CODES).model
    assert count_parameters(model) == 87_080 + 3 * 8 * 64


@torch.inference_mode()
@pytest.mark.parametrize("changes", [{}, CODES], ids=["ids", "codes"])
def test_later_items_change_nothing(options, changes):
    _, _, model, loader = build_tiny(options, "HSTU", **changes)
    batch = next(iter(loader))[1].interaction
    before = model._encode(batch)
    position = batch["item_length"].min().item() - 2
    batch["item_id_list"][:, position + 1 :] = 7
    after = model._encode(batch)
    torch.testing.assert_close(after[:, : position + 1], before[:, : position + 1])
    assert not torch.allclose(after[:, position + 1], before[:, position + 1])


@torch.inference_mode()
def test_trimming_changes_nothing(options):
    """The constant that attention is divided by does not shrink with the batch."""
    _, _, model, loader = build_tiny(options, "HSTU")
    for index, batch in loader:
        whole = loader.samples.cut(index, 10)
        assert whole["item_id_list"].shape[1] == 10
        trimmed = model.candidates(batch.interaction, 5).dense_scores()
        torch.testing.assert_close(trimmed, model.candidates(whole, 5).dense_scores())


@torch.inference_mode()
def test_time_of_a_query_is_that_of_the_next_item(options):
    """And the last item's own: the time of what is recommended is not known."""
    _, _, model, loader = build_tiny(options, "HSTU")
    batch = next(iter(loader))[1].interaction
    biases = model._biases(batch)
    for row, (times, length) in enumerate(zip(batch["timestamp_list"].tolist(), batch["item_length"].tolist())):
        following = times[1:length] + [times[length - 1]]
        for i in range(length):
            for j in range(i + 1):
                bucket = math.floor(math.log(max(abs(following[i] - times[j]), 1)) / 0.301)
                for layer, bias in enumerate(biases):
                    expected = model.position_bias[j - i + model.longest - 1, layer] + model.time_bias[bucket, layer]
                    assert bias[row, i, j].item() == pytest.approx(expected.item())


def cosine(a, b) -> float:
    return (a @ b / (a.norm() * b.norm())).item()


def item_vector(model, item: int):
    if model.semantic_ids is None:
        return model.embedding[item]
    codes = model.semantic_ids.lookup(torch.tensor(item)).tolist()
    return torch.stack([model.embedding[digit, code] for digit, code in enumerate(codes)]).mean(dim=0)


@torch.inference_mode()
@pytest.mark.parametrize("changes", [{}, CODES, {"sample_unit": "prefix"}], ids=["ids", "codes", "prefix"])
def test_loss_is_a_softmax_of_cosines(options, changes):
    config, split, model, _ = build_tiny(options, "HSTU", num_negatives=None, **changes)
    batch = first_batch(config, split)
    states, targets = model._encode(batch), model.targets(batch)
    losses = []
    for row, position, target in zip(*map(torch.Tensor.tolist, targets)):
        scores = [cosine(states[row, position], item_vector(model, item)) / 0.05 for item in range(1, model.n_items)]
        losses.append(math.log(sum(map(math.exp, scores))) - scores[target - 1])
    output = model.losses(batch)
    assert output.num_targets == len(losses)
    assert output.parts["item"].item() == pytest.approx(sum(losses) / len(losses))


@torch.inference_mode()
def test_sampled_loss_leaves_the_target_out_of_the_negatives(options):
    config, split, model, _ = build_tiny(options, "HSTU", num_negatives=30)
    batch = first_batch(config, split)
    states, targets = model._encode(batch), model.targets(batch)
    torch.manual_seed(5)
    negatives = torch.randint(1, model.n_items, (30,)).tolist()
    assert set(negatives) & set(targets.item.tolist())
    losses = []
    for row, position, target in zip(*map(torch.Tensor.tolist, targets)):
        items = [target, *(item for item in negatives if item != target)]
        scores = [cosine(states[row, position], item_vector(model, item)) / 0.05 for item in items]
        losses.append(math.log(sum(map(math.exp, scores))) - scores[0])
    torch.manual_seed(5)
    assert model.losses(batch).parts["item"].item() == pytest.approx(sum(losses) / len(losses))


@torch.inference_mode()
@pytest.mark.parametrize("changes", [{}, CODES], ids=["ids", "codes"])
def test_items_are_ranked_by_cosine(options, changes):
    _, _, model, loader = build_tiny(options, "HSTU", **changes)
    batch = next(iter(loader))[1].interaction
    candidates = model.candidates(batch, 10)
    state = model._encode(batch)[0, batch["item_length"][0] - 1]
    expected = [cosine(state, item_vector(model, item)) / 0.05 for item in range(1, model.n_items)]
    assert candidates.dense_scores()[0, 1:].tolist() == pytest.approx(expected)
    assert (candidates.top_k(model.n_items - 1).items > 0).all()
    assert isinstance(candidates, SidItemScores) == bool(changes)


# Clocks


def are_clocks_of(*sequences: list[float]) -> bool:
    user = torch.tensor([number for number, times in enumerate(sequences) for _ in times])
    return are_clocks(user, torch.tensor([time for times in sequences for time in times]))


@pytest.mark.parametrize(
    "sequences",
    [
        [[0, 1, 2, 3], [0, 1, 2]],  # positions
        [[1, 2, 3], [4, 5, 6]],  # line numbers
        [[0.1, 0.3, 0.9], [0.2, 0.4]],  # scaled to 0..1
        [[5, 5, 5], [5, 5]],
        [[0, 1, 4], [0, 2, 3], [1, 2]],  # positions, some interactions filtered out
        [[3], [900]],
    ],
)
def test_no_clocks(sequences):
    assert not are_clocks_of(*sequences)


@pytest.mark.parametrize(
    "sequences",
    [
        [[881250949, 881250949, 881251000], [891717742, 891717800]],  # seconds
        [[1383696000, 1383696000], [1383696000, 1383782400], [1356998400, 1357084800], [1380000000]],  # days
        [[15000, 15001, 15004], [15002, 15002]],  # days
        [[900, 1000]],  # a single user
    ],
)
def test_clocks(sequences):
    assert are_clocks_of(*sequences)


def clocks_of(dataset: str, **settings) -> bool:
    flat = load_dataset(build_config("Pop", dataset, overrides=settings))
    flat._change_feat_format()
    return are_clocks(flat.inter_feat.flat.user, flat.inter_feat.flat.features["timestamp"])


def test_ml_100k_has_clocks():
    assert clocks_of("ml-100k")


@needs_amazon
def test_prepared_amazon_data_have_positions():
    assert not clocks_of("Amazon_Beauty", data_path=str(AMAZON_DATA))


@pytest.fixture
def no_clocks(options, tmp_path):
    """The same interactions with positions for timestamps."""
    source = (options["config_files"][0].parent / "tiny" / "tiny.inter").read_text().splitlines()
    counts: dict[str, int] = {}
    lines = source[:1]
    for user, item, rating, _ in (line.split("\t") for line in source[1:]):
        lines.append(f"{user}\t{item}\t{rating}\t{counts.get(user, 0)}")
        counts[user] = counts.get(user, 0) + 1
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "tiny.inter").write_text("\n".join(lines) + "\n")
    return {**options, "data_path": str(tmp_path), "load_col": {"inter": ["user_id", "item_id", "timestamp"]}}


def test_time_bias_follows_the_data(options, no_clocks):
    assert build_tiny(options, "HSTU").model.time_bias is not None
    assert build_tiny(options, "HSTU", time_bias=False).model.time_bias is None
    assert build_tiny(no_clocks, "HSTU").model.time_bias is None
    with pytest.raises(UserError, match="time_bias: timestamps of tiny are no clocks"):
        build_tiny(no_clocks, "HSTU", time_bias=True)


# Runs


@pytest.mark.parametrize("changes", [{}, CODES], ids=["ids", "codes"])
def test_it_runs_and_recommends(options, changes):
    settings = {**options, **changes}
    result = run("HSTU", "tiny", settings.pop("config_files"), **settings)
    assert ("sid_recall@10" in result.test["all"]) == bool(changes)
    assert "time bias on" in (result.run_dir / "log.txt").read_text()
    recommended = Recommender.load(result.run_dir).recommend([["i1", "i2"], ["i5"]], k=3)
    assert [len(items) for items in recommended] == [3, 3]


@torch.inference_mode()
def test_a_history_without_times_is_one_moment(options):
    _, _, model, loader = build_tiny(options, "HSTU")
    batch = next(iter(loader))[1].interaction
    batch["timestamp_list"][:] = 77
    expected = model.candidates(batch, 5).dense_scores()
    del batch.interaction["timestamp_list"]
    assert torch.equal(model.candidates(batch, 5).dense_scores(), expected)

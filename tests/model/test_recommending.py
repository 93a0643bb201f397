"""From histories to items: DiffGRM's lists and scores, and the floors it has to beat."""

import io
import json

import numpy as np
import pytest
import torch
from tqdm import tqdm

from recbole_diffgrm import UserError, compare, run
from recbole_diffgrm.cli import main
from recbole_diffgrm.config.config import build_config
from recbole_diffgrm.data.dataset import load_dataset
from recbole_diffgrm.data.loader import EvalLoader
from recbole_diffgrm.decoding.scores import mask_scores, top_items
from recbole_diffgrm.evaluation.evaluate import evaluate
from recbole_diffgrm.evaluation.ranking import NOT_RANKED, target_ranks
from recbole_diffgrm.running.comparison import per_user
from recbole_diffgrm.running.inputs import attach
from tests.conftest import write_dataset


def made(options: dict, model: str = "DiffGRM", **changes):
    """(config, model with random weights in double precision, loader of the test users)."""
    settings = {**options, **changes}
    config = build_config(model, "tiny", settings.pop("config_files"), settings)
    dataset = load_dataset(config)
    parts = dataset.build()
    attach(config, dataset, parts)
    torch.manual_seed(0)
    made = config.model_class(config, parts[0]).double().eval()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return config, made, EvalLoader(config, parts[2], trim=True)


POLICIES = ["catalogue", "paper", "released", "fixed_order"]


@torch.inference_mode()
@pytest.mark.parametrize("decoding", POLICIES)
def test_neither_batch_nor_chunk_nor_padding_matters(options, decoding):
    _, model, loader = made(options, decoding=decoding, beam_size=10)
    samples = loader.samples
    together = model.rank(samples.cut(torch.arange(60), 10), 12)
    model.decoding_memory = 1e-9  # one user at a time
    chunked = model.rank(samples.cut(torch.arange(60)), 12)
    width = chunked.rows.shape[1]
    assert torch.equal(chunked.items, together.items)
    assert torch.equal(chunked.rows, together.rows[:, :width])
    assert torch.allclose(chunked.item_score, together.item_score, atol=1e-9)
    for user in (0, 31, 59):
        alone = model.rank(samples.cut(torch.tensor([user])), 12)
        assert torch.equal(alone.items[0], together.items[user])


@torch.inference_mode()
@pytest.mark.parametrize("model", ["DiffGRM", "HistoryCopy"])
@pytest.mark.parametrize("repeatable", [True, False])
@pytest.mark.parametrize("changes", [{}, {"sid_codes": 2, "sid_digits": 2}, {"sid_digits": 1}], ids=str)
def test_scores_of_all_items_give_the_same_ranking(options, model, repeatable, changes):
    """IDs shared by one item or two, by ten, and of a single digit."""
    config, model, loader = made(options, model, repeatable=repeatable, **changes)
    for _, batch in loader:
        seen = None if repeatable else batch.seen
        lists = model.rank(batch.interaction, 40, seen)
        scores = model.full_sort_predict(batch.interaction)
        assert scores.shape == (len(batch.target), 41)
        assert all(len(set(row.tolist())) == 41 for row in scores), "a tie"
        assert torch.equal(model.predict(batch.interaction), scores.gather(1, batch.target[:, None]).squeeze(1))
        scores = mask_scores(scores, seen)
        assert torch.equal(top_items(scores, 40), lists.items)
        if repeatable:
            assert (lists.items > 0).all()
        else:
            taken = set(zip(*(part.tolist() for part in batch.seen)))
            assert not any((row, item) in taken for row, items in enumerate(lists.items.tolist()) for item in items)
    found = evaluate(config, model, loader)
    ranks = []
    for _, batch in loader:
        scores = mask_scores(model.full_sort_predict(batch.interaction), None if repeatable else batch.seen)
        ranks.append(target_ranks(scores, batch.target))
    ranks = torch.cat(ranks)
    expected = torch.where(ranks <= 10, ranks, NOT_RANKED)  # the lists of an evaluation end there
    assert found.ranks[torch.cat([index for index, _ in loader])].tolist() == expected.tolist()


@torch.inference_mode()
@pytest.mark.parametrize("repeatable", [True, False])
def test_metrics_on_ids(options, repeatable):
    """Against a loop over the users: an ID counts once, and not at all where all its items are left out."""
    config, model, loader = made(options, repeatable=repeatable, sid_codes=4, sid_digits=2, topk=[3, 10])
    found = evaluate(config, model, loader)
    sids = [None, *map(tuple, model.catalogue.sids(torch.arange(1, 41)).tolist())]
    ranks, shared, own = [], [], 0
    for index, batch in loader:
        generated = model.generate(batch.interaction, validation=False)
        for place, user in enumerate(index.tolist()):
            seen = {int(item) for row, item in zip(*batch.seen) if row == place and not repeatable}
            ids = [tuple(model.catalogue.lattice_ids[row].tolist()) for row in generated.rows[place] if row >= 0]
            ids = [sid for sid in ids if any(sids[item] == sid and item not in seen for item in range(1, 41))]
            own += min(10, sum(sids[item] in ids and item not in seen for item in range(1, 41)))
            target = sids[batch.target[place]]
            ranks.append((user, ids.index(target) + 1 if target in ids else 10**9))
            shared.append(sids.count(target) > 1)
    ranks = np.array([rank for _, rank in sorted(ranks)])
    for k in (3, 10):
        assert found.metrics[f"sid_recall@{k}"] == pytest.approx(np.mean(ranks <= k))
        gain = np.where(ranks <= k, 1 / np.log2(ranks + 1.0), 0)
        assert found.metrics[f"sid_ndcg@{k}"] == pytest.approx(gain.mean())
    shares = {"existing": 1, "duplicates": 0, "filled": 1 - own / 600, "shared_targets": np.mean(shared)}
    assert found.sid_shares == pytest.approx(shares)
    assert found.metrics["sid_recall@10"] > found.metrics["recall@10"]


@torch.inference_mode()
def test_ids_that_do_not_exist_are_counted(options):
    config, model, loader = made(options, decoding="paper", sid_digits=2)
    found = evaluate(config, model, loader).sid_shares
    ranked = model.search(loader.samples.cut(torch.arange(60)), model.beam)
    written = set(map(tuple, model.catalogue.lattice_ids.tolist()))
    ids = [list(map(tuple, user)) for user in ranked.ids.tolist()]
    distinct = sum(len(set(user)) for user in ids)
    assert found["duplicates"] == pytest.approx(1 - distinct / sum(map(len, ids)))
    assert found["existing"] == pytest.approx(sum(len(set(user) & written) for user in ids) / distinct)
    assert 0 < found["existing"] < 1 and found["duplicates"] > 0


@torch.inference_mode()
def test_popular_items_that_fill_lists_are_counted(options):
    """A history of few IDs: most of the list is not the model's own."""
    config, model, loader = made(options, "HistoryCopy")
    found = evaluate(config, model, loader)
    own = 0
    for user in range(60):
        batch = loader.samples.cut(torch.tensor([user]))
        ids = set(map(tuple, model.catalogue.sids(batch["item_id_list"][0, : batch["item_length"][0]]).tolist()))
        own += min(10, sum(tuple(model.catalogue.sids(torch.tensor(item)).tolist()) in ids for item in range(1, 41)))
    assert found.sid_shares["filled"] == pytest.approx(1 - own / 600)
    assert 0.2 < found.sid_shares["filled"] < 1


@torch.inference_mode()
def test_keys_and_values_are_not_copied_for_beams(options, monkeypatch):
    _, model, loader = made(options)
    batch, seen = loader.samples.cut(torch.arange(60)), []
    decode = model.network.decode

    def watched(digits, history, wanted=None):
        seen.append((digits.shape, {part.shape[0] for part in (*history.keys, *history.values)}))
        return decode(digits, history, wanted)

    monkeypatch.setattr(model.network, "decode", watched)
    model.rank(batch, 10)
    assert [(len(shape), users) for shape, users in seen] == [(3, {60})] * 3  # one call a step for all users
    assert [shape[1] > 1 for shape, _ in seen] == [False, True, True]


def test_the_bar_counts_users(options, monkeypatch):
    from recbole_diffgrm.evaluation import evaluate as module

    bars = []

    def bar(**settings):
        bars.append(tqdm(**{**settings, "disable": False, "file": io.StringIO()}))
        return bars[-1]

    monkeypatch.setattr(module, "tqdm", bar)
    config, model, loader = made(options, eval_batch_size=25)
    evaluate(config, model, loader, label="test")
    assert (bars[0].n, bars[0].total, bars[0].unit, bars[0].desc) == (60, 60, "user", "test")


def test_validation_alone(options):
    """The shares of IDs come from validation then."""
    result = run("DiffGRM", "tiny", **options, eval_args={"split": {"LS": "valid_only"}})
    assert result.test == {} and result.sid_shares["existing"] == 1
    assert result.sid_shares == result.curve[result.best_epoch - 1]["sid_shares"]


def test_beams_of_validation_and_test(options):
    config, model, loader = made(options, beam_size=[20, 15], valid_beam_size=12)
    widths = []
    model.search = lambda part, used: widths.append(used) or type(model).search(model, part, used)
    evaluate(config, model, loader, validation=True)
    evaluate(config, model, loader)
    assert set(widths) == {(12,), (20, 15)}


def test_a_catalogue_smaller_than_the_list(options, tmp_path):
    data = write_dataset(tmp_path / "few", items=6)
    settings = {**options, "config_files": [data / "tiny.yaml"], "data_path": str(data)}
    result = run("DiffGRM", "tiny", **settings, save_topk=10)
    assert result.test["recall@10"] == 1  # every item is in the list
    assert result.test["sid_recall@10"] == 1
    lines = (result.run_dir / "topk.tsv").read_text().splitlines()[1:]
    assert len(lines) == 60 * 6


def test_every_item_with_the_same_id(options, tmp_path):
    """The ranking is then one by popularity."""
    table = tmp_path / "same.sid"
    table.write_text("item_id:token\tsid:token_seq\n" + "".join(f"i{i}\t3 1\n" for i in range(40)))
    changes = {"sid_file": str(table), "sid_digits": 2, "sid_codes": 4}
    settings = {key: value for key, value in options.items() if key != "config_files"}
    config = tmp_path / "plain.yaml"
    config.write_text("models: {DiffGRM: {hidden_size: 16, inner_size: 32, n_heads: 2, decoder_layers: 2}}\n")
    settings |= {"config_files": [config], "cache_dir": str(tmp_path / "cache")}
    by_ids = run("DiffGRM", "tiny", **settings, **changes)
    popular = run("Pop", "tiny", **{key: value for key, value in settings.items() if key != "cache_dir"})
    assert by_ids.test["ndcg@10"] == popular.test["ndcg@10"]
    assert by_ids.test["sid_ndcg@5"] == 1
    assert by_ids.sid_shares["shared_targets"] == 1


def test_history_copy(options):
    """Against a loop: IDs of the history from its end, each once; then items by popularity in training."""
    _, model, loader = made(options, "HistoryCopy", sid_codes=4, sid_digits=2)
    sids = [None, *map(tuple, model.catalogue.sids(torch.arange(1, 41)).tolist())]
    flat = loader.samples.flat
    held_out = {}
    for row, user in enumerate(flat.user.tolist()):
        held_out.setdefault(user, []).append(row)
    training = [row for rows in held_out.values() for row in rows[:-2]]
    popularity = np.bincount(flat.item[training].numpy(), minlength=41)
    for user in range(60):
        batch = loader.samples.cut(torch.tensor([user]))
        history = batch["item_id_list"][0, : batch["item_length"][0]].tolist()
        ids = list(dict.fromkeys(sids[item] for item in reversed(history)))
        every = sorted(range(1, 41), key=lambda item: (-popularity[item], item))
        expected = [item for sid in ids for item in every if sids[item] == sid]
        expected += [item for item in every if item not in expected]
        lists = model.rank(batch, 40)
        assert lists.items[0].tolist() == expected
        assert [tuple(model.catalogue.lattice_ids[row].tolist()) for row in lists.rows[0] if row >= 0] == ids


def test_pop(options):
    _, model, loader = made(options, "Pop")
    flat, counts = loader.samples.flat, np.zeros(41)
    rows_of = {}
    for row, user in enumerate(flat.user.tolist()):
        rows_of.setdefault(user, []).append(row)
    for rows in rows_of.values():
        for row in rows[:-2]:  # without the targets of validation and test
            counts[flat.item[row]] += 1
    batch = loader.samples.cut(torch.arange(3))
    assert model.full_sort_predict(batch).tolist() == [counts.tolist()] * 3
    assert model.predict(batch).tolist() == counts[batch["item_id"]].tolist()


@pytest.mark.parametrize("model", ["Pop", "HistoryCopy"])
def test_floors_learn_nothing(options, model):
    result = run(model, "tiny", **options)
    assert (result.epochs, result.best_epoch, result.parameters, result.curve) == (0, None, 0, [])
    assert ("sid_ndcg@10" in result.test) == (model == "HistoryCopy")
    assert set(result.valid) == set(result.test)
    again = run(model, "tiny", **options, resume=True)
    assert again.run_dir == result.run_dir


def test_both_levels_side_by_side(options, capsys):
    """Every number stands under the name of its level, in the tables and in all files."""
    comparison = compare(["DiffGRM", "SASRec", "Pop"], "tiny", **options, seeds=[1, 2])
    tables = comparison.tables()
    new = "item level, items of the history left out"
    assert list(tables) == ["item level", new, "SID level"]
    assert "sid_" not in tables[new] and "Pop" in tables[new]
    assert "sid_" not in tables["item level"] and "SASRec" in tables["item level"]
    assert "sid_ndcg@10" in tables["SID level"] and "SASRec" not in tables["SID level"]
    of_model = {row.model: row for row in comparison.rows}
    assert f"{of_model['DiffGRM'].values('sid_ndcg@10').mean():.4f}" in tables["SID level"]
    text = (comparison.path / "comparison.md").read_text()
    assert "## Item level\n" in text and "## Item level, items" in text and "## SID level" in text
    content = json.loads((comparison.path / "comparison.json").read_text())
    assert "sid_ndcg@10" in content["models"][0]["mean"] and "sid_ndcg@10" not in content["models"][1]["mean"]
    header, first, *_ = (comparison.path / "comparison.csv").read_text().splitlines()
    assert len(header.split(",")) == len(first.split(","))
    with np.load(of_model["DiffGRM"].runs[0].run_dir / "ranks.npz") as saved:
        rank, sid_rank = saved["rank"], saved["sid_rank"]
    assert (sid_rank <= rank).all()
    for row in comparison.rows:
        values = row.values("ndcg@10", new=True)
        assert values == pytest.approx([per_user([run], "rank_new").mean() for run in row.runs])
        assert f"{values.mean():.4f}" in tables[new]
    assert comparison.best_new.p_value_new is None
    assert np.mean(sid_rank <= 5) == pytest.approx(of_model["DiffGRM"].runs[0].test["sid_recall@5"])


def test_command_line_shows_both_levels(options, capsys):
    settings = {**options, "config_files": str(options["config_files"][0])}
    assert main(["--dataset=tiny", *(f"--{key}={value}" for key, value in settings.items())]) == 0
    printed = capsys.readouterr().out
    item, sid = printed.split("DiffGRM, SID level")
    assert "DiffGRM, item level" in item and "ndcg@10" in item and "sid_" not in item
    assert "sid_recall@5" in sid and "100.0% of the different IDs generated exist" in sid
    assert "0.0% of the IDs generated repeat an earlier one" in sid


def test_selection_on_ids(options):
    result = run("DiffGRM", "tiny", **options, valid_metric="0.8*sid_ndcg@10+0.2*sid_recall@10")
    best = max(result.curve, key=lambda entry: entry["score"])
    assert best["score"] == pytest.approx(0.8 * best["valid"]["sid_ndcg@10"] + 0.2 * best["valid"]["sid_recall@10"])
    with pytest.raises(UserError, match="sid_ndcg@10 is not among"):
        run("SASRec", "tiny", **options, valid_metric="sid_ndcg@10")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beam_size": 8}, "beam_size: 8 IDs are too few for topk 10"),
        ({"valid_beam_size": [32, 8]}, "valid_beam_size: 8 IDs are too few"),
        ({"beam_size": [16, 32]}, "beam_size must be"),
        ({"beam_size": [32, 16, 12, 12, 12]}, "beam_size: 5 widths, but an ID has 4 digits"),
        ({"decoding": "paper", "merge": "logsumexp"}, "merge: only decoding catalogue reads it"),
    ],
    ids=str,
)
def test_beams_that_make_no_sense(changes, message):
    with pytest.raises(UserError, match=message):
        build_config("DiffGRM", "ml-100k", overrides=changes)

"""Metrics on semantic IDs and the shares beside them, against loops over the users and in whole runs."""

import numpy as np
import pytest
import torch

from recbole_diffgrm import UserError, run
from recbole_diffgrm.cli.main import main
from recbole_diffgrm.evaluation.evaluator import evaluate
from recbole_diffgrm.evaluation.sid_metrics import SID_SHARES, describe_shares, is_sid_metric, sid_metrics, sid_shares
from recbole_diffgrm.models.candidates import NOT_RANKED
from tests.conftest import build_tiny


def test_metrics_from_ranks():
    ranks = torch.tensor([1, 4, NOT_RANKED, 2], dtype=torch.int32)
    assert sid_metrics(ranks, [1, 4]) == pytest.approx(
        {
            "sid_recall@1": 0.25,
            "sid_recall@4": 0.75,
            "sid_ndcg@1": 0.25,
            "sid_ndcg@4": (1 + 1 / np.log2(5) + 1 / np.log2(3)) / 4,
        }
    )
    assert is_sid_metric("sid_ndcg@4") and not is_sid_metric("ndcg@4")


def test_shares_from_counts():
    counts = {
        "users": 4,
        "generated": 40,
        "distinct": 30,
        "existing": 24,
        "generated_items": 10,
        "shared_targets": 1,
    }
    shares = sid_shares(counts, 5)
    assert shares == {"existing": 0.8, "duplicates": 0.25, "filled": 0.5, "shared_targets": 0.25}
    lines = describe_shares(shares).splitlines()
    assert [line.split()[0] for line in lines] == ["80.0%", "25.0%", "50.0%", "25.0%"]
    assert [line.split("% ")[1] for line in lines] == [words for name, words in SID_SHARES.items() if name != "scored"]
    assert sid_shares(dict.fromkeys(counts, 0), 5)["existing"] == 0  # nobody: no division by 0
    assert sid_shares({**counts, "scored": 30, "scored_at_most": 400}, 5)["scored"] == 30 / 400


@torch.inference_mode()
@pytest.mark.parametrize("ranking", ["all", "unseen"])
def test_metrics_on_sids(options, ranking):
    """Against a loop: a SID counts once, and not at all if all its items are filtered."""
    config, _, model, loader = build_tiny(
        options, repeatable=ranking == "all", sid_codebook_size=4, sid_num_digits=2, topk=[3, 10]
    )
    evaluation = evaluate(config, model, loader)[ranking]
    sids = [None, *map(tuple, model.semantic_ids.lookup(torch.arange(1, 41)).tolist())]
    ranks, shared, num_generated = {}, [], 0
    for index, batch in loader:
        generated = model.generate(batch.interaction, model.beam_widths)
        for row, user in enumerate(index.tolist()):
            seen = set(batch.seen[1][batch.seen[0] == row].tolist()) if ranking == "unseen" else set()
            unseen = [item for item in range(1, 41) if item not in seen]
            ranked = [tuple(model.semantic_ids.sids[sid].tolist()) for sid in generated.rows[row] if sid >= 0]
            ranked = [sid for sid in ranked if any(sids[item] == sid for item in unseen)]
            num_generated += min(10, sum(sids[item] in ranked for item in unseen))
            target = sids[batch.target[row]]
            ranks[user] = ranked.index(target) + 1 if target in ranked else NOT_RANKED
            shared.append(sids.count(target) > 1)
    ranks = np.array([ranks[user] for user in range(60)])
    assert evaluation.sid_ranks.tolist() == ranks.tolist()
    assert evaluation.named_ranks(ranking).keys() == {f"item_{ranking}", f"sid_{ranking}"}
    for k in (3, 10):
        assert evaluation.metrics[f"sid_recall@{k}"] == pytest.approx(np.mean(ranks <= k))
        gain = np.where(ranks <= k, 1 / np.log2(ranks + 1.0), 0)
        assert evaluation.metrics[f"sid_ndcg@{k}"] == pytest.approx(gain.mean())
    shares = {"existing": 1, "duplicates": 0, "filled": 1 - num_generated / 600, "shared_targets": np.mean(shared)}
    assert evaluation.sid_shares == pytest.approx(shares)
    assert evaluation.metrics["sid_recall@10"] > evaluation.metrics["recall@10"]


@torch.inference_mode()
def test_sids_that_do_not_exist_are_counted(options):
    config, _, model, loader = build_tiny(options, decoding="unconstrained", sid_num_digits=2)
    shares = evaluate(config, model, loader)["all"].sid_shares
    beams = model.generate_beams(loader.samples.cut(torch.arange(60)))
    existing = set(map(tuple, model.semantic_ids.sids.tolist()))
    generated = [list(map(tuple, user)) for user in beams.sids.tolist()]
    distinct = sum(len(set(user)) for user in generated)
    assert shares["duplicates"] == pytest.approx(1 - distinct / sum(map(len, generated)))
    assert shares["existing"] == pytest.approx(sum(len(set(user) & existing) for user in generated) / distinct)
    assert 0 < shares["existing"] < 1 and shares["duplicates"] > 0


@torch.inference_mode()
def test_popular_items_that_fill_lists_are_counted(options):
    """A history has few SIDs: most of the list is popular items."""
    config, _, model, loader = build_tiny(options, "HistoryCopy")
    shares = evaluate(config, model, loader)["all"].sid_shares
    sids = list(map(tuple, model.semantic_ids.lookup(torch.arange(41)).tolist()))
    num_generated = 0
    for user in range(60):
        batch = loader.samples.cut(torch.tensor([user]))
        of_history = {sids[item] for item in batch["item_id_list"][0, : batch["item_length"][0]].tolist()}
        num_generated += min(10, sum(sids[item] in of_history for item in range(1, 41)))
    assert shares["filled"] == pytest.approx(1 - num_generated / 600)
    assert 0.2 < shares["filled"] < 1


def test_shares_of_validation_where_there_is_no_test(options):
    result = run("DiffGRM", "tiny", **options, eval_args={"split": {"LS": "valid_only"}})
    assert result.test == {} and result.sid_shares["existing"] == 1
    assert result.sid_shares == result.curve[result.best_epoch - 1]["sid_shares"]


def test_selection_by_sid_metrics(options):
    result = run("DiffGRM", "tiny", **options, valid_metric="0.8*sid_ndcg@10+0.2*sid_recall@10")
    best = max(result.curve, key=lambda entry: entry["score"])
    assert best["score"] == pytest.approx(0.8 * best["valid"]["sid_ndcg@10"] + 0.2 * best["valid"]["sid_recall@10"])
    with pytest.raises(UserError, match=r"valid_metric.*sid_ndcg@10"):
        run("SASRec", "tiny", **options, valid_metric="sid_ndcg@10")


@pytest.mark.slow
def test_every_item_with_the_same_sid(options, tmp_path):
    """The ranking is then one by popularity."""
    table = tmp_path / "same.sid"
    table.write_text("item_id:token\tsid:token_seq\n" + "".join(f"i{i}\t3 1\n" for i in range(40)))
    plain = tmp_path / "plain.yaml"
    plain.write_text("models: {DiffGRM: {hidden_size: 16, inner_size: 32, n_heads: 2, decoder_layers: 2}}\n")
    settings = {**options, "config_files": [plain]}
    sids = {"sid_file": str(table), "sid_num_digits": 2, "sid_codebook_size": 4, "cache_dir": str(tmp_path / "cache")}
    by_sid, popular = run("DiffGRM", "tiny", **settings, **sids), run("Pop", "tiny", **settings)
    for ranking in ("all", "unseen"):
        assert by_sid.test[ranking]["ndcg@10"] == popular.test[ranking]["ndcg@10"]
    assert by_sid.test["all"]["sid_ndcg@5"] == 1
    assert by_sid.sid_shares["shared_targets"] == 1


def test_command_line_shows_both_levels(options, capsys):
    """Of DiffGRM, which is the default model."""
    settings = {**options, "config_files": options["config_files"][0]}
    assert main(["--dataset=tiny", *(f"--{key}={value}" for key, value in settings.items())]) == 0
    item, sid = capsys.readouterr().out.split("DiffGRM, SID level")
    assert "DiffGRM, item level" in item and "ndcg@10" in item and "sid_" not in item
    assert "sid_recall@5" in sid
    assert f"100.0% {SID_SHARES['existing']}" in sid and f"  0.0% {SID_SHARES['duplicates']}" in sid

"""Splits, sampled items and groups, from the command line to the files of a run."""

import csv
import json
import logging
from pathlib import Path

import numpy as np
import pytest

from recbole_diffgrm import UserError, compare, retest, run
from recbole_diffgrm.cli.main import main
from recbole_diffgrm.evaluation.significance import ndcg_at
from recbole_diffgrm.experiments.result import RunResult
from recbole_diffgrm.serving.recommender import Recommender

BY_TIME = {"split": {"TS": [0.7, 0.1, 0.2]}}


def read_rows(options: dict) -> list[list[str]]:
    path = options["config_files"][0].parent / "tiny" / "tiny.inter"
    return [line.split("\t") for line in path.read_text().splitlines()]


def test_several_targets_of_a_user(options):
    """Each is a row of its own, in the ranks, the lists and the groups."""
    result = run("SASRec", "tiny", **options, eval_args=BY_TIME, save_topk=10, num_valid_users=3)
    statistics = result.statistics
    with np.load(result.run_dir / "ranks.npz") as saved:
        users, targets, ranks = saved["user"], saved["target"], saved["item_all"]
    assert len(ranks) == statistics["test_targets"] > statistics["test_users"] == len(set(users))
    assert statistics["valid_users"] == 3  # users, with all their targets
    assert ndcg_at(ranks).mean() == pytest.approx(result.test["all"]["ndcg@10"])
    lists: dict[int, list[str]] = {}
    with (result.run_dir / "topk.tsv").open() as file:
        for line in csv.DictReader(file, delimiter="\t"):
            assert users[int(line["row"])] == line["user_id"]
            lists.setdefault(int(line["row"]), []).append(line["item_id"])
    for row, (target, rank) in enumerate(zip(targets, ranks)):
        assert (lists[row].index(target) + 1 if target in lists[row] else None) == (rank if rank <= 10 else None)
    for ranking, groups in result.groups.items():
        for lines in groups.values():
            assert sum(line["targets"] for line in lines) == len(ranks)
            mean = np.average([line["ndcg@10"] for line in lines], weights=[line["targets"] for line in lines])
            assert mean == pytest.approx(result.test[ranking]["ndcg@10"])
    assert RunResult.load(result.run_dir) == result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("DiffGRM", {}),
        ("DiffGRM", {"sample_unit": "sequence", "preset": "item", "sid_text_encoder": "bundled"}),
        ("HSTU", {}),
        ("ActionPiece", {}),
        ("RecJPQ", {"sid_quantizer": "svd"}),
        ("S3Rec", {"pretrain_epochs": 1}),
        ("GRU4Rec", {"loss_type": "BPR"}),
    ],
)
@pytest.mark.parametrize("split", [{"TS": [0.7, 0.1, 0.2]}, {"RS": [0.6, 0.2, 0.2]}], ids=str)
def test_models_on_other_splits(options, model, changes, split):
    result = run(model, "tiny", **{**options, "epochs": 1, **changes}, eval_args={"split": split})
    assert result.valid and len(np.load(result.run_dir / "ranks.npz")["user"]) == result.statistics["test_targets"]
    if model == "DiffGRM":
        assert len(Recommender.load(result.run_dir).recommend([["i1", "i2"]], 5)[0]) == 5


@pytest.mark.slow
def test_ready_made_split(options, tmp_path, capsys):
    """Files that hold the split by hand; other content is another run."""
    header, *rows = read_rows(options)
    folder = tmp_path / "data" / "mine"
    folder.mkdir(parents=True)
    rows.sort(key=lambda row: float(row[3]))
    parts = {"train": rows[:300], "dev": rows[300:380], "eval": rows[380:]}
    for name, part in parts.items():
        (folder / f"mine.{name}.inter").write_text("\n".join("\t".join(row) for row in [header, *part]) + "\n")
    command = [
        "--model=SASRec",
        "--dataset=mine",
        f"--data_path={tmp_path / 'data'}",
        f"--output_dir={options['output_dir']}",
        "--benchmark_filename=[train, dev, eval]",
        "--epochs=1",
        "--show_progress=False",
    ]
    assert main(command) == 0
    assert main([*command[:-3], "--benchmark_filename=[train, dev, test]"]) == 2
    assert "mine.test.inter does not exist" in capsys.readouterr().err
    lines = (folder / "mine.eval.inter").read_text().splitlines()
    (folder / "mine.eval.inter").write_text("\n".join(lines[:-1]) + "\n")
    assert main(command) == 0
    runs = sorted((Path(options["output_dir"]) / "mine").iterdir())
    assert len(runs) == 2 and len({path.name.rsplit("-")[-1] for path in runs}) == 2
    before = {row[0] for row in rows[:380]}
    counts = {RunResult.load(path).statistics["test_targets"] for path in runs}
    assert max(counts) == sum(row[0] in before for row in parts["eval"])


@pytest.mark.slow
def test_sampled_comparison(options, capsys, caplog):
    """Every model against the same items; nothing of it can be taken for a ranking of all items."""
    options = {**options, "eval_args": "{mode: uni20}", "config_files": str(options["config_files"][0])}
    with caplog.at_level(logging.WARNING):
        code = main(
            ["--model=SASRec,DiffGRM,HistoryCopy", "--dataset=tiny", *(f"--{k}={v}" for k, v in options.items())]
        )
    assert code == 0
    assert "Krichene" in caplog.text and "uni20" in caplog.text
    printed = capsys.readouterr().out
    assert "sampled items (uni20)" in printed and "all items" not in printed
    (folder,) = (Path(options["output_dir"]) / "tiny").glob("comparison-*")
    text = (folder / "comparison.md").read_text()
    assert "Item level, sampled items (uni20)\n" in text and "all items" not in text and "SID level" not in text
    content = json.loads((folder / "comparison.json").read_text())
    assert content["mode"] == "uni20"
    lines = list(csv.DictReader((folder / "comparison.csv").read_text().splitlines()))
    assert [line["mode"] for line in lines] == ["uni20"] * 3
    for row in content["models"]:
        (of_run,) = row["runs"]
        result = RunResult.load(Path(of_run["run_dir"]))
        assert result.config["eval_args"]["mode"] == "uni20"
        ranks = np.load(result.run_dir / "ranks.npz")["item_all"]
        assert ranks.max() <= 21 and not any(name.startswith("sid_") for name in result.test["all"])
        assert row["groups"]["all"] == result.groups["all"]
        (first, *_) = row["groups"]["all"]["history_length"]
        assert f"| {first['group']} " in text and f"{first['ndcg@10']:.4f}" in text


def test_validation_and_test_may_differ(options, capsys):
    settings = {**options, "config_files": str(options["config_files"][0])}
    command = ["--model=HistoryCopy", "--dataset=tiny", *(f"--{key}={value}" for key, value in settings.items())]
    assert main([*command, "--eval_args={mode: {valid: pop10, test: full}}"]) == 0
    printed = capsys.readouterr().out
    assert "validation, pop10" in printed and "test, all items" in printed and "history length" in printed
    (path,) = (Path(options["output_dir"]) / "tiny").iterdir()
    result = RunResult.load(path)
    assert "sid_ndcg@10" in result.test["all"] and "sid_ndcg@10" not in result.valid


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("{eval_args: {mode: uni20}}", "eval_args.*uni20.*same way"),
        ("{eval_args: {split: {RS: [8, 1, 1]}}}", "eval_args.*RS.*same way"),
        ("{eval_args: {split: {RS: [8, 1, 0]}}}", "needs test users"),
        ("{rm_dup_inter: first}", "rm_dup_inter.*same way"),
    ],
)
def test_what_cannot_be_compared(options, tmp_path, settings, words):
    other = tmp_path / "other.yaml"
    other.write_text(f"models: {{Pop: {settings}}}\n")
    options["config_files"].append(other)
    with pytest.raises(UserError, match=words):
        compare(["SASRec", "Pop"], "tiny", **options)


def test_drawn_test_users(options):
    changes = {"num_test_users": 20, "epochs": 1}
    first = run("SASRec", "tiny", **{**options, **changes})
    second = run("Pop", "tiny", **{**options, **changes}, seed=7)
    users, others = (np.load(result.run_dir / "ranks.npz")["user"].tolist() for result in (first, second))
    assert users == others and len(set(users)) == 20  # whatever the seed: comparisons are paired
    assert (first.statistics["test_users"], first.statistics["all_test_users"]) == (20, 60)
    assert first.statistics["test_targets"] == 60  # of the data
    assert sum(group["targets"] for group in first.groups["all"]["history_length"]) == 20
    for ranking, metrics in first.test.items():
        for name, (low, high) in first.test_intervals[ranking].items():
            assert low <= metrics[name] <= high and low < high
        assert first.test_intervals[ranking].keys() == metrics.keys()
    assert RunResult.load(first.run_dir).test_intervals["all"]["ndcg@10"] == list(
        first.test_intervals["all"]["ndcg@10"]
    )
    printed = str(first)
    assert "a sample of 20 of 60 test users" in printed and "95 % interval, all items" in printed
    on_all = retest(first.run_dir, num_test_users=None)
    assert on_all.statistics["test_users"] == 60 and not on_all.test_intervals and "sample" not in str(on_all)
    drawn = np.isin(np.load(on_all.run_dir / "ranks.npz")["user"], users)
    assert (
        np.load(on_all.run_dir / "ranks.npz")["item_all"][drawn].tolist()
        == np.load(first.run_dir / "ranks.npz")["item_all"].tolist()
    )


def test_a_comparison_of_drawn_test_users_says_so(options):
    compared = compare(["SASRec", "Pop"], "tiny", **{**options, "num_test_users": 20, "epochs": 1})
    assert all("a sample of 20 of 60 test users" in heading for heading in compared.tables())
    assert "a sample of 20 of 60 test users" in (compared.path / "comparison.md").read_text()
    assert compared.p_values["Pop"] or compared.p_values["SASRec"]

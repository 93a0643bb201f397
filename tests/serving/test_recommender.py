"""A finished run in use, from Python and from the command line, with nothing but its directory."""

import json
import math
import shutil
from pathlib import Path

import pytest

from recbole_diffgrm import Recommender, UserError, checkpoint, run
from recbole_diffgrm.cli.main import main
from recbole_diffgrm.experiments.item_table import title_column
from tests.conftest import write_dataset

MODELS = ["DiffGRM", "SASRec", "BERT4Rec", "GRU4Rec", "HistoryCopy", "Pop"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """Run directories of some models, whose data is gone."""
    folder = tmp_path_factory.mktemp("recommender")
    data = write_dataset(folder / "data")
    run_dirs = {}
    for model in [*MODELS, "HGN", "FDSA"]:
        result = run(
            model,
            "tiny",
            [data / "tiny.yaml"],
            data_path=str(data),
            output_dir=str(folder / "runs"),
            epochs=2,
            train_batch_size=64,
            MAX_ITEM_LIST_LENGTH=10,
            save_topk=12,
            show_progress=False,
        )
        run_dirs[model] = result.run_dir
    shutil.copytree(data, folder / "copy")
    shutil.rmtree(data)
    return run_dirs


def histories_of(folder: Path) -> dict[str, list[str]]:
    """Each user's items before the test target."""
    lines = [line.split("\t") for line in (folder / "tiny" / "tiny.inter").read_text().splitlines()[1:]]
    users: dict[str, list[tuple[float, int, str]]] = {}
    for number, (user, item, _, time) in enumerate(lines):
        users.setdefault(user, []).append((float(time), number, item))
    return {user: [item for *_, item in sorted(rows)][:-1] for user, rows in users.items()}


@pytest.mark.parametrize("model", MODELS)
def test_lists_are_those_of_the_test(runs, model):
    histories = histories_of(runs[model].parents[2] / "copy")
    recommended = Recommender.load(runs[model]).recommend(list(histories.values()), 12)
    saved: dict[str, list[str]] = {}
    for line in (runs[model] / "topk.tsv").read_text().splitlines()[1:]:
        user, _, item = line.split("\t")
        saved.setdefault(user, []).append(item)
    assert [[one.item for one in mine] for mine in recommended] == [saved[user] for user in histories]
    for mine in recommended:
        scores = [one.score for one in mine]
        assert scores == sorted(scores, reverse=True)
        assert all(one.title == f"Item {one.item[1:]}" for one in mine)


def test_scores_are_log_probabilities_of_sids(runs):
    recommender = Recommender.load(runs["DiffGRM"], path_merge="max")
    history = ["i3", "i4", "i6"]
    recommended, paths = recommender.recommend([history], 40)[0], recommender.explain(history)
    assert len(recommended) == 40
    for one in recommended:
        path = paths.get(recommender.sid(one.item))
        if path is None:
            assert one.score == -math.inf
        else:
            assert one.score == pytest.approx(sum(math.log(step.probability) for step in path), abs=1e-4)
            assert {step.digit: step.code for step in path} == dict(enumerate(recommender.sid(one.item)))
    assert next(iter(paths)) == recommender.sid(recommended[0].item)


def test_unknown_items_have_no_sid(runs):
    recommender = Recommender.load(runs["DiffGRM"])
    for ask in (recommender.sid, lambda item: recommender.trace(["i3"], [item])):
        with pytest.raises(UserError, match="unknown items: x9"):
            ask("x9")


def test_a_history_is_cut_to_what_the_model_sees(runs):
    recommender = Recommender.load(runs["DiffGRM"])
    recent = [f"i{i}" for i in range(10)]
    assert recommender.recommend([["i39", "i20", *recent]], 5) == recommender.recommend([recent], 5)


@pytest.mark.parametrize("model", ["DiffGRM", "SASRec"])
def test_seen_items_can_be_filtered(runs, model):
    history = [f"i{i}" for i in range(20)]  # more than the model sees
    first, second = Recommender.load(runs[model], repeatable=False).recommend([history, ["i1", "i1"]], 30)
    assert {one.item for one in first} == {f"i{i}" for i in range(20, 40)}
    assert len(second) == 30 and "i1" not in {one.item for one in second}


def test_settings_of_the_beam_can_be_changed(runs):
    histories = [["i3"], ["i4", "i6"]]
    wide = Recommender.load(runs["DiffGRM"], beam_size=200).recommend(histories, 40)
    assert all(one.score > -math.inf for mine in wide for one in mine)  # all SIDs fit in
    alone = Recommender.load(runs["DiffGRM"], beam_size=200, decoding_memory=1e-9).recommend(histories, 40)
    for mine, expected in zip(alone, wide):
        assert [one.score for one in mine] == pytest.approx([one.score for one in expected], abs=1e-5)


@pytest.mark.parametrize(
    ("model", "changes", "words"),
    [
        ("HGN", {}, ["HGN", "training data"]),
        ("FDSA", {}, ["FDSA", "training data"]),
        ("SASRec", {"beam_size": 20}, ["beam_size", "SASRec"]),
        ("DiffGRM", {"hidden_size": 20}, ["hidden_size", "DiffGRM"]),
        ("DiffGRM", {"beam_size": "wide"}, ["beam_size", "wide"]),
        ("DiffGRM", {"beam_size": [9, 8, 7, 6]}, ["beam_size", "4 widths", "3 digits"]),
        ("DiffGRM", {"decoding_memory": math.inf}, ["decoding_memory", "inf"]),
    ],
    ids=str,
)
def test_what_cannot_be_loaded(runs, model, changes, words):
    with pytest.raises(UserError) as error:
        Recommender.load(runs[model], **changes)
    assert all(word in str(error.value) for word in words)


def test_wrong_histories(runs):
    recommender = Recommender.load(runs["DiffGRM"])
    with pytest.raises(UserError, match=r"history.*x1, x2"):
        recommender.recommend([["i1", "x1"], ["x2", "x1"]])
    assert recommender.recommend([["i1", "x1", "i2"]], skip_unknown=True) == recommender.recommend([["i1", "i2"]])
    for histories in ([[]], [["i1"], []]):
        with pytest.raises(UserError, match=r"history.*at least one"):
            recommender.recommend(histories)
    with pytest.raises(UserError, match=r"history.*at least one"):
        recommender.recommend([["x1"]], skip_unknown=True)
    for wrong in (["i1", "i2"], None, "i1", [3]):
        with pytest.raises(UserError, match="histories"):
            recommender.recommend(wrong)
    for wrong in (0, "5", 2.5):
        with pytest.raises(UserError, match=rf"k must .*{wrong}"):
            recommender.recommend([["i1"]], wrong)
    assert len(recommender.recommend([["i1"]], 10**12)[0]) == 40
    assert recommender.recommend([]) == []


def test_damaged_runs(runs, tmp_path):
    with pytest.raises(UserError, match="nothing"):
        Recommender.load(tmp_path / "nothing")
    with pytest.raises(UserError, match="no finished run in it"):
        Recommender.load(tmp_path)
    broken = tmp_path / "broken"
    shutil.copytree(runs["DiffGRM"], broken)
    state = checkpoint.load(broken / "best.pt")
    del state["state_dict"]["network.norm.weight"]
    checkpoint.save(state, broken / "best.pt")
    with pytest.raises(UserError, match=r"broken.*weights.*DiffGRM"):
        Recommender.load(broken)
    shutil.copy(runs["SASRec"] / "best.pt", broken / "best.pt")
    with pytest.raises(UserError, match=r"broken.*weights.*DiffGRM"):
        Recommender.load(broken)
    shutil.copy(runs["DiffGRM"] / "best.pt", broken / "best.pt")
    with (broken / "items.tsv").open("a") as file:
        file.write("more\tMore\t1 2 3\n")
    with pytest.raises(UserError, match=r"items\.tsv is damaged \(it has been changed since it was written"):
        Recommender.load(broken)
    content = json.loads((broken / "result.json").read_text())
    (broken / "result.json").write_text(json.dumps({**content, "model": "SASRec"}))
    with pytest.raises(UserError, match=r"result\.json is damaged \(it has been changed since it was written"):
        Recommender.load(broken)
    del content["sha256"]  # as of earlier versions: no checksums
    (broken / "result.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"40 items.*41.*items\.tsv"):
        Recommender.load(broken)
    for change, message in [
        ({"model": "DiffGRMM"}, r"broken.*DiffGRMM"),
        ({"config": {k: v for k, v in content["config"].items() if k != "beam_size"}}, r"beam_size"),
    ]:
        (broken / "result.json").write_text(json.dumps({**content, **change}))
        with pytest.raises(UserError, match=message):
            Recommender.load(broken)
    for damaged in ("[]", "null", "{"):
        (broken / "result.json").write_text(damaged)
        with pytest.raises(UserError, match=r"result\.json.*damaged"):
            Recommender.load(broken)
    (broken / "result.json").write_text(json.dumps(content))
    (broken / "items.tsv").unlink()
    with pytest.raises(UserError, match=r"items\.tsv"):
        Recommender.load(broken)


def test_items_of_a_run_are_a_table_of_sids(runs):
    header, first, *_ = (runs["DiffGRM"] / "items.tsv").read_text().splitlines()
    assert header == "item_id:token\ttitle:token\tsid:token_seq"
    item, title, sid = first.split("\t")
    assert title == f"Item {item[1:]}"
    assert tuple(map(int, sid.split())) == Recommender.load(runs["DiffGRM"]).sid(item)


def test_sids_of_a_run_in_another(runs, options):
    table = runs["DiffGRM"] / "items.tsv"
    options["config_files"] = []
    sids = {"sid_file": str(table), "sid_num_digits": 3, "sid_codebook_size": 8, "cache_dir": options["output_dir"]}
    again = run("HistoryCopy", "tiny", **options, **sids)
    assert (again.run_dir / "items.tsv").read_text() == table.read_text()


def test_command_line(runs, capsys):
    run_dir = runs["DiffGRM"]
    assert main([f"--recommend={run_dir}", "--history=i3 i4 i6", "--topk=4", "--explain"]) == 0
    printed = capsys.readouterr().out
    expected = Recommender.load(run_dir).recommend([["i3", "i4", "i6"]], 4)[0]
    for rank, one in enumerate(expected, start=1):
        line = next(line for line in printed.splitlines() if line.split()[:2] == [str(rank), one.item])
        assert one.title in line and f"{one.score:.4f}" in line
    path = Recommender.load(run_dir).explain(["i3", "i4", "i6"])[Recommender.load(run_dir).sid(expected[0].item)]
    shown = " -> ".join(f"{step.digit + 1}={step.code} ({step.probability:.0%})" for step in path)
    assert f"1  {expected[0].item}: {shown}" in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--history=i3 nobody"], ["history", "nobody"]),
        ([], ["--history"]),
        (["--history=i3", "--topk=many"], ["--topk", "many"]),
        (["--history=i3", "--epochs=3"], ["epochs"]),
        (["--history=i3", "--explain=3"], ["--explain"]),
        (["--history"], ["--history"]),
        (["--history=[]"], ["--history"]),
    ],
    ids=str,
)
def test_command_line_mistakes(runs, capsys, arguments, words):
    assert main([f"--recommend={runs['DiffGRM']}", *arguments]) == 2
    printed = capsys.readouterr().err
    assert all(word in printed for word in words)


def test_item_ids_with_spaces(runs, capsys):
    assert main([f"--recommend={runs['DiffGRM']}", '--history=["an item", i3]']) == 2
    assert ": an item (" in capsys.readouterr().err
    assert main([f"--recommend={runs['DiffGRM']}", "--history=[i4, i3]"]) == 0


@pytest.mark.parametrize("arguments", [["--recommend", "--history=i3"], ["--recommend=", "--history=i3"]])
def test_no_run(arguments, capsys):
    assert main(arguments) == 2
    assert "--recommend=RUN" in capsys.readouterr().err


def test_averaged_weights(options, tiny):
    """best.pt holds the averaged weights, and the SIDs as they are."""
    result = run("DiffGRM", "tiny", **options, ema_decay=0.9, save_topk=5)
    histories = histories_of(tiny)
    recommended = Recommender.load(result.run_dir).recommend(list(histories.values()), 5)
    lines = [line.split("\t") for line in (result.run_dir / "topk.tsv").read_text().splitlines()[1:]]
    for user, mine in zip(histories, recommended):
        assert [one.item for one in mine] == [item for name, _, item in lines if name == user]


@pytest.mark.parametrize(
    ("names", "column"),
    [
        (["brand_name", "title_length", "name"], "name"),
        (["subtitle", "Title"], "Title"),
        (["movie_title", "class"], "movie_title"),
        (["brand", "price"], None),
    ],
)
def test_which_column_is_the_title(names, column):
    assert title_column(names) == column


def test_titles_of_ml_100k(tmp_path):
    result = run("Pop", "ml-100k", output_dir=str(tmp_path), show_progress=False)
    assert Recommender.load(result.run_dir).recommend([["1"]], 1)[0][0][:2] == ("50", "Star Wars")


def test_a_broken_item_file_loses_the_titles_only(options, tmp_path):
    data = write_dataset(tmp_path / "broken")
    with (data / "tiny" / "tiny.item").open("a") as file:
        file.write("i7\tone field too many\tc1\tc2\n")
    changes = {"config_files": [], "data_path": str(data), "load_col": {"inter": ["user_id", "item_id", "timestamp"]}}
    result = run("SASRec", "tiny", **{**options, **changes})
    assert "items have no titles" in (result.run_dir / "log.txt").read_text()
    assert Recommender.load(result.run_dir).recommend([["i3"]], 1)[0][0].title == ""


def test_options_of_recommending_alone(capsys):
    assert main(["--history=i3"]) == 2
    printed = capsys.readouterr().err
    assert "--history" in printed and "--recommend=RUN" in printed


def test_unknown_items_are_skipped_on_request(runs, capsys):
    assert main([f"--recommend={runs['SASRec']}", "--history=i3 nobody", "--skip_unknown"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 12
    assert main([f"--recommend={runs['SASRec']}", "--history=i3", "--explain"]) == 2
    captured = capsys.readouterr()
    assert "explain" in captured.err and "SASRec" in captured.err and captured.out == ""

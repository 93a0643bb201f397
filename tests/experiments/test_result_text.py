"""What is printed of a run: words and tables."""

from dataclasses import replace

import pytest

from recbole_diffgrm import run


@pytest.fixture(scope="module")
def result(tiny, tmp_path_factory):
    settings = {"config_files": [tiny / "tiny.yaml"], "data_path": str(tiny), "show_progress": False, "epochs": 1}
    return run("DiffGRM", "tiny", **settings, output_dir=str(tmp_path_factory.mktemp("runs")))


def test_a_result_prints_as_its_tables(result, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    printed = str(result)
    *tables, results, report = printed.splitlines()
    assert max(map(len, tables)) <= 80
    assert printed.startswith("tiny, seed 2020, best epoch 1 of 1\n\nDiffGRM, item level ")
    assert (
        f"{result.test['all']['ndcg@10']:.4f}" in printed and f"{result.test['unseen']['sid_ndcg@10']:.4f}" in printed
    )
    assert "recall@5" in printed and "hit@" not in printed and "RunResult(" not in printed
    assert [results, report] == [f"results: {result.run_dir}", f"report: {result.run_dir / 'report.html'}"]
    assert result.test["all"]["hit@10"] == result.test["all"]["recall@10"]  # which is why


def test_a_result_in_a_notebook(result):
    assert "| test, all items " in result._repr_markdown_()


@pytest.mark.parametrize(
    "best, epochs, words",
    [(7, 9, "best epoch 7 of 9"), (None, 1, "1 epoch, not validated"), (None, 0, "not trained")],
)
def test_training_in_words(result, best, epochs, words):
    assert str(replace(result, best_epoch=best, epochs=epochs)).splitlines()[0] == f"tiny, seed 2020, {words}"


def test_a_run_without_validation(options, capsys):
    settings = {**options, "eval_args": {"split": {"LS": "test_only"}}, "epochs": 1}
    assert "None" not in str(run("SASRec", "tiny", **settings))

"""RecBole's signatures and result dictionary on this project's pipeline."""

import inspect
from pathlib import Path

import pytest

from recbole_diffgrm import UserError, quick_start, run


@pytest.fixture
def arguments(options) -> dict:
    settings = {key: value for key, value in options.items() if key != "config_files"}
    return {"config_file_list": options["config_files"], "config_dict": settings}


@pytest.mark.parametrize("model", ["SASRec", "DiffGRM"])
def test_a_run_has_recbole_s_result(model, options, arguments):
    result = quick_start.run_recbole_diffgrm(model, "tiny", **arguments, saved=False)
    ours = run(model, "tiny", **options)
    assert result == {
        "best_valid_score": max(entry["score"] for entry in ours.curve),
        "valid_score_bigger": True,
        "best_valid_result": ours.valid,
        "test_result": ours.test["all"],
    }
    assert [path.parent for path in Path(options["output_dir"]).rglob("best.pt")] == [ours.run_dir]


def test_the_ranking_asked_for_is_the_result(options, arguments):
    arguments["config_dict"] |= {"repeatable": False, "epochs": 1}
    result = quick_start.run_recbole_diffgrm("SASRec", "tiny", **arguments)
    assert (
        result["test_result"] == run("SASRec", "tiny", **{**options, "repeatable": False, "epochs": 1}).test["unseen"]
    )


def test_objective_function_finds_model_and_dataset_in_its_settings(options, arguments):
    arguments["config_dict"] |= {"model": "SASRec", "dataset": "tiny", "epochs": 1}
    result = quick_start.objective_function(**arguments)
    assert result["model"] == "SASRec" and result["test_result"]["ndcg@10"] >= 0
    assert list(Path(options["output_dir"]).rglob("best.pt"))
    with pytest.raises(UserError, match="dataset is not given"):
        quick_start.objective_function({"model": "SASRec"})


def test_signatures_are_recbole_s():
    names = ["model", "dataset", "config_file_list", "config_dict", "saved"]
    assert list(inspect.signature(quick_start.run_recbole_diffgrm).parameters) == names
    names = ["config_dict", "config_file_list", "saved"]
    assert list(inspect.signature(quick_start.objective_function).parameters) == names

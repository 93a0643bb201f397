"""Test users of a run's report: whatever the model and the protocol, their lists are those of the test."""

import json

import numpy as np
import pytest

from recbole_diffgrm import run

STEPWISE = {"DiffGRM", "TIGER", "ARM"}
CASES = [
    ("TIGER", {}),
    ("ARM", {}),
    ("ActionPiece", {}),
    ("RPG", {}),
    ("HSTU", {"repeatable": False}),
    ("FDSA", {}),
    ("HistoryCopy", {"num_test_users": 20}),
    ("DiffGRM", {"repeatable": False, "eval_args": {"split": {"RS": [0.5, 0.2, 0.3]}}}),
    ("Pop", {"eval_args": {"mode": "uni10"}}),
]


@pytest.mark.parametrize("model, changes", CASES, ids=[name for name, _ in CASES])
def test_lists_of_examples_are_those_of_the_test(options, model, changes, caplog):
    result = run(model, "tiny", **{**options, "epochs": 1}, **changes)
    content = json.loads((result.run_dir / "examples.json").read_text(encoding="utf-8"))
    with np.load(result.run_dir / "ranks.npz") as saved:
        user, target, rank = saved["user"], saved["target"], saved[f"item_{content['ranking']}"]
    assert len(user) == len(target) == len(rank) and len(set(user)) == changes.get("num_test_users", 60)
    assert content["ranking"] == ("unseen" if "repeatable" in changes else "all") and len(content["examples"]) == 8
    for one in content["examples"]:
        row = one["row"]
        assert one["user"] == user[row] and one["target"] == f"Item {target[row][1:]}"
        place = [recommended["is_target"] for recommended in one["recommended"]]
        if changes.get("eval_args", {}).get("mode") is None:
            expected = int(rank[row]) if rank[row] <= len(place) else None
            assert (place.index(True) + 1 if any(place) else None) == expected
        assert all((recommended["denoising"] is not None) == (model in STEPWISE) for recommended in one["recommended"])
        if content["ranking"] == "unseen":
            assert not any(recommended["is_seen"] for recommended in one["recommended"])
    report = (result.run_dir / "report.html").read_text(encoding="utf-8")
    assert "Some test users" in report and "not written" not in caplog.text
    if model == "Pop":
        assert "sampled items (uni10)" in report and "(all items)" not in report


def test_without_test_users(options, caplog):
    result = run("Pop", "tiny", **options, eval_args={"split": {"LS": "valid_only"}})
    report = (result.run_dir / "report.html").read_text(encoding="utf-8")
    assert not (result.run_dir / "examples.json").exists() and "not written" not in caplog.text
    assert f"{result.valid['ndcg@10']:.4f}" in report and "Some test users" not in report

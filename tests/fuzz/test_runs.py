"""Damage to what a run leaves on disk: one line that says so, or the same numbers as without the damage."""

import json
import re
import shutil
from functools import cache
from pathlib import Path

from hypothesis import strategies as st

from tests.fuzz.hostile import hostile_files
from tests.fuzz.properties import check_call, fuzz
from tests.fuzz.strategies import ROOT, byte_edits, edit_bytes, histories
from tests.fuzz.world import TWO_EPOCHS, arguments, call, finished_run, start_afresh, unfinished_run, world

MODELS = ["Pop", "SASRec", "DiffGRM"]
OTHER = {"Pop": "SASRec", "SASRec": "Pop", "DiffGRM": "SASRec"}
FILES = ["best.pt", "result.json", "items.tsv", "ranks.npz", "config.yaml", "log.txt", "topk.tsv"]
damage = st.one_of(
    byte_edits,
    st.sampled_from(
        ["missing", "folder", "of another run", "of another model", "pickle", "checkpoint", "checkpoint with checksum"]
    ),
    st.sampled_from(["checkpoint of old", "yaml", "empty", "zeros"]),
)


def do_damage(path: Path, how, other: Path) -> None:
    if isinstance(how, list):
        path.write_bytes(edit_bytes(path.read_bytes(), how))
    elif isinstance(how, str) and how.startswith("of another"):
        shutil.copy(other, path)
    else:
        path.unlink()
        if how == "folder":
            path.mkdir()
        elif how != "missing":
            path.write_bytes(hostile_files(world())[how])


def damaged_copy(model: str, name: str, how) -> Path:
    """Of a finished run, where a comparison of these settings looks for it."""
    run = finished_run(model)
    copy = world() / "runs" / "tiny" / run.name
    shutil.copytree(run, copy)
    if how == "of another run":
        name = "best.pt"
    other = finished_run(model, seed=1) if how == "of another run" else finished_run(OTHER[model])
    do_damage(copy / name, how, other / name)
    return copy


@fuzz(st.tuples(st.sampled_from(MODELS), st.sampled_from(FILES), damage), examples=40)
def test_recommending_from_a_damaged_run(example):
    words = ["--history=i1 i2 i3", "--topk=5"]
    outcome = check_call([f"--recommend={damaged_copy(*example)}", *words])
    assert outcome.code == 2 or outcome.out == recommended(example[0], tuple(words)), "other recommendations"


@fuzz(st.tuples(st.sampled_from(MODELS), st.sampled_from(FILES), damage), examples=15)
def test_retesting_a_damaged_run(example):
    outcome = check_call([f"--retest={damaged_copy(*example)}", "--repeatable=False", f"--output_dir={ROOT}/files"])
    assert outcome.code == 2 or metrics_of(outcome.out) == retested(example[0]), "other metrics"


@fuzz(st.tuples(st.sampled_from(FILES), damage), examples=10)
def test_comparing_with_a_damaged_run(example):
    """What cannot be used is said, or trained again."""
    damaged_copy("SASRec", *example)
    outcome = check_call(arguments(model="SASRec,Pop", **TWO_EPOCHS), recompute=False)  # ranks may be damaged
    if outcome.code == 0:
        means, p_values = compared_in(world() / "runs")
        assert means == compared()[0], "other metrics"
        assert p_values == compared()[1] or "ranks.npz" in outcome.err, "other p-values"


@fuzz(
    st.tuples(st.sampled_from(["SASRec", "DiffGRM"]), st.sampled_from(["state.pt", "best.pt", "config.yaml"]), damage),
    examples=10,
)
def test_resuming_a_damaged_run(example):
    model, name, how = example
    run = unfinished_run(model)
    copy = world() / "runs" / "tiny" / run.name
    shutil.copytree(run, copy)
    if (copy / name).exists():
        do_damage(copy / name, how, finished_run("Pop") / "best.pt")
    outcome = check_call([*arguments(model=model, **TWO_EPOCHS), "--resume"])
    assert outcome.code == 2 or metrics_of(outcome.out) == finished_metrics(model), "other metrics"


@fuzz(st.tuples(st.sampled_from(range(0, 21)), damage), examples=8)
def test_a_damaged_cache(example):
    """It is built again."""
    number, how = example
    shutil.copytree(cache_of_svd(), world() / "cache", dirs_exist_ok=True)
    files = sorted(path for path in (world() / "cache").rglob("*") if path.is_file() and path.suffix != ".lock")
    do_damage(files[number % len(files)], how, files[0] if number % len(files) else files[-1])
    outcome = check_call(arguments(model="HistoryCopy", sid_quantizer="svd"))
    assert outcome.code == 2 or metrics_of(outcome.out) == metrics_of_svd()[0], "other metrics"


@fuzz(
    st.tuples(
        st.sampled_from(["Pop", "DiffGRM"]), histories, st.sampled_from(["5", "1", "0", "-1", "10000", "x", "~"])
    ),
    examples=60,
)
def test_histories(example):
    model, history, k = example
    outcome = check_call([f"--recommend={finished_run(model)}", f"--history={history}", f"--topk={k}"])
    if outcome.code == 0:
        items = re.findall(r"^ *\d+  (i\d+) ", outcome.out, re.M)
        assert len(items) == len(set(items)) == min(int(k), 40), outcome.out
        assert set(re.findall(r"\w+", history)) <= {f"i{number}" for number in range(40)}, (
            "an unknown item was accepted"
        )


# What undamaged runs give


def metrics_of(out: str) -> dict:
    run_dir = Path(re.findall(r"^results: (.*)$", out, re.M)[0])
    return json.loads((run_dir / "result.json").read_text())["test"]


def compared_in(runs: Path) -> tuple[list, list]:
    """The models' metrics and p-values."""
    [path] = runs.glob("tiny/comparison-*/comparison.json")
    models = json.loads(path.read_text())["models"]
    return [model["mean"] for model in models], [model["p_values"] for model in models]


@cache
def recommended(model: str, words: tuple[str, ...]) -> str:
    return call([f"--recommend={finished_run(model)}", *words]).out


@cache
def retested(model: str) -> dict:
    return metrics_of(
        call([f"--retest={finished_run(model)}", "--repeatable=False", f"--output_dir={ROOT}/retested"]).out
    )


@cache
def finished_metrics(model: str) -> dict:
    return metrics_of(f"results: {finished_run(model)}")


@cache
def compared() -> tuple[list, list]:
    shutil.rmtree(world() / "compared", ignore_errors=True)  # a child of `make fuzz` may have made it
    call(arguments(model="SASRec,Pop", output_dir=f"{ROOT}/compared", **TWO_EPOCHS))
    return compared_in(world() / "compared")


@cache
def metrics_of_svd() -> tuple[dict, Path]:
    start_afresh(world())
    metrics = metrics_of(call(arguments(model="HistoryCopy", sid_quantizer="svd")).out)
    kept = world() / "finished" / "cache"
    shutil.copytree(world() / "cache", kept, dirs_exist_ok=True)
    start_afresh(world())
    return metrics, kept


def cache_of_svd() -> Path:
    return metrics_of_svd()[1]

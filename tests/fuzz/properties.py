"""What must hold of every command, whatever it was given; and metrics computed once more, from their definitions."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

from tests.fuzz.strategies import CANARY
from tests.fuzz.world import Outcome, call, insert, start_afresh, world

CODES = {0, 1, 2, 130, 143}
LONGEST_LINE = 2000


def fuzz(strategy: SearchStrategy, examples: int) -> Callable:
    """A test on `examples` examples, always the same. `make fuzz` finds its parts in `fuzzed` and tries others."""

    def decorate(check: Callable[[Any], None]) -> Callable:
        def test(example: Any) -> None:
            start_afresh(world())
            check(example)

        chosen = settings(
            max_examples=examples,
            derandomize=True,
            phases=[Phase.generate],  # `make fuzz` looks for smaller examples
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        wrapped = chosen(given(strategy)(test))
        wrapped.fuzzed = (strategy, test)
        return wrapped

    return decorate


def check_call(words: list[str], program: str = "run", recompute: bool = True) -> Outcome:
    """Run a command and check all that must hold of any; metrics too, unless the ranks may be damaged."""
    outcome = call(words, program)
    assert outcome.code in CODES, f"exit code {outcome.code}"
    for text in (outcome.out, outcome.err):
        assert "Traceback (most recent call last)" not in text, text[text.index("Traceback") :]
    if outcome.code == 2:
        check_error_line(outcome.err)
    if outcome.code == 0:
        assert not _error_lines(outcome.err), outcome.err
        for name in re.findall(rf"{re.escape(str(world()))}/(?:runs|files)/\S+$", outcome.out, re.M):
            if (
                recompute and (Path(name) / "result.json").exists()
            ):  # a search and a comparison name other folders as well
                check_metrics(Path(name), outcome.out)
    root = world()
    assert not Path(insert(CANARY, root)).exists(), "something in the input was executed"
    assert not outcome.strayed, f"outside the folders it was given: {outcome.strayed}"
    assert not list((root / "here").iterdir()), "written into the current folder"
    return outcome


def check_error_line(err: str) -> None:
    """One, at the end, that a terminal shows as one line."""
    lines = err.removesuffix("\n").split("\n")
    assert len(_error_lines(err)) == 1, f"{len(_error_lines(err))} error lines: {err[-1000:]}"
    assert lines[-1].startswith("error: "), f"something follows the error: {err[-1000:]}"
    assert len(lines[-1]) <= LONGEST_LINE, f"an error of {len(lines[-1])} characters: {lines[-1][:300]}..."
    assert lines[-1].isprintable(), f"an error with control characters: {lines[-1]!r}"


def _error_lines(err: str) -> list[str]:
    return [line for line in err.split("\n") if line.startswith("error: ")]


# Metrics


def check_metrics(run_dir: Path, printed: str = "") -> None:
    """Those of the test, in result.json and as printed, follow from ranks.npz."""
    result = json.loads((run_dir / "result.json").read_text(encoding="utf-8"), parse_constant=_refuse)
    if not result["test"]:
        return
    with np.load(run_dir / "ranks.npz", allow_pickle=False) as saved:
        ranks = {name: [int(rank) for rank in saved[name]] for name in saved.files if name.startswith(("item", "sid"))}
    for ranking, metrics in result["test"].items():
        for name, value in metrics.items():
            level = "sid" if name.startswith("sid_") else "item"
            metric, _, k = name.removeprefix("sid_").partition("@")
            if metric in METRICS:
                of_targets = [METRICS[metric](rank, int(k)) for rank in ranks[f"{level}_{ranking}"]]
                expected = math.fsum(of_targets) / len(of_targets)
                assert abs(value - expected) < 1e-9, f"{ranking} {name}: {value}, by definition {expected}"
    if f"results: {run_dir}\n" not in printed:  # a comparison has tables of its own
        return
    for words, ranking in {"all items": "all", "seen items filtered": "unseen"}.items():
        cells = _printed_metrics(printed, f"test, {words}")
        assert cells or f"\ntest, {words}  " not in printed, "the printed metrics cannot be read"
        for name, cell in cells.items():
            value = result["test"][ranking][name]
            assert abs(float(cell) - value) < 0.5001e-4, f"printed {name} {cell}, in result.json {value}"


# Of a ranking with one target: its rank is all that counts.
METRICS: dict[str, Callable[[int, int], float]] = {
    "recall": lambda rank, k: float(rank <= k),
    "hit": lambda rank, k: float(rank <= k),
    "precision": lambda rank, k: (rank <= k) / k,
    "mrr": lambda rank, k: 1 / rank if rank <= k else 0.0,
    "map": lambda rank, k: 1 / rank if rank <= k else 0.0,
    "ndcg": lambda rank, k: 1 / math.log2(rank + 1) if rank <= k else 0.0,
}


def _printed_metrics(printed: str, row: str) -> dict[str, str]:
    """{metric: cell} of the rows of this name; a table begins with `<model>, <level>  metric  metric ...`."""
    cells: dict[str, str] = {}
    names: list[str] = []
    for line in printed.splitlines():
        title, *columns = re.split(r"\s{2,}", line.strip())
        if title.endswith((", item level", ", SID level")):
            names = columns
        elif title == row and len(columns) == len(names):
            cells |= dict(zip(names, columns))
    return cells


def _refuse(constant: str) -> None:
    raise AssertionError(f"result.json holds {constant}")

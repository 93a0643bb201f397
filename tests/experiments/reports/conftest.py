"""Finished runs whose titles, users and items try to become HTML, for all tests of reports."""

from pathlib import Path
from typing import NamedTuple

import pytest

from recbole_diffgrm import Comparison, RunResult, compare
from tests.conftest import write_dataset

HOSTILE = [
    "<script>window.hacked = 1</script>",
    "</script><script>window.hacked = 2</script>",
    '"><img src=x onerror="window.hacked = 3">',
    "' onmouseover='window.hacked = 4",
    "<!-- & &lt;b&gt; {{ 7 * 7 }} {% raw %}",
    "\\u003cscript\\u003e ]]>",
]


class Finished(NamedTuple):
    run: RunResult  # of DiffGRM
    comparison: Comparison  # with a model without semantic IDs and one that learns nothing


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Finished:
    folder = tmp_path_factory.mktemp("reports")
    data = write_dataset(folder / "data")
    items = data / "tiny" / "tiny.item"
    header, *rows = items.read_text().splitlines()
    named = [row.split("\t") for row in rows]
    for number, row in enumerate(named):
        row[1] = HOSTILE[number % len(HOSTILE)] + f" {number}"
    items.write_text("\n".join([header, *("\t".join(row) for row in named)]) + "\n")
    interactions = data / "tiny" / "tiny.inter"
    interactions.write_text(interactions.read_text().replace("u1\t", "<script>window.hacked=5</script>\t"))
    comparison = compare(
        ["DiffGRM", "SASRec", "Pop"],
        "tiny",
        [data / "tiny.yaml"],
        data_path=str(data),
        output_dir=str(folder / "runs"),
        epochs=2,
        train_batch_size=64,
        MAX_ITEM_LIST_LENGTH=10,
        show_progress=False,
    )
    return Finished(comparison.rows[0].runs[0], comparison)


def report_of(folder: Path | None) -> str:
    assert folder is not None
    return (folder / "report.html").read_text(encoding="utf-8")

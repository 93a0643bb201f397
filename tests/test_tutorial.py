"""docs/tutorial.ipynb, cell by cell, as a reader would run it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parents[1] / "docs" / "tutorial.ipynb"
CHECKS = """
assert [row.name for row in comparison.rows] == ["DiffGRM", "SASRec", "Pop"]
assert comparison.rows[0].runs[0].run_dir == result.run_dir  # not trained again
assert len(recommended) == 5 and not {one.item for one in recommended} & set(history)
assert any(paths.get(recommender.sid(one.item)) for one in recommended)
"""


@pytest.mark.slow
def test_the_tutorial_runs(tmp_path):
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    program = tmp_path / "tutorial.py"
    program.write_text("\n".join([*code, CHECKS]), encoding="utf-8")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "item level, all items" in done.stdout and "SID level" in done.stdout


def test_the_tutorial_shows_its_output():
    """It was run from top to bottom, without an error."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert not any(output["output_type"] == "error" for cell in code for output in cell["outputs"])

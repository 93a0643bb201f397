"""The pages in results/ are what the command writes."""

import pytest

from recbole_diffgrm.cli.study import main
from recbole_diffgrm.experiments.study.page import render, update_readme
from recbole_diffgrm.experiments.study.plan import read_plan
from recbole_diffgrm.experiments.study.summary import Summary
from tests.conftest import ROOT

FINISHED = sorted((ROOT / "results").glob("*.json"))


@pytest.mark.parametrize("path", FINISHED, ids=lambda path: path.stem)
def test_pages_are_what_the_results_say(path):
    """results/*.md and the tables in README.md and docs/, to the letter."""
    summary = Summary.load(path)
    assert path.with_suffix(".md").read_text(encoding="utf-8") == render(summary, path.stem)
    for document in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = document.read_text(encoding="utf-8")
        if f"<!-- {path.stem} -->" in text:
            assert update_readme(text, summary, path.stem) == text, document
    assert summary.plan == read_plan(ROOT / "properties" / "study" / f"{path.stem}.yaml").content


def test_the_readme_has_a_results_table():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert any(f"<!-- {path.stem} -->" in text for path in FINISHED)


def test_no_marks_for_the_readme_table(study, tmp_path, capsys):
    path, _, options = study
    readme = tmp_path / "README.md"
    readme.write_text("nothing here")
    assert main([str(path), *options, "--only=Pop", f"--readme={readme}"]) == 2
    error = capsys.readouterr().err
    assert "--readme" in error and "<!-- small -->" in error and "<!-- end of small -->" in error

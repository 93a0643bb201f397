"""The report of a study: its page and its figures in one file."""

import base64
import re

import pytest

from recbole_diffgrm.cli.report import main as report_main
from recbole_diffgrm.cli.study import main
from tests.conftest import ROOT
from tests.experiments.reports.test_run import Page


def test_a_study_writes_and_names_its_report(tmp_path, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    for path in (ROOT / "results").glob("ml-100k*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    plan = ROOT / "properties" / "study" / "ml-100k.yaml"
    assert main([str(plan), "--render", f"--results={tmp_path}", "--open"]) == 0
    html = tmp_path / "ml-100k.html"
    assert capsys.readouterr().out.splitlines()[-1] == f"report: {html}" and opened == [f"file://{html}"]
    parsed = Page(html.read_text(encoding="utf-8"))
    markdown = (tmp_path / "ml-100k.md").read_text(encoding="utf-8")
    expected = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in markdown.splitlines() if line[:2] == "| "
    ]
    assert parsed.rows == [[" ".join(cell.replace("`", "").split()) for cell in row] for row in expected]
    pictures = [attributes["src"] for tag, attributes in parsed.tags if tag == "img"]
    assert [base64.b64decode(picture.partition(",")[2]) for picture in pictures] == [
        (tmp_path / f"ml-100k-{name}.png").read_bytes() for name in ("bars", "curves")
    ]
    before = html.read_bytes()
    assert report_main([str(tmp_path / "ml-100k.json")]) == 0 and html.read_bytes() == before


def test_html_in_a_plan_is_shown_as_it_is_written(tmp_path):
    from recbole_diffgrm.experiments.reports import study

    shown = study._to_html("A <script>alert(1)</script>\n\n<div onclick=x>\n\n- `<b>`")
    assert not re.search("<script|<div", shown) and "&lt;script&gt;" in shown


@pytest.mark.parametrize("missing", ["ml-100k-bars.png"])
def test_a_lost_figure_is_named(missing, tmp_path, capsys):
    for path in (ROOT / "results").glob("ml-100k*"):
        if path.name != missing:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    assert report_main([str(tmp_path / "ml-100k.json")]) == 2
    assert missing in capsys.readouterr().err

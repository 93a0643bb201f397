"""Reports in a real browser, as wide as a desk and as a phone."""

import json
import shutil

import pytest

from recbole_diffgrm.cli.report import main
from tests.browser import WIDTHS, open_page, scrolls_sideways
from tests.conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("width", WIDTHS)]


def test_denoising_step_by_step(finished, width):
    denoising = _denoising_shown_first(finished.run.run_dir)
    with open_page((finished.run.run_dir / "report.html").as_uri(), width) as page:
        assert not scrolls_sideways(page)
        assert page.evaluate("window.hacked") is None  # by no title
        viewer = page.locator(".viewer").first
        assert viewer.is_visible() and "step 1 of" in viewer.inner_text()
        viewer.get_by_role("button", name="Back").click()
        assert viewer.locator(".digits .masked").count() == len(denoising["sid"])
        assert viewer.get_by_role("button", name="Back").is_disabled()
        for number, step in enumerate(denoising["steps"], start=1):
            viewer.get_by_role("button", name="Next").click()
            text = viewer.inner_text()
            assert f"step {number} of {len(denoising['steps'])}" in text
            new = viewer.locator(".digits .new").inner_text()
            assert f"digit {step['chosen']['digit'] + 1}" in new and str(step["chosen"]["code"]) in new.split()
            assert viewer.locator(".digits .masked").count() == len(denoising["sid"]) - number
            assert f"{step['chosen']['items_left']} item" in text and step["titles_left"][0] in text
            assert viewer.locator(".choices .bar").count() == 1 + len(step["alternatives"])
        assert viewer.get_by_role("button", name="Next").is_disabled()
        page.locator("ol.recommended").first.get_by_role("button").nth(2).click()
        assert "step 1 of" in viewer.inner_text() and not scrolls_sideways(page)
        for summary in page.locator("summary").all():
            summary.click()
        assert not scrolls_sideways(page) and page.evaluate("window.hacked") is None


@pytest.mark.parametrize("what", ["comparison", "study", "Pop"])
def test_others_fit(finished, what, width, tmp_path):
    rows = {row.name: row.runs[0].run_dir for row in finished.comparison.rows}
    path = {"comparison": finished.comparison.path, "Pop": rows["Pop"], "study": tmp_path}[what] / "report.html"
    if what == "study":
        for result in (ROOT / "results").glob("ml-100k*"):
            shutil.copy(result, tmp_path)
        assert main([str(tmp_path / "ml-100k.json")]) == 0
        path = tmp_path / "ml-100k.html"
    with open_page(path.as_uri(), width) as page:
        assert not scrolls_sideways(page)
        assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth)")


def _denoising_shown_first(run_dir):
    """Of the first user's first recommendation that the search generated."""
    examples = json.loads((run_dir / "examples.json").read_text(encoding="utf-8"))["examples"]
    every = [one["denoising"] for one in examples[0]["recommended"]]
    return next(filter(lambda denoising: denoising["is_generated"], every), every[0])

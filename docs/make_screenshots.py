"""Take the pictures of a run's report that docs/report.md shows. Needs playwright and Chromium (tests/browser.py).

python docs/make_screenshots.py runs/ml-100k/DiffGRM-...
"""

import io
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Locator, Page, sync_playwright

CHROMIUM = "/usr/bin/chromium"
IMAGES = Path(__file__).parent / "images"


def main(run_dir: str) -> None:
    url = (Path(run_dir).resolve() / "report.html").as_uri()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        desktop = browser.new_page(viewport={"width": 1280, "height": 900})
        desktop.goto(url)
        sections = desktop.locator("main > section")
        _save(desktop, sections.nth(1), sections.nth(3), "report.png")
        phone = browser.new_page(viewport={"width": 390, "height": 844}, device_scale_factor=1.5)
        phone.goto(url)
        viewer = phone.locator(".viewer").first
        viewer.get_by_role("button", name="Next").click()
        _save(phone, phone.locator("details.user").first, viewer, "report-phone.png")
        browser.close()


def _save(page: Page, first: Locator, last: Locator, name: str) -> None:
    """The page from one element to another, in 256 colours: small enough for a repository."""
    top, bottom = ((box["y"], box["y"] + box["height"]) for box in (first.bounding_box(), last.bounding_box()) if box)
    width, scrolled = page.evaluate("[window.innerWidth, window.scrollY]")
    clip = {"x": 0, "y": top[0] + scrolled - 10, "width": width, "height": bottom[1] - top[0] + 20}
    picture = Image.open(io.BytesIO(page.screenshot(full_page=True, clip=clip))).convert("RGB")
    picture.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        IMAGES / name, optimize=True
    )


if __name__ == "__main__":
    main(sys.argv[1])

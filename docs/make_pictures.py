"""Pictures of the service's page, made by clicking through it.

    python -m recbole_diffgrm.serve runs/ml-100k/DiffGRM-... --port=8000
    python docs/make_pictures.py --address http://127.0.0.1:8000

Needs playwright and the system's Chromium.
"""

import argparse
import io
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).parent / "images"
SIZES = {"serve.png": (1280, 700, 1.0), "serve-phone.png": (390, 844, 1.5)}
HISTORY = ("Star Wars", "Empire Strikes", "Star Trek: First")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", default="http://127.0.0.1:8000")
    parser.add_argument("--chromium", default=shutil.which("chromium"))
    options = parser.parse_args()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        for name, (width, height, scale) in SIZES.items():
            page = browser.new_page(viewport={"width": width, "height": height}, device_scale_factor=scale)
            page.goto(options.address)
            for query in HISTORY:
                page.fill("#search", query)
                page.locator("#results li", has_text=query).first.locator("button").click()
            page.fill("#search", "star")
            page.locator("#results li", has_text="Lone Star").wait_for()
            page.locator("#list li button").first.click()
            page.get_by_role("button", name="Step 1").click()
            page.wait_for_timeout(1000)  # the phone's page scrolls
            picture = Image.open(io.BytesIO(page.screenshot()))
            picture.convert("RGB").quantize(128).save(IMAGES / name, optimize=True)
        browser.close()


if __name__ == "__main__":
    main()

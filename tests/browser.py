"""A real browser for tests of pages: the system's Chromium, driven by playwright. Skipped where one is missing."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
PATIENCE = 60_000  # milliseconds: the first new item waits for its text encoder to be loaded
WIDTHS = {"desktop": (1280, 900), "phone": (390, 844)}


@contextmanager
def open_page(url: str, width: str) -> Iterator[Any]:
    """A page at one of WIDTHS. At the end: nothing was fetched from elsewhere, nothing was written to the console."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    if not CHROMIUM:
        pytest.skip("needs Chromium: apt-get install chromium, or set CHROMIUM to its path")
    complaints: list[str] = []
    size = dict(zip(("width", "height"), WIDTHS[width]))
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport=size)
        page.set_default_timeout(PATIENCE)
        playwright.expect.set_options(timeout=PATIENCE)
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        origin = url.split("/", 3)[:3]
        page.on("request", lambda request: complaints.extend(_foreign(request.url, origin)))
        page.goto(url)
        yield page
        browser.close()
    assert complaints == []


def _foreign(url: str, origin: list[str]) -> list[str]:
    return [] if url.startswith("data:") or url.split("/", 3)[:3] == origin else [f"fetched {url}"]


def scrolls_sideways(page: Any) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))

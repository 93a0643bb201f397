"""The page of the service in a real browser, at the width of a desk and of a phone."""

import re
import socket
import threading

import pytest

from recbole_diffgrm import Recommender
from recbole_diffgrm.experiments.item_table import Items
from tests.browser import WIDTHS, open_page, scrolls_sideways

HOSTILE = '<img src=x onerror="alert(1)"><script>alert(2)</script>'

pytestmark = pytest.mark.slow
each_width = pytest.mark.parametrize("width", WIDTHS)


@pytest.fixture(scope="module")
def address(text_run):
    """Of a service with a title that would be a program, were it not text."""
    uvicorn = pytest.importorskip("uvicorn", reason='the service needs pip install "recbole_diffgrm[serve]"')
    from recbole_diffgrm.serving import service

    recommender = Recommender.load(text_run)
    names, titles = recommender.items.names, recommender.items.titles
    recommender.items = Items(names, [HOSTILE if name == "i5" else title for name, title in zip(names, titles)])
    listening, ready = socket.create_server(("127.0.0.1", 0)), threading.Event()
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    server = service.Server(uvicorn.Config(service.create_app(recommender), log_level="warning"), ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    assert ready.wait(30)
    yield address
    server.should_exit = True
    thread.join(30)


def add_to_history(page, query: str) -> None:
    page.fill("#search", query)
    page.locator("#results li", has_text=query).first.locator("button").click()


@each_width
def test_search_build_a_history_and_follow_the_denoising(address, width):
    with open_page(address, width) as page:
        from playwright.sync_api import expect

        listed = page.locator("#list .id")
        add_to_history(page, "Item 12")
        expect(listed).to_have_count(10)
        first = listed.all_inner_texts()
        assert "i12" not in first  # seen items are filtered
        page.on("dialog", lambda dialog: pytest.fail(dialog.message))
        add_to_history(page, HOSTILE)
        expect(page.locator("#history .title").nth(1)).to_have_text(HOSTILE)
        assert page.locator("img").count() == 0 and page.locator("script").count() == 1
        expect(listed).not_to_have_text(first)
        expect(page.locator("#history li")).to_have_count(2)
        # The denoising of the third recommendation, step by step: digits are filled one after the other.
        chosen = page.locator("#list li").nth(2)
        chosen.locator("button").click()
        expect(chosen.locator("button")).to_have_attribute("aria-pressed", "true")
        expect(page.locator("#denoising .chosen").first).to_have_text(chosen.locator(".title").inner_text())
        steps = page.locator("#denoising .steps button")
        for number in range(steps.count()):
            steps.nth(number).click()
            digits = page.locator("#denoising .digit b").all_inner_texts()
            assert sum(digit != "?" for digit in digits) == number + 1
            taken = page.locator("#denoising .bar.taken").inner_text()
            assert re.search(r"digit \d = \d+\s+[\d.]+ %, \d+ items?", taken)
        assert not scrolls_sideways(page)
        # Without its last item the history has the list it had.
        page.locator("#history li button").nth(1).click()
        expect(listed).to_have_text(first)
        page.get_by_label("filter seen items").uncheck()
        page.select_option("#k", "20")
        expect(listed).to_have_count(20)
        page.get_by_role("button", name="Clear").click()
        expect(listed).to_have_count(0)


def add_item(page, name: str, title: str) -> None:
    page.get_by_text("Add a new item").click()
    page.fill("#new-item input[name=item_id]", name)
    page.fill("#new-item input[name=title]", title)
    page.get_by_role("button", name="Add", exact=True).click()


@each_width
def test_add_an_item_and_get_it_recommended(address, width):
    with open_page(address, width) as page:
        from playwright.sync_api import expect

        add_item(page, f"new {width}", "Item 12 again")
        expect(page.locator("#added.done")).to_contain_text("Item 12 again has the semantic ID")
        expect(page.locator("#results .id")).to_have_text([f"new {width}"])
        expect(page.locator("#about")).to_contain_text("of them new")
        page.get_by_label("filter seen items").uncheck()
        page.locator("#results li button").click()
        page.wait_for_selector("#list li")
        expect(page.locator("#history .id")).to_have_text([f"new {width}"])


def test_mistakes_are_shown(address):
    shown = []
    with pytest.raises(AssertionError), open_page(address, "desktop") as page:  # the browser's console notes the 422
        add_item(page, "i7", "Again")
        page.wait_for_selector("#added.error")
        shown.append(page.locator("#added").inner_text())
    assert "'i7' is there already" in shown[0]

"""The report of a study: its page of Markdown with its figures, as one HTML file."""

import base64
import re
from pathlib import Path

from recbole_diffgrm.experiments.reports import page
from recbole_diffgrm.experiments.study import page as markdown_page
from recbole_diffgrm.experiments.study.summary import Summary
from recbole_diffgrm.files import reading


def write(summary: Summary, name: str, folder: Path) -> Path:
    """<study>.html beside <study>.md, with the pictures that are there."""
    return page.write(render(summary, name, folder), folder, f"{name}.html")


def render(summary: Summary, name: str, folder: Path) -> str:
    heading, _, text = markdown_page.render(summary, name).partition("\n")
    content = re.sub('src="([^":/]+[.]png)"', lambda found: f'src="{_embed(folder / found[1])}"', _to_html(text))
    return page.render("study.html", title=heading.removeprefix("# "), content=page.mark_safe(_scrolling(content)))


def _to_html(text: str) -> str:
    from markdown import Markdown

    converter = Markdown(extensions=["tables"])
    converter.preprocessors.deregister("html_block")  # HTML in a text is shown as it is written
    converter.inlinePatterns.deregister("html")
    return converter.convert(text)


def _embed(picture: Path) -> str:
    with reading(picture):
        return f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()}"


def _scrolling(content: str) -> str:
    """Wide tables and commands scroll by themselves, not with the page."""
    for tag in ("table", "pre"):
        content = content.replace(f"<{tag}>", f'<div class="scroll"><{tag}>').replace(f"</{tag}>", f"</{tag}></div>")
    return content

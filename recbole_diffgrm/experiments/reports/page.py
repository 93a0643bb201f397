"""From values to one HTML file: templates, and what every report shares."""

import logging
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from recbole_diffgrm.files import first_line, write_text

logger = logging.getLogger(__name__)

REPORT_FILE = "report.html"


def render(template: str, **values: Any) -> str:
    """Whatever text is in the values is shown as text: titles of items come from anywhere."""
    return _environment().get_template(template).render(values)


def write(text: str, folder: Path, name: str = REPORT_FILE) -> Path:
    write_text(text, folder / name)
    return folder / name


def try_to_write(name: str, write_file: Callable[[], Path]) -> Path | None:
    """A report that cannot be written is a line in the log: what it shows is in other files."""
    try:
        return write_file()
    except Exception as error:
        logger.warning(f"{name} is not written: {type(error).__name__}: {first_line(error)}")
        return None


def mark_safe(html: str) -> Any:
    """HTML in which every text was escaped already."""
    import markupsafe

    return markupsafe.Markup(html)


def html_tables(tables: Mapping[str, str]) -> dict[str, Any]:
    """{heading: table of tabulate's style html, which escapes its cells}"""
    return {capitalize(heading): mark_safe(table) for heading, table in tables.items()}


def capitalize(heading: str) -> str:
    """The first letter alone."""
    return heading[:1].upper() + heading[1:]


def format_number(value: float | None) -> str:
    """Metrics with four digits, counts with commas; nothing for None."""
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


@cache
def _environment() -> Any:
    import jinja2  # where it is needed: commands begin without it

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = format_number
    return environment

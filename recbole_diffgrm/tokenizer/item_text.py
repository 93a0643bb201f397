"""The text of an item, composed from the columns of its line in .item."""

from collections.abc import Iterable, Mapping
from html.parser import HTMLParser

MAX_TEXT_LENGTH = 100_000  # characters of a field; encoders read the first few thousand

_INVISIBLE = dict.fromkeys(map(ord, "\u200b\ufeff\u00ad"))  # zero-width space, byte order mark, soft hyphen


class _PlainText(HTMLParser):
    """Collects what a browser would show."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.hidden = 0

    def handle_starttag(self, tag, attributes):
        self.hidden += tag in ("script", "style")
        self.parts.append(" ")

    def handle_endtag(self, tag):
        self.hidden -= tag in ("script", "style") and self.hidden > 0
        self.parts.append(" ")

    def handle_data(self, data):
        if not self.hidden:
            self.parts.append(data)

    def handle_comment(self, data):
        self.parts.append(" ")


def clean(text: str) -> str:
    """Plain text on one line: no markup, no entities, single spaces."""
    text = text[:MAX_TEXT_LENGTH]
    for _ in range(3):  # crawled text is often escaped twice: &amp;lt;b&amp;gt;
        if "<" not in text and "&" not in text:
            break
        parser = _PlainText()
        parser.feed(text)
        parser.close()
        text = "".join(parser.parts)
    return " ".join(text.translate(_INVISIBLE).split())


def label_fields(fields: list[str] | Mapping[str, str]) -> dict[str, str]:
    """{column: label}. The columns of a list give their labels: release_year is `Release year`."""
    if isinstance(fields, Mapping):
        return dict(fields)
    return {name: name.replace("_", " ").capitalize() for name in fields}


def compose(columns: Mapping[str, object], fields: Mapping[str, str], template: str, lists: Mapping[str, str]) -> str:
    """All fields that are not empty, each through the template; empty where there is none.

    `lists` has the separator of each column that is a list. Values are texts as in .item, numbers or lists.
    """
    parts = []
    for name, label in fields.items():
        separator = lists.get(name)
        # A list separated by spaces is the words of a text; others read better with commas.
        joiner = " " if separator == " " else ", "
        text = joiner.join(filter(None, (clean(value) for value in _values(columns.get(name), separator))))
        if text:
            parts.append(template.format(label=label, text=text))
    return " ".join(parts)


def _values(value: object, separator: str | None) -> list[str]:
    if value is None or (isinstance(value, float) and value != value):  # NaN: pandas' missing text
        return []
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [str(part) for part in value]
    return str(value).split(separator) if separator else [str(value)]

"""Amazon Reviews 2014: 5-core reviews and metadata of a category, converted to atomic files."""

import ast
import gzip
import html
import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recbole_diffgrm.data.atomic import id_fault, write_atomic_file
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.files import reading
from recbole_diffgrm.progress import progress_bar
from recbole_diffgrm.words import count

PREFIX = "Amazon_"
URL_KEY = "amazon_url"

CATEGORIES = (
    "Amazon_Instant_Video",
    "Apps_for_Android",
    "Automotive",
    "Baby",
    "Beauty",
    "Books",
    "CDs_and_Vinyl",
    "Cell_Phones_and_Accessories",
    "Clothing_Shoes_and_Jewelry",
    "Digital_Music",
    "Electronics",
    "Grocery_and_Gourmet_Food",
    "Health_and_Personal_Care",
    "Home_and_Kitchen",
    "Kindle_Store",
    "Movies_and_TV",
    "Musical_Instruments",
    "Office_Products",
    "Patio_Lawn_and_Garden",
    "Pet_Supplies",
    "Sports_and_Outdoors",
    "Tools_and_Home_Improvement",
    "Toys_and_Games",
    "Video_Games",
)

INTER_HEADER = {"user_id": "token", "item_id": "token", "rating": "float", "timestamp": "float"}
ITEM_HEADER = {
    "item_id": "token",
    "title": "token",
    "price": "float",
    "brand": "token",
    "categories": "token_seq",
    "description": "token",
}
CATEGORY_SEPARATOR = "|"
GZIP_MAGIC = b"\x1f\x8b"
MAX_LINE_BYTES = 1 << 26

_ASIN = re.compile(r"""['"]asin['"]\s*:\s*['"]([^'"]+)['"]""")


@dataclass(frozen=True)
class Conversion:
    """What was read and what could not be."""

    interactions: int
    items: int
    broken_reviews: int
    broken_metadata: int
    items_without_metadata: int

    def __str__(self) -> str:
        return (
            f"{count(self.interactions, 'interaction')}, {count(self.items, 'item')} "
            f"({self.items_without_metadata:,} without metadata); skipped as broken: "
            f"{count(self.broken_reviews, 'review')}, {count(self.broken_metadata, 'metadata line')}"
        )


def dataset_names() -> list[str]:
    return [PREFIX + category for category in CATEGORIES]


def archive_urls(dataset: str, url: str) -> list[str]:
    """Reviews and metadata."""
    category = dataset.removeprefix(PREFIX)
    return [f"{url.rstrip('/')}/{name}" for name in (f"reviews_{category}_5.json.gz", f"meta_{category}.json.gz")]


def by_hand(dataset: str, archives: list[Path], folder: Path) -> str:
    return (
        f"get {archives[0].name} and {archives[1].name} by hand and run `python -m recbole_diffgrm.data "
        f"--dataset={dataset} --reviews=FILE --meta=FILE --data_path={folder.parent}`"
    )


def convert(dataset: str, archives: list[Path], folder: Path) -> Conversion:
    """Write <dataset>.inter and <dataset>.item. The .inter comes last: where it is, all is there."""
    reviews, metadata = archives
    interactions: list[tuple[str, str, str, str]] = []
    broken_reviews = 0
    for line in read_lines(reviews):
        interaction = _interaction(line)
        if interaction is None:
            broken_reviews += 1
        else:
            interactions.append(interaction)
    if not interactions:
        raise UserError(f"{reviews} holds no review that can be read ({broken_reviews:,} broken lines)")

    reviewed = dict.fromkeys(item for _, item, _, _ in interactions)  # in order of appearance
    products: dict[str, list[str]] = {}
    broken_metadata = 0
    for line in read_lines(metadata):
        asin = _ASIN.search(line)
        if asin and asin[1] not in reviewed:
            continue  # most of the file: 5-core keeps a small part of the products
        row = _item(line)
        if row is None:
            broken_metadata += 1
        elif row[0] in reviewed:
            products.setdefault(row[0], row)

    items = (products.get(item) or [item] + [""] * (len(ITEM_HEADER) - 1) for item in reviewed)
    write_atomic_file(folder / f"{dataset}.item", ITEM_HEADER, items)
    write_atomic_file(folder / f"{dataset}.inter", INTER_HEADER, interactions)
    without_metadata = len(reviewed) - len(products)
    conversion = Conversion(len(interactions), len(reviewed), broken_reviews, broken_metadata, without_metadata)
    print(f"{dataset}: {conversion}", file=sys.stderr)  # long before there is a run with a log
    return conversion


def read_lines(path: Path) -> Iterator[str]:
    """Lines of a gzip archive, or of a plain file that was unpacked by hand, with a progress bar over its bytes."""
    with (
        reading(path, if_damaged="delete it and get it again"),
        path.open("rb") as raw,
        progress_bar(total=path.stat().st_size, desc=f"read {path.name}", unit="B", unit_scale=True) as bar,
    ):
        file = gzip.GzipFile(fileobj=raw) if raw.read(2) == GZIP_MAGIC else raw
        raw.seek(0)
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b"")):
            if len(line) == MAX_LINE_BYTES:  # a small archive can hold a line that fills the memory
                raise UserError(f"{path}, line {number + 1}: longer than {MAX_LINE_BYTES:,} bytes")
            if number % 1000 == 0:
                bar.update(raw.tell() - bar.n)
            text = line.decode("utf-8", errors="replace").strip()
            if text:
                yield text
        bar.update(raw.tell() - bar.n)


def _interaction(line: str) -> tuple[str, str, str, str] | None:
    try:
        review = json.loads(line)
        user, item, rating = review["reviewerID"], review["asin"], float(review["overall"])
        time = str(int(review["unixReviewTime"]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return (user, item, f"{rating:g}", time) if is_id(user) and is_id(item) and math.isfinite(rating) else None


def is_id(value: Any) -> bool:
    return isinstance(value, str) and value != "" and not id_fault(value) and value == _encodable(value)


def _item(line: str) -> list[str] | None:
    """Metadata lines are Python literals ('...' and \\'), not JSON: literal_eval reads them and runs nothing."""
    try:
        product = ast.literal_eval(line)
        if not isinstance(product, dict) or not isinstance(product["asin"], str):
            return None
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError):
        return None
    price = product.get("price")
    return [
        product["asin"],
        clean_text(product.get("title")),
        f"{price:g}" if isinstance(price, int | float) and not isinstance(price, bool) and _is_finite(price) else "",
        clean_text(product.get("brand")),
        join_categories(product.get("categories")),
        clean_text(product.get("description")),
    ]


def join_categories(paths: Any) -> str:
    """All category names of a product, each once, in order."""
    if not isinstance(paths, list):
        return ""
    names = [clean_text(name) for path in paths for name in (path if isinstance(path, list) else [path])]
    unique = dict.fromkeys(name.replace(CATEGORY_SEPARATOR, "/") for name in names if name)
    return CATEGORY_SEPARATOR.join(unique)


def clean_text(value: Any) -> str:
    if isinstance(value, list):
        value = " ".join(map(str, value))
    return _encodable(html.unescape(value).strip()) if isinstance(value, str) else ""


def _encodable(text: str) -> str:
    """JSON may hold halves of surrogate pairs, which no file can."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number of 400 digits
        return False

"""Amazon Reviews 2023: reviews and metadata of a category, reduced to their 5-core, converted to atomic files.

An item is a product with all its variants (parent_asin). A user who reviewed it several times counts once, with the
earliest review; then users and items with fewer than five interactions are removed until there are none.
"""

import json
import math
import re
import sys
from array import array
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recbole_diffgrm.data.amazon import INTER_HEADER, by_hand, clean_text, is_id, join_categories, read_lines
from recbole_diffgrm.data.atomic import write_atomic_file
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.words import count

__all__ = ["CATEGORIES", "PREFIX", "URL_KEY", "archive_urls", "by_hand", "convert", "dataset_names", "k_core"]

PREFIX = "Amazon_2023_"
URL_KEY = "amazon_2023_url"
CORE = 5

CATEGORIES = (
    "All_Beauty",
    "Amazon_Fashion",
    "Appliances",
    "Arts_Crafts_and_Sewing",
    "Automotive",
    "Baby_Products",
    "Beauty_and_Personal_Care",
    "Books",
    "CDs_and_Vinyl",
    "Cell_Phones_and_Accessories",
    "Clothing_Shoes_and_Jewelry",
    "Digital_Music",
    "Electronics",
    "Gift_Cards",
    "Grocery_and_Gourmet_Food",
    "Handmade_Products",
    "Health_and_Household",
    "Health_and_Personal_Care",
    "Home_and_Kitchen",
    "Industrial_and_Scientific",
    "Kindle_Store",
    "Magazine_Subscriptions",
    "Movies_and_TV",
    "Musical_Instruments",
    "Office_Products",
    "Patio_Lawn_and_Garden",
    "Pet_Supplies",
    "Software",
    "Sports_and_Outdoors",
    "Subscription_Boxes",
    "Tools_and_Home_Improvement",
    "Toys_and_Games",
    "Video_Games",
)

ITEM_HEADER = {
    "item_id": "token",
    "title": "token",
    "price": "float",
    "store": "token",
    "categories": "token_seq",
    "features": "token",
    "description": "token",
}

_PARENT = re.compile(r'"parent_asin"\s*:\s*"([^"]+)"')


def dataset_names() -> list[str]:
    return [PREFIX + category for category in CATEGORIES]


def archive_urls(dataset: str, url: str) -> list[str]:
    """Reviews and metadata."""
    category, url = dataset.removeprefix(PREFIX), url.rstrip("/")
    return [f"{url}/review_categories/{category}.jsonl.gz", f"{url}/meta_categories/meta_{category}.jsonl.gz"]


def convert(dataset: str, archives: list[Path], folder: Path) -> None:
    """Write <dataset>.inter and <dataset>.item. The .inter comes last: where it is, all is there."""
    reviews = _read_reviews(archives[0])
    rows = first_of_pairs(reviews.user, reviews.item, reviews.milliseconds)
    repeated = len(reviews.user) - len(rows)
    rows = rows[k_core(reviews.user[rows], reviews.item[rows], CORE)]
    if not len(rows):
        raise UserError(f"{archives[0]}: no user and item with {CORE} interactions are left of {len(reviews.user):,}")
    items = dict.fromkeys(reviews.items[number] for number in reviews.item[rows])  # in order of appearance
    metadata = _Metadata(archives[1], items.keys())
    write_atomic_file(folder / f"{dataset}.item", ITEM_HEADER, metadata.rows())
    write_atomic_file(folder / f"{dataset}.inter", INTER_HEADER, reviews.rows(rows))
    print(
        f"{dataset}: {count(len(reviews.user), 'review')} ({repeated:,} of a product that the user had reviewed "
        f"before); {CORE}-core: {count(len(np.unique(reviews.user[rows])), 'user')}, {count(len(items), 'item')} "
        f"({metadata.missing:,} without metadata), {count(len(rows), 'interaction')}; skipped as broken: "
        f"{count(reviews.broken, 'review')}, {count(metadata.broken, 'metadata line')}",
        file=sys.stderr,
    )


def k_core(user: np.ndarray, item: np.ndarray, k: int) -> np.ndarray:
    """Rows that are left when users and items with fewer than `k` rows are removed until there are none."""
    rows = np.arange(len(user))
    while True:
        enough = (np.bincount(user[rows])[user[rows]] >= k) & (np.bincount(item[rows])[item[rows]] >= k)
        if enough.all():
            return rows
        rows = rows[enough]


def first_of_pairs(user: np.ndarray, item: np.ndarray, time: np.ndarray) -> np.ndarray:
    """The earliest row of each pair of user and item, the first of these where times are equal; in their order."""
    pair = user.astype(np.int64) * (int(item.max(initial=0)) + 1) + item
    order = np.lexsort((time, pair))  # stable
    pair = pair[order]
    return np.sort(order[np.append(True, pair[1:] != pair[:-1])[: len(order)]])


class _Reviews(NamedTuple):
    """20 bytes an interaction, and every id once: the text, most of the archive, is not kept."""

    users: list[str]  # by number
    items: list[str]
    user: np.ndarray  # [R] numbers
    item: np.ndarray
    rating: np.ndarray
    milliseconds: np.ndarray
    broken: int

    def rows(self, chosen: np.ndarray) -> Iterator[tuple[str, str, str, str]]:
        for row in chosen:
            seconds = self.milliseconds[row] / 1000
            time = str(int(seconds)) if seconds.is_integer() else repr(float(seconds))
            yield self.users[self.user[row]], self.items[self.item[row]], f"{self.rating[row]:g}", time


def _read_reviews(path: Path) -> _Reviews:
    users: dict[str, int] = {}
    items: dict[str, int] = {}
    user, item, rating, milliseconds = array("i"), array("i"), array("f"), array("q")
    broken = 0
    for line in read_lines(path):
        review = _interaction(line)
        if review is None:
            broken += 1
            continue
        user.append(users.setdefault(review[0], len(users)))
        item.append(items.setdefault(review[1], len(items)))
        rating.append(review[2])
        milliseconds.append(review[3])
    if not user:
        raise UserError(f"{path} holds no review that can be read ({broken:,} broken lines)")
    return _Reviews(
        list(users),
        list(items),
        user=np.frombuffer(user, np.int32),
        item=np.frombuffer(item, np.int32),
        rating=np.frombuffer(rating, np.float32),
        milliseconds=np.frombuffer(milliseconds, np.int64),
        broken=broken,
    )


def _interaction(line: str) -> tuple[str, str, float, int] | None:
    try:
        review = json.loads(line)
        row = review["user_id"], review["parent_asin"], float(review["rating"]), int(review["timestamp"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    is_usable = math.isfinite(row[2]) and abs(row[3]) < 1 << 53  # a float holds the time exactly
    return row if is_usable and is_id(row[0]) and is_id(row[1]) else None


class _Metadata:
    """The lines of .item, one by one: descriptions of a large category do not fit into memory."""

    def __init__(self, path: Path, items: Set[str]):
        self.path, self.items = path, items
        self.broken = self.missing = 0

    def rows(self) -> Iterator[list[str]]:
        """Of every item: those with metadata in the order of the file, then the others."""
        left = dict.fromkeys(self.items)
        for line in read_lines(self.path):
            parent = _PARENT.search(line)
            if parent and parent[1] not in left:
                continue  # most of the file: the 5-core keeps a small part of the products
            row = _item(line)
            if row is None:
                self.broken += 1
            elif row[0] in left:
                del left[row[0]]
                yield row
        self.missing = len(left)
        for item in left:
            yield [item] + [""] * (len(ITEM_HEADER) - 1)


def _item(line: str) -> list[str] | None:
    try:
        product = json.loads(line)
        if not isinstance(product["parent_asin"], str):
            return None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return [
        product["parent_asin"],
        clean_text(product.get("title")),
        _price(product.get("price")),
        clean_text(product.get("store")),
        join_categories(product.get("categories")),
        clean_text(product.get("features")),
        clean_text(product.get("description")),
    ]


def _price(value: Any) -> str:
    """A number, or a text such as "14.99"; "from 9.99" and "—" are no prices."""
    try:
        price = math.nan if isinstance(value, bool) else float(value)
    except (ValueError, TypeError, OverflowError):
        return ""
    return f"{price:g}" if math.isfinite(price) else ""

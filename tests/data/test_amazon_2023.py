"""Amazon Reviews 2023: the 5-core against a slow reference, and the conversion from a local server."""

import gzip
import json
import random
from collections import Counter

import numpy as np
import pytest

from recbole_diffgrm import UserError
from recbole_diffgrm.cli.main import main
from recbole_diffgrm.data import amazon_2023, source
from recbole_diffgrm.data.amazon_2023 import first_of_pairs, k_core
from recbole_diffgrm.data.atomic import read_rows
from recbole_diffgrm.models import build_config
from tests.conftest import run_python
from tests.data.helpers import read_item_texts
from tests.data.server import Server

NAME = "Amazon_2023_All_Beauty"


def slow_core(pairs, k):
    """One user or item at a time."""
    pairs = list(enumerate(pairs))
    while True:
        users, items = Counter(user for _, (user, _) in pairs), Counter(item for _, (_, item) in pairs)
        poor = [("user", user) for user, count in users.items() if count < k]
        poor += [("item", item) for item, count in items.items() if count < k]
        if not poor:
            return [row for row, _ in pairs]
        kind, name = poor[0]
        pairs = [(row, pair) for row, pair in pairs if pair[kind == "item"] != name]


def slow_first(rows):
    """{(user, item): row of its earliest time}"""
    first = {}
    for row, (user, item, time) in enumerate(rows):
        if (user, item) not in first or time < rows[first[user, item]][2]:
            first[user, item] = row
    return sorted(first.values())


@pytest.mark.parametrize("seed", range(20))
def test_core_and_first_reviews_are_those_of_a_slow_reference(seed):
    draw = random.Random(seed)
    users, items, count = draw.randrange(1, 40), draw.randrange(1, 30), draw.randrange(1, 300)
    rows = [(draw.randrange(users), draw.randrange(items), draw.randrange(5)) for _ in range(count)]
    user, item, time = (np.array(column, dtype=np.int32) for column in zip(*rows))
    assert first_of_pairs(user, item, time).tolist() == slow_first(rows)
    for k in (1, 2, 5):
        assert k_core(user, item, k).tolist() == slow_core([row[:2] for row in rows], k)


def test_removing_may_go_on_for_long():
    """A chain: each removal makes the next user or item poor."""
    user = np.repeat(np.arange(50), 2)
    item = np.arange(100) // 2 + np.arange(100) % 2
    assert len(k_core(user, item, 2)) == 0
    ring = np.where(item == 50, 0, item)
    assert k_core(user, ring, 2).tolist() == list(range(100))


def review(user, item, time, rating=5.0):
    row = {"rating": rating, "title": "x", "text": 'a "parent_asin": "B9"', "images": [], "asin": f"{item}-red"}
    return json.dumps({**row, "parent_asin": item, "user_id": user, "timestamp": time, "verified_purchase": True})


def reviews():
    """Six users and five products, each user with each product; a user with one product, and noise."""
    lines = [
        review(f"u{u}", f"P{i}", 1_600_000_000_000 + 1000 * (7 * u + i) + 5 * (i % 2))
        for u in range(6)
        for i in range(5)
    ]
    lines.insert(3, '{"user_id": "u0", "parent_asin": broken')
    lines.insert(9, json.dumps({"user_id": "u1", "parent_asin": None, "rating": 1, "timestamp": 1}))
    lines.append(review("u0", "P0", 1_500_000_000_000, rating=1.0))  # again, and earlier: this one counts
    lines.append(review("u0", "P1", 1_700_000_000_000, rating=1.0))  # again, and later
    return [*lines, review("poor", "P0", 5), review("u0", "poor", 5)]


def products():
    return [
        {
            "main_category": "All Beauty",
            "title": 'A "fine"\tcomb &amp; brush',
            "price": 9.5,
            "store": "Ö",
            "categories": ["Beauty & Care", "A|B"],
            "features": ["red", "long\nhandle"],
            "description": ["Two", "parts"],
            "parent_asin": "P3",
            "bought_together": None,
        },
        {"title": "not reviewed enough", "parent_asin": "poor"},
        {"title": None, "price": "12.00", "categories": [], "parent_asin": "P0"},
        {"title": "a second line", "parent_asin": "P0"},
        {"title": "no price", "price": "from 3", "parent_asin": "P1"},
    ]


def archives():
    metadata = [json.dumps(product) for product in products()]
    metadata.insert(1, '{"parent_asin": "P2", "title": "cut of')
    return {
        "All_Beauty.jsonl.gz": gzip.compress("\n".join(reviews()).encode()),
        "meta_All_Beauty.jsonl.gz": gzip.compress("\n".join(metadata).encode()),
    }


@pytest.fixture
def server():
    with Server(archives()) as server:
        yield server


def check_files(folder):
    rows = list(read_rows(folder / f"{NAME}.inter"))
    assert len(rows) == 30 and {(row[0], row[1]) for row in rows} == {
        (f"u{u}", f"P{i}") for u in range(6) for i in range(5)
    }
    assert rows[0] == ["u0", "P1", "5", "1600000001.005"] and rows[1] == ["u0", "P2", "5", "1600000002"]
    assert rows[-1] == ["u0", "P0", "1", "1500000000"]  # in the order of the file
    texts = read_item_texts(folder / f"{NAME}.item")
    assert sorted(texts) == ["P0", "P1", "P2", "P3", "P4"]
    assert texts["P3"] == {
        "title": 'A "fine"\tcomb & brush',
        "price": "9.5",
        "store": "Ö",
        "categories": "Beauty & Care|A/B",
        "features": "red long handle",
        "description": "Two parts",
    }
    assert texts["P0"]["price"] == "12" and texts["P1"]["price"] == "" and texts["P1"]["title"] == "no price"
    assert set(texts["P2"].values()) == set(texts["P4"].values()) == {""}
    assert {path.name for path in folder.iterdir()} == {f"{NAME}.inter", f"{NAME}.item"}


def test_download_and_convert(server, tmp_path, capsys):
    source.fetch(NAME, tmp_path / NAME, {"amazon_2023_url": f"{server.url}/raw"})
    check_files(tmp_path / NAME)
    assert server.paths == [
        "/files/raw/review_categories/All_Beauty.jsonl.gz",
        "/files/raw/meta_categories/meta_All_Beauty.jsonl.gz",
    ]
    written = capsys.readouterr().err
    assert "34 reviews (2 of a product that the user had reviewed before)" in written
    assert "5-core: 6 users, 5 items (2 without metadata), 30 interactions" in written
    assert "skipped as broken: 2 reviews, 1 metadata line\n" in written


def test_files_on_disk(tmp_path):
    for name, content in archives().items():
        (tmp_path / name).write_bytes(content)
    files = [f"--reviews={tmp_path / 'All_Beauty.jsonl.gz'}", f"--meta={tmp_path / 'meta_All_Beauty.jsonl.gz'}"]
    done = run_python("-m", "recbole_diffgrm.data", f"--dataset={NAME}", f"--data_path={tmp_path / 'out'}", *files)
    assert done.returncode == 0, done.stderr
    assert f"{NAME}.inter" in done.stdout and f"{NAME}.item" in done.stdout
    check_files(tmp_path / "out" / NAME)


def test_nothing_is_left_of_a_category_without_a_core(server, tmp_path):
    server.files["All_Beauty.jsonl.gz"] = gzip.compress("\n".join(reviews()[:20]).encode())
    with pytest.raises(UserError, match="no user and item with 5 interactions are left"):
        source.fetch(NAME, tmp_path / "data" / NAME, {"amazon_2023_url": server.url})
    assert not list(tmp_path.iterdir())


def test_33_categories_and_hints(tmp_path):
    assert len(set(amazon_2023.CATEGORIES)) == 33
    with pytest.raises(UserError, match="Did you mean Amazon_2023_Video_Games") as error:
        source.fetch("Amazon_2023_Video_Game", tmp_path / "x", {})
    assert "Subscription_Boxes" in str(error.value) and "Apps_for_Android" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_settings_of_the_release(tmp_path):
    config = build_config("DiffGRM", NAME, overrides={"data_path": str(tmp_path)})
    assert {"store", "features"} <= set(config["sid_text_fields"]) and config["seq_separator"] == "|"
    assert "store" not in build_config("DiffGRM", "Amazon_Beauty")["sid_text_fields"]


@pytest.mark.slow
def test_one_command_from_the_server_to_metrics(tmp_path, capsys):
    lines = [
        review(f"u{u}", f"B{(u + t) % 12}", 1_600_000_000_000 + 86_400_000 * t) for u in range(30) for t in range(6)
    ]
    metadata = [json.dumps({"parent_asin": f"B{i}", "title": f"T{i}", "categories": [f"c{i % 3}"]}) for i in range(12)]
    files = {"Software.jsonl.gz": lines, "meta_Software.jsonl.gz": metadata}
    with Server({name: gzip.compress("\n".join(content).encode()) for name, content in files.items()}) as server:
        arguments = ["--dataset=Amazon_2023_Software", "--model=SASRec", "--epochs=1", "--show_progress=False"]
        arguments += [f"--data_path={tmp_path / 'data'}", f"--output_dir={tmp_path / 'runs'}"]
        assert main([*arguments, f"--amazon_2023_url={server.url}"]) == 0
    written = capsys.readouterr()
    assert "30 users, 12 items, 180 interactions" in written.err and "ndcg@10" in written.out

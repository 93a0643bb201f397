"""Download and conversion, against a local server that misbehaves on request."""

import gzip
import json
import os
import subprocess
import sys

import pytest

from recbole_diffgrm import UserError
from recbole_diffgrm.cli.main import main
from recbole_diffgrm.data import amazon, amazon_2023, download, source
from recbole_diffgrm.data.atomic import read_rows
from tests.conftest import ROOT, error_line
from tests.data.helpers import read_item_texts
from tests.data.server import Server

REVIEWS = [("u1", "B1", 5.0, 20), ("u1", "B2", 3.0, 10), ("u2", "B1", 4.0, 10), ("u1", "B3", 1.0, 20)]
PRODUCTS = [
    {
        "asin": "B1",
        "title": 'It\'s 5" wide &amp; "nice"\tö',
        "price": 9.5,
        "brand": "Ü",
        "categories": [["Beauty", "Hair"], ["Beauty", "A|B"]],
        "description": "Two\nlines",
    },
    {"asin": "B2", "title": None, "categories": []},
    {"asin": "B9", "title": "never reviewed"},
]


def review_lines():
    lines = [
        json.dumps({"reviewerID": u, "asin": i, "overall": r, "unixReviewTime": t, "reviewText": "x" * 500})
        for u, i, r, t in REVIEWS
    ]
    return [lines[0], '{"reviewerID": "u1", broken', lines[1], json.dumps({"asin": "B1"}), *lines[2:]]


def archives():
    metadata = [repr(product) for product in PRODUCTS]
    metadata.insert(1, "{'asin': 'B3', 'title': __import__('os').system('true')}")
    metadata.insert(2, "{'asin': 'B3', 'title': 'cut of")
    return {
        "reviews_Beauty_5.json.gz": gzip.compress("\n".join(review_lines()).encode()),
        "meta_Beauty.json.gz": gzip.compress("\n".join(metadata).encode()),
    }


@pytest.fixture
def server():
    with Server(archives()) as server:
        yield server


def fetch(folder, server):
    source.fetch("Amazon_Beauty", folder, {"amazon_url": server.url})


def check_files(folder):
    assert list(read_rows(folder / "Amazon_Beauty.inter")) == [
        ["u1", "B1", "5", "20"],
        ["u1", "B2", "3", "10"],
        ["u2", "B1", "4", "10"],
        ["u1", "B3", "1", "20"],
    ]
    texts = read_item_texts(folder / "Amazon_Beauty.item")
    assert list(texts) == ["B1", "B2", "B3"]
    assert texts["B1"] == {
        "title": 'It\'s 5" wide & "nice"\tö',
        "price": "9.5",
        "brand": "Ü",
        "categories": "Beauty|Hair|A/B",
        "description": "Two lines",
    }
    assert set(texts["B2"].values()) == set(texts["B3"].values()) == {""}
    assert {path.name for path in folder.iterdir()} == {"Amazon_Beauty.inter", "Amazon_Beauty.item"}


def test_download_and_convert(server, tmp_path):
    fetch(tmp_path / "Amazon_Beauty", server)
    check_files(tmp_path / "Amazon_Beauty")


def test_cut_connections_are_continued(server, tmp_path):
    server.cut_after = 100
    fetch(tmp_path / "Amazon_Beauty", server)
    check_files(tmp_path / "Amazon_Beauty")
    reviews = [request for request in server.requests if request[0].startswith("reviews")]
    assert len(reviews) > 1
    assert sum(sent for _, _, sent in reviews) == len(server.files["reviews_Beauty_5.json.gz"])  # no byte twice
    assert [asked for _, asked, _ in reviews] == [None] + [f"bytes={100 * i}-" for i in range(1, len(reviews))]


def test_a_server_without_ranges_starts_over(server, tmp_path):
    server.ranges = False
    folder = tmp_path / "Amazon_Beauty"
    folder.mkdir()
    (folder / "meta_Beauty.json.gz.part").write_bytes(b"half of an older download")
    fetch(folder, server)
    check_files(folder)


def test_a_part_of_something_else_is_replaced(server, tmp_path):
    folder = tmp_path / "Amazon_Beauty"
    folder.mkdir()
    (folder / "reviews_Beauty_5.json.gz.part").write_bytes(b"not the beginning of this archive")
    fetch(folder, server)
    check_files(folder)


def test_after_too_many_cuts_the_next_call_goes_on(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "PAUSE", 0)
    server.ends_at = 50
    folder = tmp_path / "Amazon_Beauty"
    with pytest.raises(UserError, match=r"goes on from what is kept: \S+gz.part \(50 bytes\).* two ways out"):
        fetch(folder, server)
    assert len(server.requests) == download.TRIES
    server.ends_at = None
    fetch(folder, server)
    assert server.requests[download.TRIES][1] == "bytes=50-"
    check_files(folder)


def test_archives_put_there_by_hand_are_used_and_stay(server, tmp_path):
    folder = tmp_path / "Amazon_Beauty"
    folder.mkdir()
    (folder / "meta_Beauty.json.gz").write_bytes(server.files.pop("meta_Beauty.json.gz"))
    fetch(folder, server)
    assert (folder / "meta_Beauty.json.gz").exists()
    (folder / "meta_Beauty.json.gz").unlink()
    check_files(folder)


def test_two_at_once(server, tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    server.cut_after = 100
    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(fetch, tmp_path / "Amazon_Beauty", server) for _ in range(2)]
        assert [future.result() for future in done] == [None, None]
    reviews = [sent for name, _, sent in server.requests if name.startswith("reviews")]
    assert sum(reviews) == len(server.files["reviews_Beauty_5.json.gz"])  # downloaded once
    check_files(tmp_path / "Amazon_Beauty")


def test_folder_that_cannot_be_written(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be used"):
        fetch(tmp_path / "file" / "Amazon_Beauty", server)


def test_truncated_archive(server, tmp_path):
    server.files["meta_Beauty.json.gz"] = server.files["meta_Beauty.json.gz"][:-20]
    with pytest.raises(UserError, match="damaged at its source"):
        fetch(tmp_path / "Amazon_Beauty", server)
    kept = {path.name for path in (tmp_path / "Amazon_Beauty").iterdir()}
    assert kept == {"reviews_Beauty_5.json.gz.part"}  # whole, and used by the next call
    server.files |= archives()
    sent = len(server.requests)
    fetch(tmp_path / "Amazon_Beauty", server)
    assert [name for name, _, _ in server.requests[sent:]] == ["meta_Beauty.json.gz"]
    check_files(tmp_path / "Amazon_Beauty")


def test_missing_at_the_server(server, tmp_path):
    del server.files["meta_Beauty.json.gz"]
    with pytest.raises(UserError, match=r"404.*two ways out"):
        fetch(tmp_path / "Amazon_Beauty", server)


@pytest.mark.slow
def test_one_command_from_the_server_to_metrics(server, tmp_path, capsys):
    lines = [
        json.dumps({"reviewerID": f"u{u}", "asin": f"B{(u + t) % 12}", "overall": 5.0, "unixReviewTime": 86400 * t})
        for u in range(30)
        for t in range(6)
    ]
    server.files["reviews_Baby_5.json.gz"] = gzip.compress("\n".join(lines).encode())
    products = [repr({"asin": f"B{i}", "title": f"T{i}", "categories": [["Baby", f"c{i % 3}"]]}) for i in range(12)]
    server.files["meta_Baby.json.gz"] = gzip.compress("\n".join(products).encode())
    arguments = ["--dataset=Amazon_Baby", "--model=SASRec,FDSA", "--epochs=1", f"--amazon_url={server.url}"]
    arguments += [f"--data_path={tmp_path / 'data'}", f"--output_dir={tmp_path / 'runs'}"]
    assert main(arguments) == 0
    written = capsys.readouterr()
    assert "180 interactions, 12 items" in written.err
    assert "SASRec" in written.out and "FDSA" in written.out
    requests = len(server.requests)
    assert main(arguments) == 0
    assert len(server.requests) == requests  # it is there now


def test_no_network_names_both_ways_out(tmp_path, capsys):
    code = main(
        ["--dataset=Amazon_Beauty", f"--data_path={tmp_path / 'data'}", "--amazon_url=http://127.0.0.1:9/files"]
    )
    message = error_line(capsys.readouterr().err)
    assert code == 2
    assert "python -m recbole_diffgrm.data --dataset=Amazon_Beauty --reviews" in message
    assert "--data_path" in message
    assert not (tmp_path / "data").exists()


def test_unknown_category(tmp_path):
    with pytest.raises(UserError, match="Did you mean Amazon_Toys_and_Games"):
        source.fetch("Amazon_Toys_and_Game", tmp_path, {"amazon_url": "http://127.0.0.1:9"})


def convert_on_disk(tmp_path, *extra):
    command = [
        sys.executable,
        "-m",
        "recbole_diffgrm.data",
        "--dataset=Amazon_Beauty",
        f"--data_path={tmp_path / 'out'}",
    ]
    return subprocess.run([*command, *extra], cwd=ROOT, capture_output=True, text=True)


def test_files_on_disk(tmp_path):
    for name, content in archives().items():
        (tmp_path / name).write_bytes(content)
    meta_by_hand = tmp_path / "meta.json"  # unpacked by hand
    meta_by_hand.write_bytes(gzip.decompress(archives()["meta_Beauty.json.gz"]))
    done = convert_on_disk(tmp_path, f"--reviews={tmp_path / 'reviews_Beauty_5.json.gz'}", f"--meta={meta_by_hand}")
    assert done.returncode == 0, done.stderr
    assert "skipped as broken: 2 reviews, 2 metadata lines" in done.stderr
    check_files(tmp_path / "out" / "Amazon_Beauty")
    assert (tmp_path / "reviews_Beauty_5.json.gz").exists()  # the user's own file stays


def test_damaged_file_on_disk(tmp_path):
    for name, content in archives().items():
        (tmp_path / name).write_bytes(content[:-30])
    done = convert_on_disk(
        tmp_path, f"--reviews={tmp_path / 'reviews_Beauty_5.json.gz'}", f"--meta={tmp_path / 'meta_Beauty.json.gz'}"
    )
    assert done.returncode == 2
    assert "is damaged" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_one_of_two_files(tmp_path):
    done = convert_on_disk(tmp_path, "--reviews=x.gz")
    assert done.returncode == 2 and "go together" in done.stderr


REVIEW = {"reviewerID": "u", "asin": "i", "overall": 5.0, "unixReviewTime": 1}


@pytest.mark.parametrize("release", [amazon, amazon_2023])
@pytest.mark.parametrize(
    "changes",
    [
        {"overall": float("nan")},
        {"overall": 10**400},
        {"unixReviewTime": float("inf")},
        {"asin": "\ud800"},
        {"asin": "[PAD]"},
        {"asin": "x" * 1001},
        {"reviewerID": "a\tb"},
        {"reviewerID": ["u"]},
    ],
    ids=str,
)
def test_reviews_that_cannot_be_used(release, changes):
    def line(**changes):
        content = {**REVIEW, **changes}
        names = dict(zip(REVIEW, ("user_id", "parent_asin", "rating", "timestamp")))
        return json.dumps(content if release is amazon else {names[key]: value for key, value in content.items()})

    assert release._interaction(line()) is not None
    assert release._interaction(line(**changes)) is None
    assert release._interaction("[" * 100_000) is None


@pytest.mark.parametrize("price", ["1e400", "-1e999", "1" * 400])
def test_prices_that_are_none(price):
    line = f"{{'asin': 'i', 'price': {price}, 'title': 'half a \\ud800 pair'}}"
    assert amazon._item(line)[:3] == ["i", "half a ? pair", ""]


def test_a_line_without_end(tmp_path, monkeypatch):
    """A small archive may hold one that fills the memory."""
    monkeypatch.setattr(amazon, "MAX_LINE_BYTES", 1000)
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"short\n" + bytes(2000)))
    with pytest.raises(UserError, match=r"a.gz, line 2: longer than 1,000 bytes"):
        list(amazon.read_lines(tmp_path / "a.gz"))


def test_archives_that_are_no_files(tmp_path):
    os.mkfifo(tmp_path / "a.gz")
    for path, words in ((tmp_path, "is a folder"), (tmp_path / "a.gz", "a pipe"), (tmp_path / "b", "does not exist")):
        with pytest.raises(UserError, match=words):
            list(amazon.read_lines(path))

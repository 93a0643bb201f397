"""Datasets of RecBole's url.yaml, from a local server."""

import errno
import io
import os
import re
import stat
import struct
import zipfile

import pytest

from recbole_diffgrm import UserError
from recbole_diffgrm.cli.main import main
from recbole_diffgrm.data import recbole_archives, source
from tests.conftest import write_dataset
from tests.data.server import Server

INTER = b"user_id:token\titem_id:token\ttimestamp:float\nu\ti\t1\n"
ITEM = b"item_id:token\ttitle:token\ni\tT\n"


def pack(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@pytest.fixture
def server():
    with Server({}) as server:
        yield server


def fetch(dataset, tmp_path, server):
    source.fetch(dataset, tmp_path / dataset, {"recbole_url": server.url})
    return {path.name: path.read_bytes() for path in (tmp_path / dataset).iterdir()}


def test_every_address_of_url_yaml_is_below_recbole_url():
    addresses = [
        url for name in recbole_archives.dataset_names() for url in recbole_archives.archive_urls(name, "http://x")
    ]
    assert len(addresses) > 100 and all(url.startswith("http://x/") and url.endswith(".zip") for url in addresses)


def test_by_its_own_name(server, tmp_path):
    server.files["ml-1m.zip"] = pack({"ml-1m.inter": INTER, "ml-1m.item": ITEM, "ml-1m.kg": b"", "README.md": b"x"})
    assert fetch("ml-1m", tmp_path, server) == {"ml-1m.inter": INTER, "ml-1m.item": ITEM}
    assert server.paths == ["/files/MovieLens/ml-1m.zip"]


@pytest.mark.parametrize(
    "inside", ["Amazon_Beauty", "Beauty 2014", "Amazon_Beauty/x/Amazon_Beauty", "C:\\data\\beauty"]
)
def test_files_of_another_name_are_renamed(server, tmp_path, inside):
    members = {f"{inside}.inter": INTER, f"{inside}.item": ITEM, f"__MACOSX/._{inside[-6:]}.inter": b"x"}
    server.files["Amazon_Beauty.zip"] = pack(members)
    assert fetch("amazon-beauty", tmp_path, server) == {"amazon-beauty.inter": INTER, "amazon-beauty.item": ITEM}


def test_ready_made_parts(server, tmp_path):
    parts = {f"tmall_session.{part}.inter": part.encode() for part in ("train", "valid", "test")}
    server.files["tmall_session.zip"] = pack({**parts, "tmall_session.item": ITEM})
    expected = {name.replace("tmall_session", "tmall-session"): content for name, content in parts.items()}
    assert fetch("tmall-session", tmp_path, server) == {**expected, "tmall-session.item": ITEM}
    requests = len(server.paths)
    fetch("tmall-session", tmp_path, server)
    assert len(server.paths) == requests  # it is there now


def test_paths_that_lead_out_of_the_folder(server, tmp_path):
    members = {"../../escaped.inter": INTER, "/etc/escaped.item": ITEM}
    server.files["ml-1m.zip"] = pack(members)
    folder = tmp_path / "deep" / "down"
    assert set(fetch("ml-1m", folder, server)) == {"ml-1m.inter", "ml-1m.item"}
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"ml-1m.inter", "ml-1m.item"}


def test_a_link_in_an_archive_leads_nowhere(server, tmp_path):
    """It becomes a file with the path as its text."""
    link = zipfile.ZipInfo("ml-1m.item")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("ml-1m.inter", INTER)
        archive.writestr(link, "/etc/passwd")
    server.files["ml-1m.zip"] = buffer.getvalue()
    assert fetch("ml-1m", tmp_path, server)["ml-1m.item"] == b"/etc/passwd"
    assert not (tmp_path / "ml-1m" / "ml-1m.item").is_symlink()


def test_a_bomb_is_refused_before_it_is_unpacked(server, tmp_path):
    bomb = pack({"ml-1m.inter": INTER, "ml-1m.item": bytes(1 << 27)})
    assert len(bomb) < 1 << 18
    server.files["ml-1m.zip"] = bomb
    with pytest.raises(UserError, match=r"damaged at its source .*unpack to 134,217,\d+"):
        fetch("ml-1m", tmp_path / "data", server)
    folder = tmp_path / "by hand" / "ml-1m"
    folder.mkdir(parents=True)
    (folder / "ml-1m.zip").write_bytes(bomb)
    with pytest.raises(UserError, match=r"ml-1m.zip is refused \(.* bytes that unpack to 134,217,\d+\)"):
        fetch("ml-1m", tmp_path / "by hand", server)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["ml-1m.zip"]


def test_a_member_that_unpacks_to_more_than_it_says(server, tmp_path):
    content = bytearray(pack({"ml-1m.inter": INTER * 100}))
    size = struct.pack("<I", len(INTER) * 100)
    for start in (match.start() for match in re.finditer(re.escape(size), bytes(content))):
        content[start : start + 4] = struct.pack("<I", len(INTER))
    server.files["ml-1m.zip"] = bytes(content)
    with pytest.raises(UserError, match="damaged at its source"):
        fetch("ml-1m", tmp_path / "data", server)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_nothing(server, tmp_path, monkeypatch):
    def fail(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    server.files["ml-1m.zip"] = pack({"ml-1m.inter": INTER, "ml-1m.item": ITEM})
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UserError, match=r"cannot be written .No space left on device"):
        fetch("ml-1m", tmp_path / "data", server)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "members, message",
    [
        ({"ml-1m.item": ITEM}, r"^ml-1m.zip holds no .inter file: get it by hand"),
        ({"a.inter": INTER, "b.inter": INTER}, r"several datasets \(a, b\)"),
        ({"x/a.inter": INTER, "y/a.inter": INTER}, "two files a.inter"),
    ],
)
def test_an_archive_that_does_not_say_what_to_use(server, tmp_path, members, message):
    server.files["ml-1m.zip"] = pack(members)
    with pytest.raises(UserError, match=message):
        fetch("ml-1m", tmp_path / "data", server)
    assert not list(tmp_path.iterdir())


def test_a_damaged_archive(server, tmp_path):
    content = bytearray(pack({"ml-1m.inter": INTER * 1000}))
    content[60] ^= 0xFF
    server.files["ml-1m.zip"] = bytes(content)
    with pytest.raises(UserError, match="damaged at its source"):
        fetch("ml-1m", tmp_path / "data", server)
    assert not list(tmp_path.iterdir())


def test_an_archive_put_there_by_hand_is_used_and_stays(server, tmp_path):
    with pytest.raises(UserError, match=r"404.*get ml-1m.zip by hand, put it into \S+ml-1m") as error:
        fetch("ml-1m", tmp_path, server)
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())
    (tmp_path / "ml-1m").mkdir()
    (tmp_path / "ml-1m" / "ml-1m.zip").write_bytes(pack({"ml-1m.inter": INTER}))
    assert set(fetch("ml-1m", tmp_path, server)) == {"ml-1m.inter", "ml-1m.zip"}


@pytest.mark.slow
def test_one_command_from_the_server_to_metrics(server, tmp_path, capsys):
    made = write_dataset(tmp_path / "made", "ML-1M") / "ML-1M"
    server.files["ml-1m.zip"] = pack({f"x/{path.name}": path.read_bytes() for path in made.iterdir()})
    arguments = ["--dataset=ml-1m", "--model=Pop", f"--data_path={tmp_path / 'data'}", f"--recbole_url={server.url}"]
    assert main([*arguments, f"--output_dir={tmp_path / 'runs'}"]) == 0
    written = capsys.readouterr()
    assert f"downloading {server.url}/MovieLens/ml-1m.zip" in written.err and "Pop" in written.out

"""One downloader, against a local server that misbehaves on request."""

import gzip
import io
import socket
import subprocess
import sys
import zipfile

import pytest

from recbole_diffgrm.data import download as module
from recbole_diffgrm.data.download import DownloadFailed, dataset_folder, download
from recbole_diffgrm.errors import UserError
from tests.conftest import ROOT
from tests.data.server import Server

CONTENT = bytes(range(256)) * 40


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("a.inter", CONTENT)
    return buffer.getvalue()


FILES = {"a.gz": gzip.compress(CONTENT), "a.zip": zipped()}


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(module, "PAUSE", 0)
    with Server(dict(FILES)) as server:
        yield server


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("answers", [[], [500], [503, 502, 429, 500], [None], [500, None, 500]])
def test_trouble_that_passes(server, tmp_path, capsys, name, answers):
    server.answers = list(answers)
    assert download(f"{server.url}/{name}", tmp_path / name).read_bytes() == FILES[name]
    assert len(server.paths) == len(answers) + 1
    announced = [line for line in capsys.readouterr().err.splitlines() if line.startswith("downloading")]
    assert len(announced) == 1 and f"{server.url}/{name} (" in announced[0]


def test_what_is_downloaded_from_where_is_said(server, tmp_path, capsys):
    server.files["a.gz"] = gzip.compress(b"".join(i.to_bytes(4, "big") for i in range(300_000)), 1)
    download(f"{server.url}/a.gz", tmp_path / "a.gz")
    size = len(server.files["a.gz"]) / 1e6
    assert f"downloading {server.url}/a.gz ({size:,.1f} MB)" in capsys.readouterr().err


@pytest.mark.parametrize("status, tries", [(500, module.TRIES), (503, module.TRIES), (404, 1), (403, 1)])
def test_trouble_that_stays(server, tmp_path, status, tries):
    server.answers = [status] * 20
    with pytest.raises(DownloadFailed, match=f"answered {status}"):
        download(f"{server.url}/a.gz", tmp_path / "a.gz")
    assert len(server.paths) == tries
    assert not list(tmp_path.iterdir())


def test_a_server_error_between_two_halves(server, tmp_path):
    (tmp_path / "a.zip.part").write_bytes(FILES["a.zip"][:1000])
    server.answers = [500]
    assert download(f"{server.url}/a.zip", tmp_path / "a.zip").read_bytes() == FILES["a.zip"]
    assert [asked for _, asked, _ in server.requests] == ["bytes=1000-"]


def test_what_arrived_is_kept(server, tmp_path):
    server.ends_at = 700
    with pytest.raises(DownloadFailed, match="connection was cut"):
        download(f"{server.url}/a.zip", tmp_path / "a.zip")
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip.part"]
    assert (tmp_path / "a.zip.part").read_bytes() == FILES["a.zip"][:700]


def test_a_server_that_starts_over_and_over_is_given_up(server, tmp_path):
    """Though every other answer gets further than the one before."""
    server.ranges = False
    server.cuts = [100, 200] * 20
    with pytest.raises(DownloadFailed, match="connection was cut"):
        download(f"{server.url}/a.gz", tmp_path / "a.gz")
    assert len(server.paths) == 1 + module.TRIES


def test_an_answer_without_a_byte_leaves_no_file(server, tmp_path):
    server.ends_at = 0
    with pytest.raises(DownloadFailed, match="connection was cut"):
        download(f"{server.url}/a.zip", tmp_path / "a.zip")
    assert not list(tmp_path.iterdir())


def test_an_empty_file(server, tmp_path):
    server.files["a.zip"] = b""
    with pytest.raises(DownloadFailed, match="sent an empty file"):
        download(f"{server.url}/a.zip", tmp_path / "a.zip")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("where", [30, 500, -40])
def test_a_damaged_archive_is_found_out_and_removed(server, tmp_path, name, where):
    content = bytearray(zipped() if name == "a.zip" else gzip.compress(bytes(CONTENT), 0))
    content[where] ^= 0xFF
    content[where + 7] ^= 0xFF
    server.files[name] = bytes(content)
    with pytest.raises(DownloadFailed, match="damaged at its source"):
        download(f"{server.url}/{name}", tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_nobody_listens(tmp_path, monkeypatch):
    """Answered at once, without waiting for a server that may never be there."""
    monkeypatch.setattr(module.time, "sleep", lambda seconds: pytest.fail("it waits"))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(DownloadFailed, match="no connection"):
            download(f"http://127.0.0.1:{unused.getsockname()[1]}/a.gz", tmp_path / "a.gz")


@pytest.mark.parametrize("stop", [UserError, KeyboardInterrupt])
def test_a_folder_that_stays_empty_is_removed_with_those_made_for_it(tmp_path, stop):
    (tmp_path / "mine").mkdir()
    with pytest.raises(stop), dataset_folder(tmp_path / "mine" / "data" / "x"):
        assert (tmp_path / "mine" / "data" / "x").is_dir()
        raise stop
    assert not list((tmp_path / "mine").iterdir())


def test_a_folder_with_something_in_it_stays(tmp_path):
    with pytest.raises(UserError, match="No space left"), dataset_folder(tmp_path / "data" / "x"):
        (tmp_path / "data" / "x" / "a.part").write_text("half")
        raise OSError(28, "No space left on device")
    assert [path.name for path in (tmp_path / "data" / "x").iterdir()] == ["a.part"]


WORK = """
import sys, time
from pathlib import Path
from recbole_diffgrm.data.download import dataset_folder
from recbole_diffgrm.errors import UserError
folder = Path(sys.argv[1])
for attempt in range(20):
    try:
        with dataset_folder(folder):
            (folder / "alone").open("x").close()  # fails where another process is inside
            time.sleep(0.001)
            (folder / "alone").unlink()
            raise UserError("failed")
    except UserError as error:
        assert str(error) == "failed", error
"""


def test_processes_take_turns_though_each_removes_the_folder(tmp_path):
    workers = [
        subprocess.Popen([sys.executable, "-c", WORK, tmp_path / "data" / "x"], cwd=ROOT, stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    assert [worker.communicate()[1].decode() for worker in workers] == ["", "", ""]
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    assert not (tmp_path / "data" / "x").exists()


@pytest.mark.parametrize("url", ["http://[", "http://[::1/a.gz", "http://x:port/a.gz", "http://127.0.0.1:9/\u00e4.gz"])
def test_addresses_that_are_none(tmp_path, url):
    with pytest.raises(DownloadFailed, match=r"http://"):
        download(url, tmp_path / "a.gz")
    assert not list(tmp_path.iterdir())

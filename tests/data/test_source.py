"""Where a dataset comes from."""

import subprocess
import sys

import pytest

from recbole_diffgrm import UserError
from recbole_diffgrm.cli.main import main
from recbole_diffgrm.data import source
from tests.conftest import ROOT
from tests.data.server import Server
from tests.data.test_recbole_archives import INTER, pack


def test_no_name_is_in_two_sources():
    names = [name for one in source.SOURCES for name in one.dataset_names()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("typo, meant", [("ml-1mm", "ml-1m"), ("amazon-beuty", "amazon-beauty"), ("ml-100", "ml-100k")])
def test_a_name_that_nobody_has(tmp_path, capsys, typo, meant):
    assert main([f"--dataset={typo}", "--model=Pop", f"--data_path={tmp_path / 'data'}"]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and f"Did you mean {meant}?" in message and "data_path" in message
    assert not list(tmp_path.iterdir())


def test_an_address_that_is_none(tmp_path, capsys):
    assert main(["--dataset=ml-1m", "--model=Pop", f"--data_path={tmp_path / 'data'}", "--recbole_url=here"]) == 2
    assert "recbole_url must be an address" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_ready_made_parts_alone_are_named(tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "mine.train.inter").write_bytes(INTER)
    assert main(["--dataset=mine", "--model=Pop", f"--data_path={tmp_path}"]) == 2
    assert "ready-made parts" in capsys.readouterr().err


def test_two_processes_at_once(tmp_path):
    with Server({"ml-1m.zip": pack({f"ml-1m.{kind}": INTER * 5000 for kind in ("inter", "item", "user")})}) as server:
        server.cut_after = 100
        command = [sys.executable, "-m", "recbole_diffgrm.data", "--dataset=ml-1m", f"--recbole_url={server.url}"]
        command.append(f"--data_path={tmp_path / 'data'}")
        both = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
        written = [process.communicate()[1].decode() for process in both]
        assert [process.returncode for process in both] == [0, 0], written
        assert sum(sent for _, _, sent in server.requests) == len(server.files["ml-1m.zip"])  # no byte twice
    folder = tmp_path / "data" / "ml-1m"
    assert {path.name for path in folder.iterdir()} == {"ml-1m.inter", "ml-1m.item", "ml-1m.user"}
    assert (folder / "ml-1m.inter").read_bytes() == INTER * 5000


def test_a_conversion_that_is_interrupted_keeps_what_can_be_continued(tmp_path, monkeypatch):
    with Server({"ml-1m.zip": pack({"ml-1m.inter": INTER})}) as server:
        urls = {"recbole_url": server.url}
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(
                source.recbole_archives, "_unpack", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt)
            )
            source.fetch("ml-1m", tmp_path / "ml-1m", urls)
        assert [path.name for path in (tmp_path / "ml-1m").iterdir()] == ["ml-1m.zip.part"]
        source.fetch("ml-1m", tmp_path / "ml-1m", urls)
        assert sum(sent for _, _, sent in server.requests) == len(server.files["ml-1m.zip"])
    assert [path.name for path in (tmp_path / "ml-1m").iterdir()] == ["ml-1m.inter"]


def test_a_folder_that_cannot_be_looked_into(tmp_path):
    with pytest.raises(UserError, match=r"cannot be read \(File name too long\)"):
        source.check_dataset("x" * 300, tmp_path / ("x" * 300))

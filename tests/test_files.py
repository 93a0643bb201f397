"""Every file that is stored is read and written in one way."""

import errno
import hashlib
import json
import os
import re
import shutil

import numpy as np
import pytest

from recbole_diffgrm import UserError, files
from recbole_diffgrm.files import Damaged, atomic_write, file_sha256, make_folder, read_text, reading
from tests.conftest import ROOT

PACKAGE = ROOT / "recbole_diffgrm"
# Written or read by other rules: data files as they come from elsewhere, configuration, the system's own files.
OTHERS = ("data/", "config/", "experiments/environment.py", "cli/reference.py", "files.py", "tokenizer/embeddings.py")


def test_nothing_is_written_past_files_py():
    direct = re.compile(
        r"\.write_text\(|open_memmap|savefig\(path|savez\w*\((?!file\b)|torch\.save\((?!content, hashed|buffers, file)"
    )
    for path in PACKAGE.rglob("*.py"):
        name = str(path.relative_to(PACKAGE))
        if name.startswith(OTHERS):
            continue
        found = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if direct.search(line)]
        assert not found, name


def test_permission_denied_is_not_damage(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("content")

    def deny(*arguments, **keywords):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(type(path), "open", deny)
    for read in (read_text, file_sha256):
        with pytest.raises(UserError, match=r"file cannot be read \(Permission denied\): check") as error:
            read(path)
        assert not isinstance(error.value, Damaged) and "delete" not in str(error.value)


def test_missing_and_damaged(tmp_path):
    with pytest.raises(Damaged, match=r"nothing does not exist$"):
        file_sha256(tmp_path / "nothing")
    (tmp_path / "text").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(Damaged, match="not UTF-8"):
        read_text(tmp_path / "text")
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(Damaged, match="other things than plain data") as error, reading(tmp_path / "objects.npy"):
        np.load(tmp_path / "objects.npy")
    assert "allow_pickle" not in str(error.value)


@pytest.mark.parametrize("call", ["fsync", "replace", "unlink"])
def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch, call):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(*arguments, **keywords):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync" if call == "unlink" else call, fail)
    if call == "unlink":  # not even the temporary file can be removed
        monkeypatch.setattr(os, "unlink", fail)
    with (
        pytest.raises(UserError, match=r"file cannot be written \(No space left on device\)"),
        atomic_write(path) as file,
    ):
        file.write(b"new")
    assert path.read_text() == "old"


def test_folder_in_the_way(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/folder cannot be written \(Not a directory\)"):
        make_folder(tmp_path / "file" / "folder")


def flip(path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["result.json", "ranks.npz", "items.tsv"])
def test_flipped_bits_of_a_result(options, tmp_path, name):
    """Each is one line, or changes nothing of what is read."""
    from recbole_diffgrm import run
    from recbole_diffgrm.experiments import item_table
    from recbole_diffgrm.experiments.result import RunResult
    from recbole_diffgrm.experiments.results_table import load_ranks

    def read(run_dir):
        result = RunResult.load(run_dir)
        ranks = {key: values.tolist() for key, values in load_ranks(result).items()}
        return result.test, result.valid, result.config, result.curve, result.groups, ranks, item_table.load(result)

    intact = run("Pop", "tiny", **options).run_dir
    expected = read(intact)
    broken = tmp_path / "broken"
    refused = 0
    rng = np.random.default_rng(0)
    for bit in rng.integers(0, 8 * (intact / name).stat().st_size, 150):
        shutil.copytree(intact, broken)
        flip(broken / name, int(bit))
        try:
            assert read(broken) == expected
        except UserError as error:
            refused += 1
            assert name in str(error) and "\n" not in str(error)
        shutil.rmtree(broken)
    assert refused > (100 if name != "result.json" else 50)  # white space of result.json says nothing


def test_checksums_are_those_of_the_files(options):
    from recbole_diffgrm import run
    from recbole_diffgrm.experiments.result import RunResult

    result = run("Pop", "tiny", **options, save_topk=3)
    saved = json.loads((result.run_dir / "result.json").read_text())["sha256"]
    assert set(saved) == {"result.json", "best.pt", "items.tsv", "ranks.npz", "topk.tsv"}
    assert {name: file_sha256(result.run_dir / name) for name in result.sha256} == result.sha256
    assert RunResult.load(result.run_dir) == result


def test_input_is_hashed_once_until_it_changes(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(
        files, "file_sha256", lambda path: read.append(path) or hashlib.sha256(path.read_bytes()).hexdigest()
    )
    path = tmp_path / "data"
    path.write_text("one")
    assert files.input_sha256(path) == files.input_sha256(path) == hashlib.sha256(b"one").hexdigest()
    assert len(read) == 1
    path.write_text("two")
    os.utime(path, ns=(0, 1))  # a clock may be coarser than a test
    assert files.input_sha256(path) == hashlib.sha256(b"two").hexdigest()
    with pytest.raises(UserError, match="does not exist"):
        files.input_sha256(tmp_path / "none")

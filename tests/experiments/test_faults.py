"""Disks that are full, read-only or broken, files that are lost, and two processes at once."""

import io
import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from recbole_diffgrm import Recommender, UserError, compare, retest, run
from recbole_diffgrm.cli.main import main
from recbole_diffgrm.experiments import run_directory
from recbole_diffgrm.experiments.result import RunResult
from recbole_diffgrm.screen import log_to_screen
from recbole_diffgrm.tokenizer import text_encoder
from recbole_diffgrm.training.tracking import TensorBoard, Tracking
from tests.conftest import ROOT, error_line
from tests.fault_harness import Disk

# How many faults the test below tries; `all`: each at each event, which takes hours.
POINTS = os.environ.get("RECBOLE_DIFFGRM_FAULTS", "9")


def arguments_of(options: dict, **changes) -> list[str]:
    settings = {"dataset": "tiny", **options, "config_files": options["config_files"][0], **changes}
    return [f"--{key}={value}" for key, value in settings.items()]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["DiffGRM"] if POINTS != "all" else ["DiffGRM", "S3Rec"])
def test_a_disk_that_fails_at_any_moment(model, tiny, tmp_path):
    command = [sys.executable, "-m", "tests.fault_harness", model, tiny, tmp_path, POINTS]
    done = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["events"] > 150 and len(report["faults"]) > 5
    for moment, fault in report["faults"].items():
        first, again = fault["first"], fault["again"]
        errors = [line for line in first["stderr"].splitlines() if line.startswith("error:")]
        if moment.startswith("killed"):
            assert first["exit_code"] is None and first["signal"] == 9, moment
        elif first["exit_code"] != 0:  # what only could not be tidied up is no error
            assert first["exit_code"] == 2 and len(errors) == 1, (moment, first["stderr"])
        assert "Traceback" not in first["stderr"] + again["stderr"], (moment, first["stderr"])
        assert again["exit_code"] == 0, (moment, again["stderr"])
        assert fault["same"], (moment, fault.get("outcome"), report["reference"])


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own. Root may mount one, in most places."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("file systems cannot be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_full_disk(options, small_disk, capsys):
    """One line; once there is room, --resume goes on."""
    arguments = arguments_of(options, model="SASRec", output_dir=small_disk)
    assert main(arguments) == 2
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("error: ") and "cannot be written (No space left on device)" in last
    subprocess.run(["mount", "-o", "remount,size=50m", small_disk], check=True)
    assert main([*arguments, "--resume"]) == 0
    (resumed,) = (small_disk / "tiny").iterdir()
    assert RunResult.load(resumed).test == run("SASRec", "tiny", **options).test


class Spelling:
    """Takes the place of an encoder."""

    device = "cpu"

    def get_embedding_dimension(self):
        return 64

    def preprocess(self, texts):
        return {"texts": texts}

    def __call__(self, features):
        codes = [[ord(letter) for letter in text.ljust(64)] for text in features["texts"]]
        return {"sentence_embedding": torch.tensor(codes, dtype=torch.float32)}


def test_encoding_on_a_full_disk(small_disk, tmp_path):
    """Through a memory map, this was a signal that killed the process."""
    texts = [f"text {number}" for number in range(1500)]
    with pytest.raises(UserError, match=r"vectors\.npy cannot be written \(No space left on device\)"):
        text_encoder.encode_to_file(small_disk, Spelling(), texts, show_progress=False)
    subprocess.run(["mount", "-o", "remount,size=50m", small_disk], check=True)
    for folder in (small_disk, tmp_path):
        text_encoder.encode_to_file(folder, Spelling(), texts, show_progress=False)
    assert (small_disk / "vectors.npy").read_bytes() == (tmp_path / "vectors.npy").read_bytes()
    expected = text_encoder.encode(Spelling(), texts)
    assert np.array_equal(np.load(tmp_path / "vectors.npy"), expected)


needs_dev_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")


@needs_dev_full
def test_a_log_that_cannot_be_written_is_said_once(tmp_path, capsys):
    (tmp_path / "log.txt").symlink_to("/dev/full")
    with pytest.raises(UserError, match="of the run"), log_to_screen("INFO"), run_directory.log_to(tmp_path):
        for number in range(3):
            logging.getLogger("recbole_diffgrm").info(f"line {number}")
        raise UserError("of the run")
    printed = capsys.readouterr().err
    assert printed.count("log.txt cannot be written ([Errno 28] No space left on device)") == 1
    assert "Traceback" not in printed and "line 2" in printed


@needs_dev_full
def test_tensorboard_on_a_full_disk_is_a_warning(tmp_path, caplog, capsys):
    board = TensorBoard(tmp_path)
    board.file.close()
    board.file = board.writer._writer = Path("/dev/full").open("wb")  # noqa: SIM115
    with Tracking([board]) as tracking:
        for epoch in range(3):
            tracking.log({"train/loss": 1.0}, epoch)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]  # at once, and at the end
    assert "Traceback" not in capsys.readouterr().err


@pytest.fixture
def protect(monkeypatch):
    """Makes a folder read-only for this process, whoever runs it."""

    def begin(folder: Path) -> None:
        for name in ("replace", "rename", "mkdir", "unlink", "rmdir", "fsync", "open"):
            monkeypatch.setattr(os, name, getattr(os, name))  # restored afterwards
        monkeypatch.setattr(io, "open", io.open)
        Disk(folder, "read-only", 1).install()

    return begin


def test_finished_runs_and_caches_on_read_only_media(options, tmp_path, protect, capsys, caplog):
    models = ["DiffGRM", "Pop"]
    options = {**options, "output_dir": str(tmp_path / "safe" / "runs")}
    settings = {**options, "cache_dir": str(tmp_path / "safe" / "cache"), "preset": ()}
    before = compare(models, "tiny", **settings)
    finished = {row.name: row.runs[0] for row in before.rows}
    (finished["Pop"].run_dir / "state.pt").write_bytes(b"")  # as if killed between the result and the end
    history = ["--history=i3 i4"]
    assert main([f"--recommend={finished['DiffGRM'].run_dir}", *history]) == 0
    recommended = capsys.readouterr().out
    protect(tmp_path / "safe")
    assert main([f"--recommend={finished['DiffGRM'].run_dir}", *history]) == 0
    assert capsys.readouterr().out == recommended
    again = retest(finished["DiffGRM"].run_dir, output_dir=str(tmp_path / "elsewhere"))  # reads the cache
    assert again.test == finished["DiffGRM"].test
    caplog.clear()
    compared = compare(models, "tiny", **settings)
    assert compared.path is None and "the comparison is not saved" in caplog.text
    assert (compared.best, compared.p_values) == (before.best, before.p_values)
    assert [row.runs for row in compared.rows] == [row.runs for row in before.rows]
    assert main(arguments_of(options, model="DiffGRM,Pop", cache_dir=settings["cache_dir"])) == 0
    assert "Read-only file system" in caplog.text and "ndcg@10" in capsys.readouterr().out
    # What has to be written is refused in one line.
    assert main(arguments_of(options, model="Pop", seed=7)) == 2
    assert "output_dir" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["result.json", "best.pt", "items.tsv"])
def test_what_may_not_be_read_is_not_damaged(options, monkeypatch, capsys, name):
    run_dir = run("Pop", "tiny", **options).run_dir
    original = Path.open

    def deny(path, *arguments, **keywords):
        if path.name == name:
            raise PermissionError(13, "Permission denied", str(path))
        return original(path, *arguments, **keywords)

    monkeypatch.setattr(Path, "open", deny)
    capsys.readouterr()
    assert main([f"--recommend={run_dir}", "--history=i3"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"error: {run_dir / name} cannot be read (Permission denied): check its permissions and disk"


def test_data_that_may_not_be_read(options, monkeypatch, capsys):
    original = Path.open

    def deny(path, *arguments, **keywords):
        if path.name == "tiny.inter":
            raise PermissionError(13, "Permission denied", str(path))
        return original(path, *arguments, **keywords)

    monkeypatch.setattr(Path, "open", deny)
    assert main(arguments_of(options, model="Pop")) == 2
    line = error_line(capsys.readouterr().err)
    assert "tiny.inter" in line and "Permission denied" in line


@pytest.mark.parametrize("loss", ["gone", "damaged", "of the best"])
def test_lost_ranks_lose_no_comparison(options, caplog, loss):
    models = ["SASRec", "Pop", "GRU4Rec"]
    before = compare(models, "tiny", **options)
    best = before.best["item_all"]
    lost = best if loss == "of the best" else next(name for name in models if name not in before.best.values())
    (row,) = (row for row in before.rows if row.name == lost)
    path = row.runs[0].run_dir / "ranks.npz"
    if loss == "damaged":
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
    else:
        path.unlink()
    caplog.clear()
    after = compare(models, "tiny", **options)
    assert [row.means("all") for row in after.rows] == [row.means("all") for row in before.rows]
    assert after.best["item_all"] == best and after.p_values[lost] == {}
    (warning,) = (record.message for record in caplog.records if record.levelname == "WARNING")
    assert f"{lost}, seed" in warning and str(path) in warning
    for name in set(models) - {lost, best}:
        expected = {} if loss == "of the best" else {"item_all": before.p_values[name]["item_all"]}
        assert {key: p for key, p in after.p_values[name].items() if key == "item_all"} == expected


class Attack:
    def __reduce__(self):
        return print, ("executed",)


@pytest.mark.parametrize("weights", ["hostile", "gone", "of another model"])
def test_a_failed_retest_leaves_no_directory(options, capsys, weights):
    run_dir = run("SASRec", "tiny", **options).run_dir
    if weights == "hostile":
        torch.save({"state_dict": Attack()}, run_dir / "best.pt")
    elif weights == "gone":
        (run_dir / "best.pt").unlink()
    else:
        shutil.copy(run("Pop", "tiny", **options).run_dir / "best.pt", run_dir / "best.pt")
    before = sorted(run_dir.parent.iterdir())
    capsys.readouterr()
    assert main([f"--retest={run_dir}", "--repeatable=False"]) == 2
    said = capsys.readouterr()
    errors = [line for line in said.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and str(run_dir / "best.pt") in errors[0] and "Traceback" not in said.err
    assert "executed" not in said.out and "weights_only" not in said.err
    assert sorted(run_dir.parent.iterdir()) == before
    with pytest.raises(UserError) as error:
        Recommender.load(run_dir)
    assert "weights_only" not in str(error.value)


def test_a_hostile_state_is_refused_on_resumption(options, capsys):
    from recbole_diffgrm.models import build_config

    config = build_config(
        "SASRec", "tiny", options["config_files"], {k: v for k, v in options.items() if k != "config_files"}
    )
    unfinished = run_directory.create(config, run_directory.run_hash(config))
    torch.save({"progress": Attack()}, unfinished.path / "state.pt")
    unfinished.release()
    assert main([*arguments_of(options, model="SASRec"), "--resume"]) == 2
    said = capsys.readouterr()
    *_, last = said.err.splitlines()
    assert "state.pt is refused" in last and "weights_only" not in said.err and "executed" not in said.out


@pytest.mark.slow
def test_two_processes_at_once(options, tiny, tmp_path):
    """On the same configuration, cache and output_dir: both end well, with equal results."""
    changes = {"model": "DiffGRM", "cache_dir": tmp_path / "cache"}
    command = [sys.executable, "run_recbole_diffgrm.py", *arguments_of(options, **changes), "--resume"]
    processes = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in processes:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
    results = [RunResult.load(path) for path in (Path(options["output_dir"]) / "tiny").iterdir()]
    assert 1 <= len(results) <= 2  # one, if the second came after the first had finished
    assert all(result.test == results[0].test and result.valid == results[0].valid for result in results)
    assert not list((tmp_path / "cache").rglob("*.partial")) and not list(tmp_path.rglob("*.tmp"))

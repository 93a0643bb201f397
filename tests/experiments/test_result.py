"""Results that are not where they were looked for."""

import os
import shutil

import pytest

import recbole_diffgrm
from recbole_diffgrm import Recommender, UserError, compare, retest, run
from recbole_diffgrm.cli.main import main
from recbole_diffgrm.experiments import run_directory
from recbole_diffgrm.experiments.result import RESULT_FILE
from recbole_diffgrm.models import build_config


@pytest.mark.parametrize("command", ["--recommend", "--retest"])
def test_a_folder_of_runs_is_not_a_run(command, options, tmp_path, capsys):
    older, newer = (run("Pop", "tiny", **options, seed=seed).run_dir for seed in (1, 2))
    os.utime(older / RESULT_FILE, (1, 1))
    history = ["--history=i1"] if command == "--recommend" else []
    for folder in (tmp_path / "runs" / "tiny", tmp_path / "runs"):
        capsys.readouterr()
        assert main([f"{command}={folder}", *history]) == 2
        words = f"{folder} is a folder of runs, not a run: 2 finished ones in it, the newest is {newer}"
        assert capsys.readouterr().err == f"error: {words}\n"
    (newer / RESULT_FILE).unlink()
    assert main([f"{command}={newer}", *history]) == 2
    assert f"{newer} is not finished: give the command that started it again, with --resume" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main([f"{command}={tmp_path / 'empty'}", *history]) == 2
    assert "is not a run directory, and there is no finished run in it" in capsys.readouterr().err


def test_the_same_in_python(tmp_path):
    for use in (Recommender.load, retest):
        with pytest.raises(UserError, match="nowhere is not a run directory"):
            use(tmp_path / "nowhere")


def test_everything_that_is_exported_is_there():
    for name in recbole_diffgrm.__all__:
        assert getattr(recbole_diffgrm, name) is not None
    assert {"run", "retest", "compare", "Recommender", "Tokenizer", "Dataset"} <= set(recbole_diffgrm.__all__)


def test_a_file_of_another_run_is_noticed(options):
    """Whole, with its own checksum, and yet not the one that belongs here."""
    ours, theirs = (run("GRU4Rec", "tiny", **options, seed=seed).run_dir for seed in (1, 2))
    kept = (ours / "best.pt").read_bytes()
    shutil.copy(theirs / "best.pt", ours)
    for use in (Recommender.load, retest):
        with pytest.raises(UserError, match=r"best\.pt is damaged \(it has been changed since it was written\)"):
            use(ours)
    (ours / "best.pt").write_bytes(kept)
    Recommender.load(ours)
    shutil.copy(theirs / RESULT_FILE, ours)
    assert "result.json is of another run" in str(compare(["GRU4Rec"], "tiny", **options, seeds=[1, 2]).rows[0].errors)


def test_a_state_of_another_model_is_noticed(options):
    whole, config = (
        run("Pop", "tiny", **options),
        build_config(
            "GRU4Rec", "tiny", options["config_files"], {k: v for k, v in options.items() if k != "config_files"}
        ),
    )
    unfinished = run_directory.create(config, run_directory.run_hash(config))
    unfinished.release()
    shutil.copy(whole.run_dir / "best.pt", unfinished.path / "state.pt")
    with pytest.raises(UserError, match=r"state\.pt is damaged .*it is not of this run"):
        run("GRU4Rec", "tiny", **options, resume=True)

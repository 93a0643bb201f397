"""Results that are not where they were looked for."""

import os

import pytest

import recbole_diffgrm
from recbole_diffgrm import Recommender, UserError, retest, run
from recbole_diffgrm.cli.main import main
from recbole_diffgrm.experiments.result import RESULT_FILE


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

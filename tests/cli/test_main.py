"""The command line as people type it."""

import subprocess
import sys

import pytest

from recbole_diffgrm.cli.arguments import parse_arguments
from recbole_diffgrm.cli.main import FLAGS, main
from recbole_diffgrm.models import build_config, model_names
from tests.conftest import ROOT, run_python


def test_command_line_values_are_yaml_and_never_evaluated(tmp_path):
    touched = tmp_path / "touched"
    text = f"__import__('pathlib').Path({str(touched)!r}).touch()"
    parsed = parse_arguments(
        ["--a=1e-3", "--b=[5, 10]", "--c", "x=y", f"--d={text}", "--e=~", "--resume", "--model=1,2", "--f={p: True}"],
        FLAGS,
    )
    assert parsed == {
        "a": 0.001,
        "b": [5, 10],
        "c": "x=y",
        "d": text,
        "e": None,
        "resume": True,
        "model": "1,2",
        "f": {"p": True},
    }
    assert not touched.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["SASRec"],
        ["--topk=[5"],
        ["--epochs=1", "--epochs=2"],
        ["--epoch=1"],
        ["--seeds=one"],
        ["--resume=maybe"],
        ["--model="],
        ["--model=SASRec,SASRec"],
        ["--seeds=1,1"],
        ["--seeds=1,2", "--seed=3"],
        ["--seeds=1", "--seed=3"],
        ["--resume", "--rerun"],
        ["--epochs=2024-02-30"],
        ["--user_inter_num_interval=[5,x)"],
        ["--model=SASRec,GRU4Rec", "--eval_args={split: {LS: valid_only}}"],
        ["--model=SASRec,FDSA", "--load_col={inter: [user_id, item_id, timestamp]}"],
        ["--config_files=does_not_exist.yaml"],
        ["--dataset=does_not_exist"],
        ["--dataset=../up"],
        ["--dataset=Amazon_Bauty"],
        ["--preset=no_such_preset"],
        ["--help", "epohs"],
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(arguments, capsys, tmp_path):
    assert main([*arguments, f"--output_dir={tmp_path / 'runs'}"]) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.startswith("error: ") and written.err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_help_names_what_people_use_without_loading_torch():
    code = "import sys; from recbole_diffgrm.cli.main import main; main(['--help']); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    for option in (
        "--model",
        "--dataset",
        "--config_files",
        "--seeds",
        "--resume",
        "--rerun",
        "--save_topk",
        "Precedence",
    ):
        assert option in done.stdout


def test_help_describes_one_key(capsys):
    assert main(["--help", "beam_size", "sid_codebook_size"]) == 0
    written = capsys.readouterr().out
    assert (
        "beam_size" in written
        and "default: 32" in written
        and "default of ARM: 128" in written
        and "changes: evaluation" in written
    )
    assert "a power of two from 2 to 4096" in written


def test_help_suggests_a_key(capsys):
    assert main(["--help", "epohs"]) == 2
    assert "epochs" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["run_recbole_diffgrm.py"], ["-m", "recbole_diffgrm"]], ids=" ".join)
def test_every_entry_point_is_the_same_command(command):
    assert run_python(*command, "--help").stdout == run_python("run_recbole_diffgrm.py", "--help").stdout


def test_arguments_as_people_type_them():
    assert parse_arguments(["--user_inter_num_interval=[5,inf)"]) == {"user_inter_num_interval": "[5,inf)"}
    config = build_config("SASRec", "ml-100k", overrides={"topk": (5, 10), "output_dir": ROOT})
    assert config["topk"] == [5, 10] and config["output_dir"] == str(ROOT)
    assert "SASRec" in model_names()

"""The command line as people type it."""

import json
import subprocess
import sys
from dataclasses import fields

import pytest

from recbole_diffgrm import UserError, __version__
from recbole_diffgrm.cli.arguments import parse_arguments
from recbole_diffgrm.cli.main import FLAGS, main
from recbole_diffgrm.experiments.result import RunResult
from recbole_diffgrm.models import build_config, check_config, model_names
from tests.conftest import ROOT, error_line, run_python


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
        ["--preset"],
        ["--help", "epohs"],
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(arguments, capsys, tmp_path):
    assert main([*arguments, f"--output_dir={tmp_path / 'runs'}"]) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert error_line(written.err)
    assert not (tmp_path / "runs").exists()


# What people get wrong, and what the answer must name.
MISTAKES = [
    (["--model=SASRec", "--benchmark_filename=[train, valid, test]"], "ml-100k.train.inter does not exist"),
    (["--model=SASRec", "--metrics=[ItemCoverage]", "--eval_args={mode: uni100}"], "ItemCoverage reads whole lists"),
    (["--modle=SASRec"], "Did you mean model?"),
    (["--model=SASREK"], "Did you mean SASRec?"),
    (["--model=SASRec,BERT4REC"], "Did you mean BERT4Rec?"),
    (["--model=SASRec,SASRec"], "--model names SASRec twice"),
    (["--seeds=1,2,1"], "--seeds names 1 twice"),
    (["--seeds=1,-2"], "seed must be"),
    (["-m", "SASRec", "-d", "does_not_exist"], "does_not_exist.inter does not exist"),
    (["--dataset=Amazon_Bauty"], "Did you mean Amazon_Beauty?"),
    (["--lr=0.1"], "Did you mean learning_rate?"),
    (["--batch_size=10"], "Did you mean train_batch_size?"),
    (["--max_len=10"], "Did you mean MAX_ITEM_LIST_LENGTH?"),
    (["--config=a.yaml"], "Did you mean config_files?"),
    (["--config_files=does_not_exist.yaml"], "does_not_exist.yaml does not exist"),
    (["--preset=cup"], "DiffGRM has cpu, item, item-small"),
    (["--model=SASRec", "--beam_size=10"], "SASRec does not read 'beam_size'"),
    (["--model=TIGER", "--epochs=many"], "epochs must be a whole number from 0 to 1000000000, not 'many'"),
    (["--noising=OCN"], "noising must be one of"),
    (["--noising=random", "--ocn_select=most"], "ocn_select: read only by noising ocn"),
    (["--sid_quantizer=opqq"], "sid_quantizer must be one of"),
    (["--model=HSTU", "--n_heads=3"], "must be a multiple of n_heads"),
    (["--model=SASRec", "--metrics=NDGC"], "Did you mean NDCG?"),
    (["--model=SASRec", "--valid_metric=NDCG@7"], "NDCG@7 is not among metrics x topk"),
    (["--model=SASRec", "--eval_args={order: RO}"], "eval_args: order must be TO"),
    (["--model=SASRec", "--train_neg_sample_args={sample_num: 1}"], "loss_type CE"),
    (["--recommend=does_not_exist", "--history=1"], "does_not_exist is not a run directory"),
    (["--retest=does_not_exist"], "does_not_exist is not a run directory"),
    (["--recommend=RUN", "--history=1", "--epochs=3"], "epochs cannot be changed for recommendations of DiffGRM"),
    (["--retest=RUN", "--epochs=3"], "epochs cannot be changed without training again"),
    (["--retest=RUN", "--beam_size=no"], "beam_size must be"),
    (["--help", "epohs"], "Did you mean epochs?"),
    (["--help", "lr"], "Did you mean learning_rate?"),
]
# torch, and what takes long to import beside it
SLOW_TO_IMPORT = [
    "torch",
    "recbole.config",
    "recbole.data",
    "recbole.evaluator",
    "recbole.model",
    "recbole.utils",
    "pandas",
    "pyarrow",
    "scipy",
    "transformers",
    "matplotlib",
]


@pytest.fixture
def without_torch(tmp_path):
    """The environment of a Python that cannot import torch and the like."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name in {SLOW_TO_IMPORT}:\n"
        "            raise RuntimeError(f'{name} is imported')\n"
        "sys.meta_path.insert(0, Refuse())\n"
    )
    return {"PYTHONPATH": f"{tmp_path}:{ROOT}"}


@pytest.mark.parametrize("text", ["retest=a\nerror: b", "retest=\x1b[2J", "retest=a\r\u202eb", "model=" + "é" * 10**5])
def test_an_error_is_one_line_that_does_nothing_to_a_terminal(text, capsys):
    assert main([f"--{text}"]) == 2
    line = capsys.readouterr().err.removesuffix("\n")
    assert line.startswith("error: ") and line.isprintable() and len(line) < 2000


def test_mistakes_are_answered_before_torch_is_imported(without_torch, tmp_path):
    run_dir = tmp_path / "RUN"
    config = check_config("DiffGRM", "ml-100k")
    of_dictionary = {"valid", "test", "seconds", "statistics", "config", "environment", "sha256"}
    result = {field.name: {} if field.name in of_dictionary else 0 for field in fields(RunResult)}
    run_dir.mkdir()
    (run_dir / "result.json").write_text(json.dumps(result | {"model": "DiffGRM", "config": config}))
    commands = [[word.replace("=RUN", f"={run_dir}") for word in arguments] for arguments, _ in MISTAKES]
    code = (
        "import json, sys\n"
        "from recbole_diffgrm.cli.main import main\n"
        "for arguments in json.loads(sys.argv[1]):\n"
        "    print(f'exit code {main(arguments)}', file=sys.stderr)\n"
    )
    done = run_python("-c", code, json.dumps(commands), **without_torch)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 2 * len(MISTAKES)  # each answer is one line
    for (arguments, words), answer, exit_code in zip(MISTAKES, lines[::2], lines[1::2]):
        assert answer.startswith("error: ") and words in answer, (arguments, answer)
        assert exit_code == "exit code 2"


def test_the_import_of_torch_would_be_noticed(without_torch):
    """What the test above relies on."""
    assert "torch is imported" in run_python("-c", "import torch", **without_torch).stderr
    done = run_python("run_recbole_diffgrm.py", "--model=SASRec", "--epochs=1", **without_torch)
    assert "is imported" in done.stderr and done.returncode == 1


@pytest.mark.parametrize("module", ["recbole_diffgrm", "recbole_diffgrm.tokenizer", "recbole_diffgrm.tune"])
def test_other_commands_answer_at_once_too(module, without_torch):
    model = ["--model=DiffGRM"] if module.endswith("tune") else []
    done = run_python("-m", module, *model, "--sid_num_digit=3", **without_torch)
    assert (done.returncode, done.stderr) == (
        2,
        "error: command line: unknown key 'sid_num_digit'. Did you mean sid_num_digits?\n",
    )


def test_a_study_that_does_not_exist(without_torch):
    done = run_python("-m", "recbole_diffgrm.study", "does_not_exist.yaml", **without_torch)
    assert done.returncode == 2 and "does_not_exist.yaml does not exist" in done.stderr


def test_a_service_of_nothing(without_torch):
    done = run_python("-m", "recbole_diffgrm.serve", "does_not_exist", **without_torch)
    assert done.returncode == 2 and "does_not_exist is not a run directory" in done.stderr


def test_version(without_torch):
    for command in (["run_recbole_diffgrm.py"], ["-m", "recbole_diffgrm"]):
        assert run_python(*command, "--version", **without_torch).stdout == f"recbole_diffgrm {__version__}\n"


def test_short_names_of_recbole():
    assert parse_arguments(["-m", "SASRec", "-d", "ml-100k", "--epochs", "1"]) == {
        "model": "SASRec",
        "dataset": "ml-100k",
        "epochs": 1,
    }
    with pytest.raises(UserError, match="--model is given twice"):
        parse_arguments(["-m", "SASRec", "--model=Pop"])


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

"""python -m recbole_diffgrm.tokenizer, as people call it."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from recbole_diffgrm.cli.tokenizer import main
from tests.conftest import ROOT, run_python


def to_arguments(settings: dict, **changes) -> list[str]:
    values = {**settings, **changes}
    return ["--dataset=tiny", *(f"--{key}={json.dumps(value)}" for key, value in values.items())]


def test_results(settings, capsys):
    assert main(to_arguments(settings, sid_collisions="reassign")) == 0
    shown = capsys.readouterr()
    assert re.search(r"distinct SIDs +40 \(as quantized: \d+\)", shown.out)
    assert "has no price, brand, description" in shown.err
    folder = (ROOT / shown.out.split("results: ")[1].strip()).resolve()
    assert sorted(path.name for path in folder.iterdir()) == [
        "about.json",
        "report.json",
        "report.png",
        "tiny.sid",
        "tokenizer.npz",
    ]
    lines = (folder / "tiny.sid").read_text().splitlines()
    assert lines[0] == "item_id:token\tsid:token_seq"
    assert len({line.split("\t")[1] for line in lines[1:]}) == 40


def test_template(settings, capsys):
    """Taken as it is, not as YAML."""
    arguments = to_arguments(settings, sid_codebook_size=4)
    assert main([*arguments, "--sid_text_template={label} is {text};"]) == 0
    assert main([*arguments, "--sid_text_template={text[a]}"]) == 2
    assert re.search(r"sid_text_template .*\{text\}.*'\{text\[a\]\}'", capsys.readouterr().err)


def test_wrong_keys(capsys):
    assert main(["--dataset=tiny", "--sid_num_digit=3"]) == 2
    assert "sid_num_digits" in capsys.readouterr().err
    assert main(["--dataset=tiny", "--hidden_size=3"]) == 2  # a key of models
    assert "hidden_size" in capsys.readouterr().err


def test_help(capsys):
    assert main(["--help"]) == 0
    assert "--sid_quantizer" in capsys.readouterr().out
    assert main(["--help", "sid_quantizer"]) == 0
    assert "opq, pq, rq_kmeans, rq_vae, svd, random" in capsys.readouterr().out
    assert main(["--help", "sid_quantiser"]) == 2
    assert "sid_quantizer" in capsys.readouterr().err


@pytest.mark.slow
def test_two_processes_at_once(settings, tmp_path):
    command = [sys.executable, "-m", "recbole_diffgrm.tokenizer", *to_arguments(settings)]
    running = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    outputs = [process.communicate(timeout=200) for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert outputs[0][0] == outputs[1][0]
    assert sum(err.count("encoding ") for _, err in outputs) == 1
    assert sum(err.count("fitting ") for _, err in outputs) == 1
    left = [path.name for path in (tmp_path / "cache" / "tiny").iterdir() if path.is_dir() and path.name[0] != "."]
    assert sorted(name.split("-")[0] for name in left) == ["codes", "embeddings", "sid"]


@pytest.mark.slow
def test_any_number_of_threads_gives_the_same_sids(settings, tmp_path):
    results = []
    for threads in (1, 3):
        changes = {
            "cache_dir": str(tmp_path / f"cache{threads}"),
            "sid_collisions": "reassign",
            "sid_codebook_size": 16,
        }
        done = run_python(
            "-m", "recbole_diffgrm.tokenizer", *to_arguments(settings, **changes), OMP_NUM_THREADS=str(threads)
        )
        assert done.returncode == 0, done.stderr
        folder = ROOT / done.stdout.split("results: ")[1].strip()
        results.append(dict(np.load(folder / "tokenizer.npz")))
    for name in results[0]:
        assert (results[0][name] == results[1][name]).all(), name


@pytest.mark.slow
def test_ml_100k(tmp_path):
    """The default: out of the box, without a network."""
    done = run_python(
        "-m", "recbole_diffgrm.tokenizer", f"--cache_dir={tmp_path}", "--sid_collisions=reassign", HF_HUB_OFFLINE="1"
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((ROOT / done.stdout.split("results: ")[1].strip() / "report.json").read_text())
    assert [report[key] for key in ("num_items", "distinct_sids", "num_digits", "codebook_size")] == [1682, 1682, 4, 32]
    assert report["text_fields"] == ["movie_title", "release_year", "class"]
    assert report["distinct_sids_as_quantized"] > 1500
    assert report["items_reassigned"] == 1682 - report["distinct_sids_as_quantized"]

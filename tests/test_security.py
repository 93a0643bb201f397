"""SECURITY.md is true where a program can tell."""

import ast
import re
from contextlib import nullcontext

import pytest
import yaml

from recbole_diffgrm.config import yaml_text
from tests.conftest import ROOT

# Calls that execute what they read, or may, and the keyword with which they do not.
DANGEROUS = {"eval", "exec", "pickle.load", "pickle.loads", "os.system", "joblib.load", "pd.read_pickle", "shelve.open"}
DANGEROUS |= {"yaml.unsafe_load", "yaml.full_load", "yaml.load_all", "extractall", "shutil.unpack_archive"}
SAFE_WITH = {"torch.load": "weights_only=True", "yaml.load": "Loader=loader"}


def test_only_safe_readers_are_called():
    for path in (ROOT / "recbole_diffgrm").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name, keywords = ast.unparse(node.func), [ast.unparse(keyword) for keyword in node.keywords]
            assert not {name, name.rpartition(".")[2] if name.endswith("extractall") else name} & DANGEROUS, path
            assert name not in SAFE_WITH or SAFE_WITH[name] in keywords, f"{path}: {ast.unparse(node)}"
            assert "allow_pickle=True" not in keywords and "shell=True" not in keywords, path


def test_yaml_is_data():
    assert issubclass(yaml_text.Loader, yaml.CSafeLoader | yaml.SafeLoader)
    assert issubclass(yaml_text.TextLoader, yaml.CBaseLoader | yaml.BaseLoader)
    for loader in (yaml_text.Loader, yaml_text.TextLoader):
        with pytest.raises(ValueError) if loader is yaml_text.Loader else nullcontext():
            assert yaml_text.load("!!python/object/apply:os.getcwd []", loader) == []


def test_the_tests_that_are_named_exist():
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "SECURITY.md").read_text(encoding="utf-8")))
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) > 10 and not [name for name in sorted(named) if f"def {name}(" not in tests]

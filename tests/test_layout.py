"""The shape of the project, as the README describes it."""

import re

from tests.conftest import ROOT

ORDER = ["config", "data", "tokenizer", "network", "decoding", "model", "evaluation", "training", "running", "study"]


def test_data_flows_one_way():
    package = ROOT / "recbole_diffgrm"
    assert sorted(ORDER) == sorted(path.parent.name for path in package.glob("*/__init__.py"))
    for number, folder in enumerate(ORDER):
        for path in (package / folder).glob("*.py"):
            imported = set(re.findall(r"recbole_diffgrm\.(\w+)", path.read_text(encoding="utf-8")))
            assert not imported & set(ORDER[number + 1 :]), path
    assert " → ".join(f"`{name}`" for name in ORDER) in " ".join((ROOT / "README.md").read_text().split())


def test_network_and_decoding_know_nothing_of_recbole():
    for folder in ("network", "decoding"):
        for path in (ROOT / "recbole_diffgrm" / folder).glob("*.py"):
            assert not re.search(r"^\s*(from|import) recbole\b", path.read_text(encoding="utf-8"), re.M), path

"""Exported programs give the lists of the recommender, where there is nothing but torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from recbole_diffgrm import Recommender, UserError, run
from recbole_diffgrm.cli.main import main
from recbole_diffgrm.serving.exported import ExportedRecommender
from recbole_diffgrm.serving.exported import main as exported_main

HEAD = {"item_head": True, "item_text": True}
CASES = [
    ("DiffGRM", {**HEAD, "code_prior": True, "sample_unit": "sequence", "min_history": 1, "max_history": None}),
    ("DiffGRM", {**HEAD, "code_prior": True, "item_scoring": "none"}),
    ("DiffGRM", {"path_merge": "logsumexp", "cross_attention_sink": True, "beam_size": 20}),
    ("TIGER", {"normalize_codes": True}),
]
HISTORIES = [["i3"], ["i4", "i6", "i7"], [f"i{i}" for i in range(25)], ["i1", "i1"]]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "changes"), CASES, ids=str)
def test_lists_are_those_of_the_recommender(text_options, tmp_path, name, changes):
    recommender = Recommender.load(run(name, "tiny", **text_options, **changes).run_dir)
    recommender.add_items([{"item_id": "n1", "title": "New"}])
    recommender.export(tmp_path / "exported")
    exported = ExportedRecommender(tmp_path / "exported")
    histories = [*HISTORIES, ["i2", "n1"]]
    for asked in (histories, histories[:1], histories[2:3]):
        for mine, theirs in zip(exported.recommend(asked, 41), recommender.recommend(asked, 41), strict=True):
            assert [one[:2] for one in mine] == [one[:2] for one in theirs] and len(mine) == 41
            assert [one[2] for one in mine] == pytest.approx([one.score for one in theirs], abs=1e-4)
    for users, length, beam in ((1, 1, 1), (2, 10, 3), (7, 4, 30)):
        memory, _ = exported.encode(torch.ones(users, length, dtype=torch.int64), torch.full((users,), length))
        digits = torch.full((users, beam, exported.semantic_ids.num_digits), -1)
        assert exported.step(digits, memory).shape == (*digits.shape, 8)
    (filtered,) = exported.recommend([histories[2]], 10, filter_seen=True)
    assert not {item for item, *_ in filtered} & set(histories[2])
    assert {path.name for path in (tmp_path / "exported").iterdir()} == {
        "encode.pt2",
        "recbole_diffgrm",
        "settings.json",
        "step.pt2",
        "tables.pt",
    }


TORCH = (  # and what it installs with it
    "torch",
    "torchgen",
    "functorch",
    "filelock",
    "fsspec",
    "jinja2",
    "markupsafe",
    "mpmath",
    "networkx",
    "sympy",
    "typing_extensions.py",
)
ALONE = """
import sys
sys.path[:0] = {folders}
import importlib.util, json
assert not any(map(importlib.util.find_spec, ("recbole", "numpy", "pandas", "pydantic", "yaml")))
from recbole_diffgrm.serving import exported
print(json.dumps(exported.ExportedRecommender({folders}[0]).recommend({histories}, 12)))
"""


@pytest.mark.slow
def test_the_loader_needs_torch_alone(text_run, tmp_path, capsys):
    folder, packages = tmp_path / "exported", tmp_path / "packages"
    assert main([f"--recommend={text_run}", f"--export={folder}"]) == 0
    assert str(folder) in capsys.readouterr().out
    packages.mkdir()
    installed = Path(torch.__file__).parents[1]
    for name in TORCH:
        if (installed / name).exists():
            (packages / name).symlink_to(installed / name)
    program = ALONE.format(folders=[str(folder), str(packages)], histories=HISTORIES)
    without_site = [sys.executable, "-S", "-W", "ignore", "-c", program]
    done = subprocess.run(without_site, capture_output=True, text=True, cwd=tmp_path, env={})
    assert done.returncode == 0, done.stderr
    assert exported_main([str(folder), "x9"]) == 2
    assert capsys.readouterr().err == "error: history: unknown item 'x9'\n"
    assert exported_main([str(folder), "i3"]) == 0 and len(capsys.readouterr().out.splitlines()) == 10
    expected = Recommender.load(text_run).recommend(HISTORIES, 12)
    assert [[one[0] for one in mine] for mine in json.loads(done.stdout)] == [[one.item for one in e] for e in expected]
    here = str(Path(__file__).parents[2]).encode()
    assert not any(here in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_what_cannot_be_exported(text_run, text_options, tmp_path, capsys):
    settings = {key: value for key, value in text_options.items() if not key.startswith("sid_")}
    with pytest.raises(UserError, match="SASRec cannot be exported"):
        Recommender.load(run("SASRec", "tiny", **settings).run_dir).export(tmp_path / "folder")
    with pytest.raises(UserError, match="item_scoring must be full or none"):
        Recommender.load(text_run, item_scoring="generated").export(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert main([f"--recommend={text_run}", f"--export={tmp_path / 'full'}"]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert main([f"--recommend={text_run}", "--export"]) == 2
    assert "--export=FOLDER" in capsys.readouterr().err
    assert exported_main([]) == 2 and exported_main([str(tmp_path), "i3"]) == 2
    assert "has no settings.json" in capsys.readouterr().err

"""The shape of the project: data flows one way, seams are classes, and an extension is one file."""

import ast
import pkgutil
import re

import pytest
import torch

from recbole_diffgrm import Recommender, compare, run
from recbole_diffgrm.cli.main import main
from recbole_diffgrm.cli.study import main as study
from recbole_diffgrm.config.options import GeneralOptions, option
from recbole_diffgrm.experiments.result import RunResult
from recbole_diffgrm.models import MODELS, get_model
from recbole_diffgrm.models.diffgrm import noising
from recbole_diffgrm.models.diffgrm.options import build_options
from recbole_diffgrm.models.recbole_options import RecBoleOptions
from recbole_diffgrm.tokenizer.options import TokenizerOptions
from recbole_diffgrm.training.trainer import Trainer
from tests.conftest import ROOT

PACKAGE = ROOT / "recbole_diffgrm"
ORDER = [
    "config",
    "data",
    "tokenizer",
    "nn",
    "generation",
    "models",
    "evaluation",
    "training",
    "experiments",
    "serving",
    "register",
    "cli",
]
ENTRY_POINTS = ("__init__.py", "quick_start.py", "report.py", "serve.py", "study.py", "tune.py")  # at the top
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__main__.py")


def imports_of(path) -> set[str]:
    """Modules of the project that a file imports, at its top or inside a function."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("recbole_diffgrm"):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name.startswith("recbole_diffgrm")}
    return {name.removeprefix("recbole_diffgrm").lstrip(".") for name in names}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_data_flows_one_way(path):
    folder = path.relative_to(PACKAGE).parts[0]
    imported = {name.split(".")[0] for name in imports_of(path)}
    if folder in ORDER:
        assert not imported & set(ORDER[ORDER.index(folder) + 1 :])
    elif path.name not in ENTRY_POINTS:  # errors, files, memory, recbole_compat: anyone may import them
        assert not imported & set(ORDER)


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_benchmarks_import_what_there_is(path):
    """They run for hours and are run seldom: an import inside a function would fail when somebody needs it."""
    for name in imports_of(path) - {""}:
        pkgutil.resolve_name(f"recbole_diffgrm.{name}")


def test_every_folder_has_its_turn():
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert folders == set(ORDER)


@pytest.mark.parametrize("folder", ["nn", "generation"])
def test_plain_pytorch_knows_nothing_of_recbole(folder):
    for path in (PACKAGE / folder).glob("*.py"):
        assert not re.search(r"^\s*(from|import) recbole\b", path.read_text(encoding="utf-8"), re.M), path


def test_only_diffgrm_names_its_options():
    others = (get_model(name).Options.keys() for name in MODELS if name != "DiffGRM")
    shared = GeneralOptions.keys() | TokenizerOptions.keys() | RecBoleOptions.keys()
    own = get_model("DiffGRM").Options.keys() - shared.union(*others)
    assert {"noising", "item_head", "decoder_targets"} <= own
    for path in MODULES:
        if "diffgrm" not in path.relative_to(PACKAGE).parts:
            named = own & set(re.findall(r"[\"'](\w+)[\"']", path.read_text(encoding="utf-8")))
            assert not named, f"{path} names {named}"


def test_the_kind_of_a_model_is_asked_of_its_class():
    """Not by name, and not by hasattr."""
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        if path.relative_to(PACKAGE).parts[0] not in ("models", "cli"):
            assert not re.search(r"[\"'](DiffGRM|HistoryCopy|Pop|SASRec|S3Rec|BERT4Rec)[\"']", _code_of(text)) or (
                path.name == "recbole_compat.py"
            ), path
        assert "hasattr(model" not in text and "hasattr(self.model" not in text, path


def _code_of(text: str) -> str:
    """Without docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            node.body[0].value.value = ""
    return ast.unparse(tree)


def test_tests_mirror_the_package():
    tests = ROOT / "tests"
    behavior = {
        "test_resume",
        "test_faults",
        "test_item_head",
        "test_registry",
        "test_command",
        "test_protocols",
        "test_browser",
        "test_page",
    }
    for path in sorted(tests.rglob("test_*.py")):
        folder = PACKAGE / path.relative_to(tests).parent
        if path.parent in (tests, tests / "fuzz") or path.stem in behavior:
            continue
        module = path.stem.removeprefix("test_")
        assert (folder / f"{module}.py").exists() or (folder / module).is_dir(), f"{path} tests no module of its name"


def test_ci_runs_what_the_readme_says_and_lints():
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert {"make lint", "make types", "make test"} <= set(lines)


# Extensions


@pytest.fixture
def toy_model(properties, monkeypatch):
    """One file (tests/toys.py), one YAML, one line in the registry."""
    (properties / "model" / "LastItem.yaml").write_text("toy_width: 8\nepochs: 2\n")
    monkeypatch.setitem(MODELS, "LastItem", "tests.toys")


def test_a_new_scoring_model_is_in_help_and_reference(toy_model, capsys):
    assert main(["--help"]) == 0 and "LastItem" in capsys.readouterr().out
    assert main(["--help", "toy_width"]) == 0 and "default: 8" in capsys.readouterr().out
    assert main(["--model=LastItem", "--toy_width=0"]) == 2
    assert "toy_width must be a whole number from 1 to 1000000000, not 0" in capsys.readouterr().err


def test_a_new_scoring_model_runs_compares_recommends_and_retests(toy_model, options, capsys):
    table = compare(["LastItem", "Pop"], "tiny", **options)
    assert [len(row.runs) for row in table.rows] == [1, 1] and not any(row.errors for row in table.rows)
    run_dir = table.rows[0].runs[0].run_dir
    recommended = Recommender.load(run_dir, repeatable=False).recommend([["i1", "i2"]], k=5)[0]
    assert len(recommended) == 5 and not {one.item for one in recommended} & {"i1", "i2"}
    assert main([f"--retest={run_dir}", "--repeatable=False", f"--output_dir={options['output_dir']}"]) == 0
    assert main([f"--recommend={run_dir}", "--history=i1", "--explain"]) == 2
    assert "LastItem does not generate semantic IDs" in capsys.readouterr().err


def test_a_new_scoring_model_resumes_exactly(toy_model, options, monkeypatch):
    whole = run("LastItem", "tiny", **options)
    original, steps = Trainer._step, []

    def stop_in_the_second_epoch(self, *arguments):
        steps.append(1)
        if len(steps) == 8:
            raise KeyboardInterrupt
        return original(self, *arguments)

    monkeypatch.setattr(Trainer, "_step", stop_in_the_second_epoch)
    options = {**options, "output_dir": options["output_dir"] + "2"}
    with pytest.raises(KeyboardInterrupt):
        run("LastItem", "tiny", **options)
    monkeypatch.setattr(Trainer, "_step", original)
    resumed = run("LastItem", "tiny", **options, resume=True)
    assert resumed.test == whole.test
    assert [entry["loss"] for entry in resumed.curve] == [entry["loss"] for entry in whole.curve]


def test_a_new_scoring_model_is_part_of_a_study(toy_model, options, tmp_path):
    plan = tmp_path / "toys.yaml"
    plan.write_text(
        "dataset: tiny\n"
        "settings: {epochs: 1, MAX_ITEM_LIST_LENGTH: 10}\n"
        "sections: [{title: Toys, reference: Pop, runs: {Pop: {model: Pop}, Toy: {model: LastItem}}}]\n"
        "short_table: {Pop: [Pop], Toy: [Toy]}\n"
    )
    arguments = [f"--{key}={options[key]}" for key in ("data_path", "output_dir")]
    assert study([str(plan), *arguments, f"--results={tmp_path / 'results'}", "--show_progress=False"]) == 0
    assert "Toy" in (tmp_path / "results" / "toys.md").read_text()


def test_a_new_noising_is_a_class_and_its_yaml_lines(properties, options, monkeypatch):
    monkeypatch.setattr(noising, "NOISINGS", dict(noising.NOISINGS))  # unregistered at the end
    for module in ("options", "model"):
        name = f"recbole_diffgrm.models.diffgrm.{module}"
        if hasattr(__import__(name, fromlist=["NOISINGS"]), "NOISINGS"):
            monkeypatch.setattr(f"{name}.NOISINGS", noising.NOISINGS)

    @noising.register("first_digits")
    class FirstDigits(noising.Noising):
        """Masks the first digits, whatever the model finds hard."""

        first_digits: int = option("Digits to mask.", ge=1)

        def num_views(self, num_digits: int) -> int:
            return 1

        def make_views(self, network, history, target):
            masked = torch.arange(target.shape[1]) < self.first_digits
            masked = masked.expand(len(target), 1, -1)
            return noising.predict_views(network, history, target, masked, self.first_digits)

    yaml = properties / "model" / "DiffGRM.yaml"
    yaml.write_text(yaml.read_text() + "\nfirst_digits: 2\n")
    monkeypatch.setattr(get_model("DiffGRM"), "Options", build_options())
    result = run("DiffGRM", "tiny", **options, noising="first_digits")
    masked = result.curve[0]["statistics"]["digit_masked"]
    assert masked == [0.5, 0.5, 0] and RunResult.load(result.run_dir).config["first_digits"] == 2

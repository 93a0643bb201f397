"""The documentation is true where a program can tell: links, keys, commands, Python examples."""

import argparse
import ast
import importlib
import re
import shlex
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
import yaml

import recbole_diffgrm
from recbole_diffgrm.cli import serve as serve_command
from recbole_diffgrm.cli import study as study_command
from recbole_diffgrm.cli import tune as tune_command
from recbole_diffgrm.cli.main import COMMANDS
from recbole_diffgrm.config import layers, yaml_text
from recbole_diffgrm.experiments.study import plan
from recbole_diffgrm.experiments.tuning import space
from recbole_diffgrm.models import get_model, model_names

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        ROOT / "dataset" / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "results").glob("*.md"),
    ]
)
EXTENDING = ROOT / "docs" / "extending.md"
# Added by examples on the page of extensions.
NEW_KEYS = {"suffix_min_length"}
NEW_MODELS = {"AverageItems", "IndependentDigits"}
PLACEHOLDERS = {"NAME", "a", "b"}

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HTML_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
INLINE_CODE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)*)`")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def each_page(pages=None):
    chosen = PAGES if pages is None else pages
    return pytest.mark.parametrize("page", chosen, ids=[str(page.relative_to(ROOT)) for page in chosen])


# Reading Markdown


def fenced_blocks(page: Path, language: str) -> list[str]:
    return [body for name, body in FENCE.findall(page.read_text(encoding="utf-8")) if name == language]


def prose(page: Path) -> str:
    """Without blocks of code."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return "\n".join(line for line in text.splitlines() if not line.startswith("    "))


def commands(page: Path) -> list[str]:
    """Lines of code, and code inside of sentences."""
    text = page.read_text(encoding="utf-8")
    lines = [line for _, body in FENCE.findall(text) for line in body.splitlines()]
    lines += [line for line in FENCE.sub("", text).splitlines() if line.startswith("    ")]
    inline = [" ".join(code.split()) for code in INLINE_CODE.findall(prose(page))]
    return [line.strip() for line in lines + inline]


@cache
def anchors(page: Path) -> set[str]:
    """GitHub's: lower case, without punctuation, spaces as hyphens, numbered where they repeat."""
    names: dict[str, int] = {}
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE):
        text = LINK.sub(lambda link: link[0].split("]")[0].lstrip("!["), heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        names[slug] = names.get(slug, -1) + 1
        if names[slug]:
            names[f"{slug}-{names[slug]}"] = 0
    return set(names)


# What exists


@cache
def known_keys() -> frozenset[str]:
    keys = set(layers.recbole_defaults(""))
    for name in model_names():
        keys |= set(layers.recbole_defaults(name)) | get_model(name).Options.keys()
    return frozenset(keys | NEW_KEYS)


def options_of(command: str) -> set[str] | None:
    """The options that the program of a command has; None for other people's programs."""
    if script := re.search(r"\b(benchmarks/\w+|docs/make_\w+)\.py\b", command):
        source = (ROOT / f"{script[1]}.py").read_text(encoding="utf-8")
        return set(re.findall(r'add_argument\("--(\w+)"', source)) | {"help"}
    if "recbole_diffgrm.data" in command:
        source = (ROOT / "recbole_diffgrm" / "cli" / "data.py").read_text(encoding="utf-8")
        return set(re.findall(r'add_argument\("--(\w+)"', source)) | {"help"}
    if "recbole_diffgrm.study" in command:
        nothing = set().union(*(get_model(name).Options.keys("nothing") for name in ("DiffGRM", "SASRec")))
        return nothing | set(re.findall(r"--(\w+)", study_command.USAGE)) | {"help"}
    if "recbole_diffgrm.serve" in command:
        return known_keys() | set(re.findall(r"--(\w+)", serve_command.USAGE))
    if "recbole_diffgrm.tune" in command:
        return known_keys() | set(re.findall(r"--(\w+)", tune_command.USAGE))
    ours = command.startswith("--") or re.search(r"run_recbole_diffgrm|recbole-diffgrm|-m recbole_diffgrm", command)
    return known_keys() | COMMANDS if ours else None


def foreign_option(command: str, option: str) -> bool:
    """Options named alone in a sentence may be those of any program of ours; torchrun has its own before ours."""
    if command.startswith("torchrun") and f"--{option}" in command.split(" run_recbole_diffgrm")[0]:
        return True
    if not command.startswith("--"):
        return False
    scripts = [
        *(ROOT / "benchmarks").glob("*.py"),
        *(ROOT / "recbole_diffgrm" / "cli" / f"{name}.py" for name in ("serve", "study", "tune")),
    ]
    return any(re.search(rf"--{option}\b", script.read_text(encoding="utf-8")) for script in scripts)


# Tests


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_every_page_is_in_the_index():
    linked = set(LINK.findall((ROOT / "docs" / "README.md").read_text(encoding="utf-8")))
    missing = {page.name for page in (ROOT / "docs").glob("*.md")} - linked - {"README.md"}
    assert not missing


@each_page()
def test_links_and_anchors_resolve(page):
    broken = []
    for target in LINK.findall(HTML_COMMENT.sub("", prose(page))):
        if re.match(r"https?:|mailto:", target):
            continue
        path, _, anchor = unquote(target).partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and (file.suffix != ".md" or anchor not in anchors(file))):
            broken.append(target)
    assert not broken


@each_page()
def test_options_of_commands_exist(page):
    unknown = []
    for command in commands(page):
        known = options_of(command)
        for option in re.findall(r"(?<![\w-])--(\w+)", command):
            if known is not None and option not in known and not foreign_option(command, option):
                unknown.append(f"--{option} in {command}")
    assert not unknown


@each_page()
def test_models_presets_and_plans_of_commands_exist(page):
    wrong = []
    for command in commands(page):
        models = _values(command, "model") or ["DiffGRM"]
        presets = {name for model in models for name in layers.preset_names(model)}
        wrong += [f"{name} in {command}" for name in models if name not in {*model_names(), *NEW_MODELS, *PLACEHOLDERS}]
        wrong += [f"{name} in {command}" for name in _values(command, "preset") if name not in presets | PLACEHOLDERS]
        plans = re.findall(r"properties/study/[\w-]+\.yaml", command)
        wrong += [f"{path} in {command}" for path in plans if not (ROOT / path).exists()]
    assert not wrong


def _values(command: str, option: str) -> list[str]:
    match = re.search(rf"--{option}=([\w,-]+)", command)
    return match[1].split(",") if match else []


@each_page()
def test_yaml_keys_exist(page):
    unknown = []
    for block in fenced_blocks(page, "yaml"):
        content = yaml.load(block, Loader=yaml_text.Loader)
        unknown += _unknown_study_keys(content) if "sections" in content else _unknown_keys(content)
    for code in INLINE_CODE.findall(prose(page)):
        if match := re.fullmatch(r"(\w+): (\S.*)", " ".join(code.split())):
            unknown += [match[1]] if match[1] not in known_keys() | {"models", "datasets"} else []
    assert not unknown


def _unknown_keys(content: dict) -> list[str]:
    sections = content.get("models", {})
    assert set(sections) <= set(model_names())
    keys = [key for part in (content, *sections.values()) for key in part if key != "models"]
    return [key for key in keys if key not in known_keys()]


def _unknown_study_keys(content: dict) -> list[str]:
    unknown = set(content) - set(plan.STUDY_KEYS)
    for section in content["sections"]:
        unknown |= set(section) - set(plan.SECTION_KEYS)
        for run in section["runs"].values():
            unknown |= set(run) - set(plan.RUN_KEYS) | set(_unknown_keys(run.get("settings", {})))
    return sorted(unknown)


def test_the_plan_of_the_page_on_studies_can_be_read(tmp_path):
    [block] = fenced_blocks(ROOT / "docs" / "studies.md", "yaml")
    (tmp_path / "plan.yaml").write_text(block, encoding="utf-8")
    assert set(plan.read_plan(tmp_path / "plan.yaml").runs) == {"SASRec", "item preset", "wide beam"}


def test_the_spaces_of_the_page_on_searches_can_be_read(tmp_path):
    page = ROOT / "docs" / "tuning.md"
    [block], [lines] = fenced_blocks(page, "yaml"), fenced_blocks(page, "text")
    for name, content in {"space.yaml": block, "hyper.test": lines}.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    assert set(space.read_spaces(["SASRec"], tmp_path / "space.yaml")["SASRec"]) >= {"hidden_size", "n_heads"}
    assert set(space.read_spaces(["GRU4Rec"], tmp_path / "hyper.test")["GRU4Rec"]) >= {"learning_rate", "num_layers"}


@each_page([page for page in PAGES if page != EXTENDING])
def test_python_compiles_and_its_names_exist(page):
    for block in fenced_blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    importlib.import_module(alias.name)
            if isinstance(node, ast.ImportFrom):
                module = importlib.import_module(node.module)
                assert all(hasattr(module, alias.name) for alias in node.names)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id == "recbole_diffgrm":
                    assert node.attr in recbole_diffgrm.__all__
                if node.value.id in ("recommender", "tokenizer"):
                    assert hasattr(getattr(recbole_diffgrm, node.value.id.capitalize()), node.attr)


def test_readme_has_python():
    assert fenced_blocks(ROOT / "README.md", "python")


def test_shell_commands_are_quoted_correctly():
    for page in (ROOT / "README.md", ROOT / "docs" / "runs.md"):
        for command in commands(page):
            if command.startswith(("python run", "recbole-diffgrm", "$ recbole-diffgrm")):
                shlex.split(command)


# The examples of the page on extensions


def example(path: str) -> str:
    [block] = [block for block in fenced_blocks(EXTENDING, "python") if block.startswith(f"# {path}\n")]
    return block


def run_example(path: str, module: str | None = None) -> dict:
    """Its names; with those of the module that it is to be added to."""
    names = {"__name__": "example"} | (vars(importlib.import_module(module)) if module else {})
    exec(compile(example(path), path, "exec"), names)
    return names


@pytest.mark.parametrize(
    "path, name",
    [("average_items", "AverageItems"), ("independent_digits", "IndependentDigits")],
)
def test_example_models_have_defaults_for_their_keys(path, name):
    model = run_example(f"recbole_diffgrm/models/{path}.py")[name]
    [defaults] = [
        yaml.safe_load(block)
        for block in fenced_blocks(EXTENDING, "yaml")
        if block.startswith(f"# properties/model/{name}.yaml\n")
    ]
    declared = layers.declared_defaults(name) | layers.recbole_defaults(name) | defaults
    assert set(defaults) <= model.Options.keys() <= set(declared)


def test_example_quantizer_is_consistent():
    quantizer_class = run_example("recbole_diffgrm/tokenizer/quantizers/quantile.py")["QuantileCodes"]
    vectors = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    quantizer = quantizer_class.fit(vectors, 3, 8, None, 0)
    codes = quantizer.encode(vectors)
    assert codes.shape == (200, 3) and codes.max() < 8
    points = quantizer.transform(vectors)
    nearest = quantizer.nearest(points, 5)
    assert np.array_equal(nearest.codes[:, 0], codes)
    assert np.allclose(nearest.errors[:, 2], quantizer.errors(points, nearest.codes[:, 2]))
    assert np.array_equal(quantizer_class.from_state(quantizer.state()).encode(vectors), codes)


def test_example_noising_masks_a_suffix(monkeypatch):
    import torch

    from recbole_diffgrm.models.diffgrm import noising

    monkeypatch.setattr(noising, "NOISINGS", dict(noising.NOISINGS))
    names = run_example("recbole_diffgrm/models/diffgrm/noising.py", "recbole_diffgrm.models.diffgrm.noising")
    suffix = names["SuffixNoising"](n_views=3, suffix_min_length=2)
    network = argparse.Namespace(predict=lambda shown, history, positions: torch.zeros(*shown.shape, 8))
    views = suffix.make_views(network, None, torch.zeros(5, 4, dtype=torch.int64))
    assert views.masked.shape == (5, 3, 4)
    assert views.masked[..., 2:].all() and not (views.masked[..., :-1] & ~views.masked[..., 1:]).any()
    with pytest.raises(recbole_diffgrm.UserError, match="suffix_min_length"):
        names["SuffixNoising"](n_views=None, suffix_min_length=5).check(4)

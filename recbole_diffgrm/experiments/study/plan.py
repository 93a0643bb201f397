"""The plan of a study, a YAML file: named runs in sections, what they are tested against, and rows of the short table.

    dataset: Amazon_Beauty
    settings: {seed: 2020}                 # of every run
    sections:
      - title: Baselines
        text: What was tuned.
        reference: SASRec                  # each run of the section is tested against this one
        runs:
          SASRec: {model: SASRec, settings: {epochs: 16}}
          DiffGRM: {model: DiffGRM, preset: [item], config_files: [mine.yaml], seeds: [1, 2], settings: {...}}
          wide beam: {weights_of: DiffGRM, settings: {beam_size: 64}}   # tested with other settings, not trained
    short_table: {SASRec: [SASRec, "SASRec, wide"]}   # row: runs, of which the best in validation is shown
    reference: DiffGRM                     # the row of the short table that its other rows are tested against
    published: {text: ..., rows: {SASRec (paper): {level: item, recall@10: 0.1, ndcg@10: 0.1}}}   # level: item or sid
    title: ..., text: ..., remarks: ...    # of the page, before and after the sections; Markdown

`{data_path}` in a setting stands for the folder of the datasets.
"""

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from recbole_diffgrm.config.argument_values import parse_argument
from recbole_diffgrm.config.build import metric_names
from recbole_diffgrm.config.layers import preset_layers, read_yaml
from recbole_diffgrm.config.protocol import held_out_parts, is_sampled
from recbole_diffgrm.config.recbole_config import Config
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.experiments.pipeline import retest_config
from recbole_diffgrm.models import build_config, get_model, text_keys

# The keys of each part, and their types.
STUDY_KEYS = {
    "dataset": str,
    "title": str,
    "text": str,
    "settings": dict,
    "sections": list,
    "short_table": dict,
    "reference": str,
    "published": dict,
    "remarks": str,
}
SECTION_KEYS = {"title": str, "text": str, "reference": str, "runs": dict}
RUN_KEYS = {"model": str, "preset": list, "config_files": list, "settings": dict, "seeds": list, "weights_of": str}
PUBLISHED_KEYS = {"text": str, "rows": dict}
PUBLISHED_ROW_KEYS = {"level": str, "recall@10": float, "ndcg@10": float}
KINDS: dict[type, str] = {str: "text", dict: "a mapping", list: "a list", float: "a number such as 0.05"}
REQUIRED_METRICS = {"recall@10", "ndcg@10"}


@dataclass(frozen=True)
class PlannedRun:
    name: str
    model: str
    presets: list[str]
    config_files: list[str]
    settings: dict[str, Any]
    seeds: list[int]  # empty: the one of the settings
    base: "PlannedRun | None" = None  # whose weights are tested with these settings

    def configs(self, dataset: str, options: Mapping[str, Any]) -> list[Config]:
        """One per seed. `options` are given from outside (Plan.check_options); those the model does not read are left
        out."""
        if self.base:
            of_base = self.base.configs(dataset, options)
            return [retest_config(self.model, dataset, config.values, self.settings) for config in of_base]
        settings = _fill_data_path(self.settings, str(options.get("data_path", "dataset")))
        known = get_model(self.model).Options.keys("nothing")
        settings |= {key: value for key, value in options.items() if key in known}
        configs = [
            build_config(self.model, dataset, self.config_files, {**settings, **seed}, presets=self.presets)
            for seed in [{"seed": seed} for seed in self.seeds] or [{}]
        ]
        for config in configs:
            _check_metrics(config, self.name)
        return configs

    def digest(self) -> str:
        """Of what the plan, its presets and its config files ask for. Layers below those (dataset, model) are not part
        of it."""
        presets = [content for _, content in preset_layers(self.model, self.presets)]
        files = [read_yaml(Path(name)) for name in self.config_files]
        base = self.base.digest() if self.base else None
        content = [self.model, presets, files, self.settings, self.seeds, base]
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]

    def command(self, dataset: str) -> str:
        """The command that runs it alone. FOLDER stands for the folder of the datasets."""
        settings = _fill_data_path(self.settings, "FOLDER")
        if self.base:
            words = [_to_option(key, value) for key, value in settings.items()]
            return " ".join(["python run_recbole_diffgrm.py --retest=RUN", *words, f"  # RUN: {self.base.name}"])
        words = [f"--model={self.model}", f"--dataset={dataset}"]
        if self.presets:
            words.append(f"--preset={','.join(self.presets)}")
        if self.config_files:
            words.append(f"--config_files={shlex.quote(' '.join(map(shlex.quote, self.config_files)))}")
        if self.seeds:
            settings.pop("seed", None)
            settings["seeds"] = ",".join(map(str, self.seeds))
        words += [_to_option(key, value) for key, value in settings.items()]
        return " ".join(["python run_recbole_diffgrm.py", *words])


@dataclass(frozen=True)
class Section:
    reference: str | None
    runs: list[PlannedRun]


@dataclass(frozen=True)
class Plan:
    dataset: str
    content: dict[str, Any]  # of the file
    sections: list[Section]
    short_table: dict[str, list[str]]  # row: names of runs
    reference: str | None

    @property
    def runs(self) -> dict[str, PlannedRun]:
        return {run.name: run for section in self.sections for run in section.runs}

    def check_options(self, options: Mapping[str, Any]) -> None:
        """From outside only keys may be given that do not affect results."""
        known = set().union(*(get_model(run.model).Options.keys("nothing") for run in self.runs.values()))
        for key in options:
            if key not in known:
                raise UserError(f"--{key}: set it in the plan; the command line takes only {', '.join(sorted(known))}")


def read_plan(path: Path) -> Plan:
    content = read_yaml(path)
    _check_keys(content, STUDY_KEYS, {"dataset", "sections"}, str(path))
    sections: list[Section] = []
    planned: dict[str, PlannedRun] = {}
    for section in content["sections"]:
        _check_keys(section, SECTION_KEYS, {"title", "runs"}, f"{path}: a section")
        runs = []
        for name, run in section["runs"].items():
            if name in planned:
                raise UserError(f"{path}: two runs have the name {name!r}")
            planned[name] = _plan_run(name, run, content.get("settings", {}), planned, f"{path}: {name}")
            runs.append(planned[name])
        sections.append(Section(section.get("reference"), runs))
    table = content.get("short_table", {})
    named = [section.reference for section in sections if section.reference]
    for label, names in table.items():
        if not isinstance(names, list):
            raise UserError(f"{path}: short_table: {label} must be a list of runs")
        named += names
    for name in named:
        if name not in planned:
            raise UserError(f"{path}: there is no run {name!r}")
    reference = content.get("reference")
    if reference is not None and reference not in table:
        raise UserError(f"{path}: reference: {reference!r} is not a row of short_table")
    if "published" in content:
        _check_keys(content["published"], PUBLISHED_KEYS, set(PUBLISHED_KEYS), f"{path}: published")
        for label, row in content["published"]["rows"].items():
            _check_keys(row, PUBLISHED_ROW_KEYS, set(PUBLISHED_ROW_KEYS), f"{path}: published: {label}")
            if row["level"] not in ("item", "sid"):
                raise UserError(f"{path}: published: {label}: level must be item or sid, not {row['level']}")
    return Plan(content["dataset"], content, sections, table, reference)


def _plan_run(name: str, run: Any, common: dict[str, Any], earlier: Mapping[str, PlannedRun], where: str) -> PlannedRun:
    _check_keys(run, RUN_KEYS, set() if isinstance(run, dict) and "weights_of" in run else {"model"}, where)
    settings, seeds = run.get("settings", {}), run.get("seeds", [])
    if len(set(seeds)) != len(seeds):
        raise UserError(f"{where}: seeds {seeds} names a seed twice")
    if "weights_of" not in run:
        files = (run.get("preset", []), run.get("config_files", []))
        return PlannedRun(name, run["model"], *files, {**common, **settings}, seeds)
    if set(run) - {"weights_of", "settings"}:
        raise UserError(f"{where}: with weights_of only settings can be given")
    if run["weights_of"] not in earlier:
        raise UserError(f"{where}: weights_of: there is no run {run['weights_of']!r} before it")
    base = earlier[run["weights_of"]]
    return PlannedRun(name, base.model, base.presets, base.config_files, settings, base.seeds, base)


def _check_metrics(config: Config, name: str) -> None:
    """The page shows Recall@10 and NDCG@10 of the whole catalogue, and a run is selected by validation."""
    missing = REQUIRED_METRICS - {metric.lower() for metric in metric_names(config.values)}
    if missing or held_out_parts(config) != ("valid", "test") or is_sampled(config):
        raise UserError(
            f"{name}: a study needs Recall@10 and NDCG@10, mode full, and a split with validation and test, such as "
            "valid_and_test"
        )


def _check_keys(content: Any, known: Mapping[str, type], required: set[str], where: str) -> None:
    if not isinstance(content, dict):
        raise UserError(f"{where}: expected lines `key: value`")
    for key, value in content.items():
        if key not in known:
            raise UserError(f"{where}: {key!r} is not one of {', '.join(sorted(known))}")
        if not isinstance(value, known[key]):
            raise UserError(f"{where}: {key} must be {KINDS[known[key]]}, not {value!r}")
        if isinstance(value, dict) and not all(isinstance(name, str) for name in value):
            raise UserError(f"{where}: {key}: names must be text (put numbers in quotes)")
    for key in sorted(required - set(content)):
        raise UserError(f"{where}: {key} is missing")


DATA_PATH = "{data_path}"


def _fill_data_path(settings: Mapping[str, Any], data_path: str) -> dict[str, Any]:
    return _replace_in_texts(settings, DATA_PATH, data_path)


def hide_data_path(settings: Mapping[str, Any], data_path: str) -> dict[str, Any]:
    """The other way round: what is stored must not name a folder of this machine."""
    return _replace_in_texts(settings, data_path, DATA_PATH)


def _replace_in_texts(settings: Mapping[str, Any], old: str, new: str) -> dict[str, Any]:
    return {key: value.replace(old, new) if isinstance(value, str) else value for key, value in settings.items()}


def _to_option(key: str, value: Any) -> str:
    """As the command line reads it, quoted for the shell where needed."""
    is_text = isinstance(value, str) and parse_argument(key, value, text_keys()) == value
    text = value if is_text else yaml.safe_dump(value, default_flow_style=True, width=10**6)
    return f"--{key}={shlex.quote(text.removesuffix(chr(10)).removesuffix(chr(10) + '...'))}"

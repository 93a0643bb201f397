"""A study is a YAML file: named runs in sections, what each is compared with, and the rows of the short table.

    dataset: Amazon_Beauty
    settings: {seed: 2020}                 # of every run
    sections:
      - title: Baselines
        text: What was searched.
        compared_with: SASRec              # each run of the section is tested against this one
        runs:
          SASRec: {model: SASRec, settings: {epochs: 16}}
          DiffGRM: {model: DiffGRM, config_files: [preset/item.yaml], seeds: [1, 2], settings: {...}}
          wide beam: {weights_of: DiffGRM, settings: {beam_size: 64}}   # tested only
    short_table: {SASRec: [SASRec, "SASRec, wide"]}   # row: runs, of which the best in validation is shown
    champion: DiffGRM                      # row of the short table that the others are tested against
    published: {text: ..., rows: {SASRec (paper): {level: item, recall@10: 0.1, ndcg@10: 0.1}}}   # level: item or SID
    title: ..., text: ..., remarks: ...    # of the page, before and after the sections; Markdown

Config files are found below properties/. `{data_path}` in a setting stands for the folder of the data sets.
"""

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from recbole_diffgrm.cli import is_read_as_text
from recbole_diffgrm.config.config import WITHOUT_INFLUENCE, Config, build_config, known_keys, metric_names
from recbole_diffgrm.config.layers import properties_dir, read_yaml
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.running.run import tested_differently

# What may stand where, and of what kind it is.
STUDY_KEYS = {
    "dataset": str,
    "title": str,
    "text": str,
    "settings": dict,
    "sections": list,
    "short_table": dict,
    "champion": str,
    "published": dict,
    "remarks": str,
}
SECTION_KEYS = {"title": str, "text": str, "compared_with": str, "runs": dict}
RUN_KEYS = {"model": str, "config_files": list, "settings": dict, "seeds": list, "weights_of": str}
PUBLISHED_KEYS = {"text": str, "rows": dict}
ROW_KEYS = {"level": str, "recall@10": float, "ndcg@10": float}
NEEDED_METRICS = {"recall@10", "ndcg@10"}


@dataclass(frozen=True)
class PlannedRun:
    name: str
    model: str
    config_files: list[str]  # below properties/
    settings: dict[str, Any]
    seeds: list[int]  # empty: that of the settings
    base: "PlannedRun | None" = None  # whose weights are tested with these settings

    def configs(self, dataset: str, options: Mapping[str, Any]) -> list[Config]:
        """One for each seed."""
        if self.base:
            of_base = self.base.configs(dataset, options)
            return [tested_differently(self.model, dataset, config.values, self.settings) for config in of_base]
        settings = _with_data_path(self.settings, str(options.get("data_path", "dataset")))
        files = [properties_dir() / name for name in self.config_files]
        of_seeds = [{"seed": seed} for seed in self.seeds] or [{}]
        given = {**settings, **_read_by(self.model, options)}
        return [_checked(build_config(self.model, dataset, files, {**given, **seed}), self.name) for seed in of_seeds]

    def digest(self) -> str:
        """Of what the plan and its config files ask for. Settings below those (data set, model) are not part of it."""
        files = [read_yaml(properties_dir() / name) for name in self.config_files]
        content = [self.model, files, self.settings, self.seeds, self.base.digest() if self.base else None]
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]

    def command(self, dataset: str) -> str:
        """What runs it alone. FOLDER stands for the folder of the data sets."""
        settings = _with_data_path(self.settings, "FOLDER")
        if self.base:
            words = [_option(key, value) for key, value in settings.items()]
            return " ".join(["python run_recbole_diffgrm.py --retest=RUN", *words, f"  # RUN: {self.base.name}"])
        files = " ".join(f"properties/{name}" for name in self.config_files)
        settings |= {"seeds": ",".join(map(str, self.seeds))} if self.seeds else {}
        words = [
            f"--model={self.model}",
            f"--dataset={dataset}",
            *([f"--config_files={shlex.quote(files)}"] if files else []),
        ]
        words += [_option(key, value) for key, value in settings.items() if key != "seed" or not self.seeds]
        return " ".join(["python run_recbole_diffgrm.py", *words])


@dataclass(frozen=True)
class Section:
    compared_with: str | None
    runs: list[PlannedRun]


@dataclass(frozen=True)
class Plan:
    dataset: str
    content: dict[str, Any]  # of the file
    sections: list[Section]
    short_table: dict[str, list[str]]  # row: names of runs
    champion: str | None

    @property
    def runs(self) -> dict[str, PlannedRun]:
        return {run.name: run for section in self.sections for run in section.runs}


def read_plan(path: Path) -> Plan:
    content = read_yaml(path)
    _check_keys(content, STUDY_KEYS, {"dataset", "sections"}, str(path))
    sections, planned = [], {}
    for section in content["sections"]:
        _check_keys(section, SECTION_KEYS, {"title", "runs"}, f"{path}: a section")
        runs = []
        for name, run in section["runs"].items():
            if name in planned:
                raise UserError(f"{path}: two runs have the name {name!r}")
            planned[name] = _planned(name, run, content.get("settings", {}), planned, f"{path}: {name}")
            runs.append(planned[name])
        sections.append(Section(section.get("compared_with"), runs))
    table = content.get("short_table", {})
    wanted = [section.compared_with for section in sections if section.compared_with]
    for label, names in table.items():
        if not isinstance(names, list):
            raise UserError(f"{path}: short_table: {label} must be a list of runs")
        wanted += names
    for name in wanted:
        if name not in planned:
            raise UserError(f"{path}: there is no run {name!r}")
    champion = content.get("champion")
    if champion is not None and champion not in table:
        raise UserError(f"{path}: the champion {champion!r} is no row of short_table")
    if "published" in content:
        _check_keys(content["published"], PUBLISHED_KEYS, set(PUBLISHED_KEYS), f"{path}: published")
        for label, row in content["published"]["rows"].items():
            _check_keys(row, ROW_KEYS, set(ROW_KEYS), f"{path}: published: {label}")
            if row["level"] not in ("item", "SID"):
                raise UserError(f"{path}: published: {label}: level must be item or SID, not {row['level']}")
    return Plan(content["dataset"], content, sections, table, champion)


def _planned(name: str, run: Any, common: dict[str, Any], earlier: Mapping[str, PlannedRun], where: str) -> PlannedRun:
    _check_keys(run, RUN_KEYS, set() if isinstance(run, dict) and "weights_of" in run else {"model"}, where)
    settings, seeds = run.get("settings", {}), run.get("seeds", [])
    if len(set(seeds)) != len(seeds):
        raise UserError(f"{where}: seeds {seeds} names a seed twice")
    if "weights_of" not in run:
        return PlannedRun(name, run["model"], run.get("config_files", []), {**common, **settings}, seeds)
    if set(run) - {"weights_of", "settings"}:
        raise UserError(f"{where}: with weights_of only settings can be given")
    if run["weights_of"] not in earlier:
        raise UserError(f"{where}: weights_of: there is no run {run['weights_of']!r} before it")
    base = earlier[run["weights_of"]]
    return PlannedRun(name, base.model, base.config_files, settings, base.seeds, base)


def _read_by(model: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options that a run may be given from outside: none that changes its outcome."""
    for key in options:
        if key not in WITHOUT_INFLUENCE:
            usable = ", ".join(sorted(WITHOUT_INFLUENCE))
            raise UserError(f"--{key}: the plan decides; from outside only {usable} can be set")
    return {key: value for key, value in options.items() if key in known_keys(model)}


def _checked(config: Config, name: str) -> Config:
    """One that gives the metrics that a page shows."""
    missing = NEEDED_METRICS - {metric.lower() for metric in metric_names(config.values)}
    if missing or config["eval_args"]["split"]["LS"] != "valid_and_test":
        raise UserError(f"{name}: a study needs Recall@10 and NDCG@10, and the split valid_and_test")
    return config


def _check_keys(content: Any, known: dict[str, type], needed: set[str], where: str) -> None:
    if not isinstance(content, dict):
        raise UserError(f"{where}: expected lines `key: value`")
    for key, value in content.items():
        if key not in known:
            raise UserError(f"{where}: {key!r} is not one of {', '.join(sorted(known))}")
        if not isinstance(value, known[key]):
            words = {str: "a text", dict: "a mapping", list: "a list", float: "a number such as 0.05"}[known[key]]
            raise UserError(f"{where}: {key} must be {words}, not {value!r}")
        if known[key] is dict and not all(isinstance(name, str) for name in value):
            raise UserError(f"{where}: {key}: names must be texts (put numbers in quotes)")
    for key in sorted(needed - set(content)):
        raise UserError(f"{where}: {key} is missing")


def _with_data_path(settings: Mapping[str, Any], data_path: str) -> dict[str, Any]:
    return {
        key: value.replace("{data_path}", data_path) if isinstance(value, str) else value
        for key, value in settings.items()
    }


def _option(key: str, value: Any) -> str:
    """As the command line reads it, quoted for the shell where it has to be."""
    is_text = isinstance(value, str) and is_read_as_text(key)
    text = value if is_text else yaml.safe_dump(value, default_flow_style=True, width=10**6)
    return f"--{key}={shlex.quote(text.removesuffix(chr(10)).removesuffix(chr(10) + '...'))}"

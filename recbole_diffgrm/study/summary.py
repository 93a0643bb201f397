"""What came of a study, as one JSON file: results of all finished runs and the tests between them."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recbole_diffgrm.data.prepare import check_files
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.evaluation.significance import TESTED_K, paired_p_value
from recbole_diffgrm.files import write_json
from recbole_diffgrm.running import rundir
from recbole_diffgrm.running.comparison import Row, check_same_users, per_user
from recbole_diffgrm.running.result import RunResult
from recbole_diffgrm.study.plan import Plan, PlannedRun

RANKINGS = {"rank": "item, all", "rank_new": "item, new", "sid_rank": "SID"}  # in ranks.npz
TESTED = f"ndcg@{TESTED_K}"


@dataclass(frozen=True)
class Summary:
    plan: dict[str, Any]
    commands: dict[str, str]
    rows: dict[str, Row]  # of each finished run
    tests: dict[str, dict[str, float]]  # run: ranking: p-value against what its section is compared with
    short_table: dict[str, str]  # row: the run that is shown
    champion_tests: dict[str, dict[str, float]]  # row: ranking: p-value against the champion

    def save(self, path: Path) -> None:
        content = asdict(self) | {"rows": {name: [_kept(run) for run in row.runs] for name, row in self.rows.items()}}
        write_json(content, path)

    @classmethod
    def load(cls, path: Path) -> "Summary":
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            rows = {
                name: Row(name, [RunResult(run_dir=Path(), **run) for run in runs])
                for name, runs in content["rows"].items()
            }
            return cls(**{**content, "rows": rows})
        except FileNotFoundError:
            raise UserError(f"{path} does not exist: run the study first") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is damaged or of another version ({error}); write it anew with --report") from None


def gather(plan: Plan, options: Mapping[str, Any]) -> Summary:
    """All runs of the plan that are finished with all their seeds."""
    rows = {}
    for name, planned in plan.runs.items():
        results = finished(planned, plan.dataset, options)
        if all(results):
            rows[name] = Row(name, results)
    tests = {
        run.name: _tests(rows[run.name], rows[section.compared_with])
        for section in plan.sections
        for run in section.runs
        if section.compared_with in rows and run.name in rows and run.name != section.compared_with
    }
    short_table = {}
    for label, names in plan.short_table.items():
        there = [name for name in names if name in rows]
        if there:
            short_table[label] = max(there, key=lambda name: _validation(rows[name]))
    champion = short_table.get(plan.champion)
    champion_tests = {
        label: _tests(rows[name], rows[champion])
        for label, name in short_table.items()
        if champion and name != champion
    }
    commands = {name: planned.command(plan.dataset) for name, planned in plan.runs.items()}
    return Summary(plan.content, commands, rows, tests, short_table, champion_tests)


def finished(planned: PlannedRun, dataset: str, options: Mapping[str, Any]) -> list[RunResult | None]:
    """The result for each seed."""
    configs = planned.configs(dataset, options)
    for config in configs:
        check_files(config)
    if not planned.base:
        return [rundir.latest_finished(config, rundir.identity(config)) for config in configs]
    trained = finished(planned.base, dataset, options)
    return [
        rundir.latest_finished(config, rundir.identity(config, weights)) if weights else None
        for config, weights in zip(configs, trained)
    ]


def _validation(row: Row) -> float:
    return float(np.mean([run.valid[TESTED] for run in row.runs]))


def _tests(row: Row, reference: Row) -> dict[str, float]:
    """Paired t-test of the users' NDCG@10, for each ranking that both have."""
    check_same_users([*row.runs, *reference.runs])
    tests = {}
    for ranks in RANKINGS:
        if ranks != "sid_rank" or all(f"sid_{TESTED}" in run.test for run in (*row.runs, *reference.runs)):
            tests[ranks] = paired_p_value(per_user(row.runs, ranks), per_user(reference.runs, ranks))
    return tests


def _kept(run: RunResult) -> dict[str, Any]:
    """A result without its place on disk, what is in the plan anyway, and statistics of single digits."""
    content = asdict(run)
    del content["run_dir"]
    content["config"] = {}
    content["curve"] = [{key: value for key, value in entry.items() if key != "statistics"} for entry in run.curve]
    return content

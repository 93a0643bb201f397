"""What came of a study: results of all finished runs and the tests between them, as one JSON file, and beside it the
ranks of the test users' targets, so that runs can be tested against others whose directories are gone."""

import hashlib
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from recbole_diffgrm.config.config import Config
from recbole_diffgrm.data.prepare import check_files
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.evaluation.significance import TESTED_K, ndcg_at, paired_p_value
from recbole_diffgrm.files import whole_file, write_json
from recbole_diffgrm.running import rundir
from recbole_diffgrm.running.comparison import Row
from recbole_diffgrm.running.result import RunResult
from recbole_diffgrm.study.plan import Plan, PlannedRun

RANKINGS = {"rank": "item, all", "rank_new": "item, new", "sid_rank": "SID"}  # in ranks.npz
TESTED = f"ndcg@{TESTED_K}"
LAST = 255  # ranks are kept in a byte: this one and all beyond


@dataclass(frozen=True)
class Summary:
    plan: dict[str, Any]
    commands: dict[str, str]
    rows: dict[str, Row]  # of each finished run
    tests: dict[str, dict[str, float]]  # run: ranking: p-value against what its section is compared with
    short_table: dict[str, str]  # row: the run that is shown
    champion_tests: dict[str, dict[str, float]]  # row: ranking: p-value against the champion
    digests: dict[str, str] = field(default_factory=dict)  # of what the plan and its config files ask of each run
    test_sets: dict[str, str] = field(default_factory=dict)  # hash of a run: digest of its test users and targets
    ranks: dict[str, np.ndarray] = field(default_factory=dict)  # "<hash of a run> <ranking>": [users]

    def p_values(self) -> dict[tuple[str, str], dict[str, float]]:
        """Of each two runs that were tested against each other."""
        pairs = {
            (name, section["compared_with"]): self.tests[name]
            for section in self.plan["sections"]
            for name in section["runs"]
            if name in self.tests
        }
        champion = self.short_table.get(self.plan.get("champion"))
        pairs |= {(self.short_table[label], champion): tests for label, tests in self.champion_tests.items()}
        pairs = {pair: tests for pair, tests in pairs.items() if tests}
        return pairs | {pair[::-1]: tests for pair, tests in pairs.items()}

    def save(self, path: Path) -> None:
        content = asdict(replace(self, ranks={}))
        del content["ranks"]
        content["rows"] = {name: [_kept(run) for run in row.runs] for name, row in self.rows.items()}
        with whole_file(_ranks_file(path)) as file:
            np.savez_compressed(file, **self.ranks)
        write_json(content, path)

    @classmethod
    def load(cls, path: Path, with_ranks: bool = False) -> "Summary":
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            rows = {
                name: Row(name, [RunResult(run_dir=Path(), **run) for run in runs])
                for name, runs in content["rows"].items()
            }
            summary = cls(**{**content, "rows": rows})
        except FileNotFoundError:
            raise UserError(f"{path} does not exist: run the study first") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{path} is damaged or of another version ({error}): restore it, or delete it and gather with --report "
                "what is left of the runs"
            ) from None
        return replace(summary, ranks=_load_ranks(_ranks_file(path))) if with_ranks else summary


def gather(plan: Plan, options: Mapping[str, Any], earlier: Summary | None = None) -> Summary:
    """All runs of the plan that are finished with all their seeds: in their directories or, where these are gone, in
    what was gathered before, if the plan still has them with the same settings."""
    commands = {name: planned.command(plan.dataset) for name, planned in plan.runs.items()}
    digests = {name: planned.digest() for name, planned in plan.runs.items()}
    rows, ranks, test_sets = {}, {}, {}
    for name, planned in plan.runs.items():
        results = finished(planned, plan.dataset, options)
        if not planned.base and any(map(_misses_ids, planned.configs(plan.dataset, options))):
            print(f"{name}: its sid_file is not there, so its run cannot be looked for")
        if all(results):
            rows[name] = Row(name, results)
            for run in results:
                of_run, test_sets[run.config_hash] = _read_ranks(run)
                ranks |= of_run
        elif earlier and name in earlier.rows and _is_still_asked_for(planned, plan.dataset, earlier, rows):
            rows[name] = earlier.rows[name]
            hashes = tuple(run.config_hash for run in rows[name].runs)
            ranks |= {key: values for key, values in earlier.ranks.items() if key.startswith(hashes)}
            test_sets |= {key: digest for key, digest in earlier.test_sets.items() if key in hashes}
    short_table = {}
    for label, names in plan.short_table.items():
        there = [name for name in names if name in rows]
        if there:
            short_table[label] = max(there, key=lambda name: _validation(rows[name]))
    found = Summary(plan.content, commands, rows, {}, short_table, {}, digests, test_sets, ranks)
    champion = short_table.get(plan.champion)
    return replace(
        found,
        tests={
            run.name: _tests(found, (run.name, section.compared_with), earlier)
            for section in plan.sections
            for run in section.runs
            if section.compared_with in rows and run.name in rows and run.name != section.compared_with
        },
        champion_tests={
            label: _tests(found, (name, champion), earlier)
            for label, name in short_table.items()
            if champion and name != champion
        },
    )


def finished(planned: PlannedRun, dataset: str, options: Mapping[str, Any]) -> list[RunResult | None]:
    """The result for each seed."""
    configs = planned.configs(dataset, options)
    for config in configs:
        check_files(config)
    if not planned.base:
        if any(map(_misses_ids, configs)):
            return [None] * len(configs)
        return [rundir.latest_finished(config, rundir.identity(config)) for config in configs]
    trained = finished(planned.base, dataset, options)
    return [
        rundir.latest_finished(config, rundir.identity(config, weights)) if weights else None
        for config, weights in zip(configs, trained)
    ]


def _misses_ids(config: Config) -> bool:
    """Is a table of IDs gone? What was in it decides which run is meant, so none can be looked for."""
    path = config.values.get("sid_file")
    return bool(path) and not Path(path).exists()


def _is_still_asked_for(planned: PlannedRun, dataset: str, earlier: Summary, rows: Mapping[str, Row]) -> bool:
    """Does the plan ask for what was gathered under this name? Of a test of other weights: are they those in `rows`?"""
    name = planned.name
    if name in earlier.digests:
        is_same = earlier.digests[name] == planned.digest()
    else:  # of a version that kept none
        is_same = earlier.commands.get(name) == planned.command(dataset)
    if planned.base:
        trained = rows[planned.base.name].runs if planned.base.name in rows else []
        is_same &= [run.weights_of for run in earlier.rows[name].runs] == [run.config_hash for run in trained]
    return is_same


def _validation(row: Row) -> float:
    return float(np.mean([run.valid[TESTED] for run in row.runs]))


def _tests(found: Summary, pair: tuple[str, str], earlier: Summary | None) -> dict[str, float]:
    """Paired t-test of the users' NDCG@10, for each ranking that both runs have. Where those of one are gone: as the
    two were tested earlier, if they had the same results then."""
    rows = [found.rows[name] for name in pair]
    test_sets = {found.test_sets.get(run.config_hash) for row in rows for run in row.runs} - {None}
    if len(test_sets) > 1:
        raise UserError(f"{pair[0]} and {pair[1]} were tested on other users or targets: they cannot be compared")
    known = earlier.p_values().get(pair, {}) if earlier and all(_is_same(row, earlier) for row in rows) else {}
    tests = {}
    for ranks in RANKINGS:
        if ranks == "sid_rank" and not all(f"sid_{TESTED}" in run.test for row in rows for run in row.runs):
            continue
        gains = [_per_user(found, row, ranks) for row in rows]
        if all(of_row is not None for of_row in gains):
            tests[ranks] = paired_p_value(*gains)
        elif ranks in known:
            tests[ranks] = known[ranks]
    return tests


def _per_user(found: Summary, row: Row, ranks: str) -> np.ndarray | None:
    """NDCG@10 of each test user, as the mean over seeds."""
    of_seeds = [found.ranks.get(f"{run.config_hash} {ranks}") for run in row.runs]
    return None if any(of_seed is None for of_seed in of_seeds) else np.mean([ndcg_at(r) for r in of_seeds], axis=0)


def _read_ranks(run: RunResult) -> tuple[dict[str, np.ndarray], str]:
    """Of a run's directory, and the digest of its test users and their targets."""
    with np.load(run.run_dir / "ranks.npz") as saved:
        digest = hashlib.sha256("\n".join([*saved["user"], *saved["target"]]).encode()).hexdigest()[:16]
        ranks = {name: saved[name] for name in RANKINGS if name in saved}
    return {f"{run.config_hash} {name}": r.clip(max=LAST).astype(np.uint8) for name, r in ranks.items()}, digest


def _load_ranks(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path) as saved:
            return dict(saved)
    except FileNotFoundError:  # of a version that kept none
        return {}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(
            f"{path} is damaged ({error}): restore it, or delete it; runs whose directories are gone cannot be tested "
            "against new ones then"
        ) from None


def _is_same(row: Row, earlier: Summary) -> bool:
    """Has a row the results that it had?"""
    before = earlier.rows[row.model].runs if row.model in earlier.rows else []
    return [(run.test, run.test_new) for run in row.runs] == [(run.test, run.test_new) for run in before]


def _ranks_file(path: Path) -> Path:
    return path.with_name(f"{path.stem}-ranks.npz")


def _kept(run: RunResult) -> dict[str, Any]:
    """A result without its place on disk, what is in the plan anyway, and statistics of single digits."""
    content = asdict(run)
    del content["run_dir"]
    content["config"] = {}
    content["curve"] = [{key: value for key, value in entry.items() if key != "statistics"} for entry in run.curve]
    return content

"""The summary of a study: results of all finished runs and the tests between them, as one JSON file, and beside it the
ranks of the test users' targets, so that new runs can be tested against runs whose directories are gone."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recbole_diffgrm.config.recbole_config import Config
from recbole_diffgrm.data.source import check_files
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.evaluation.ranks import rank_name
from recbole_diffgrm.evaluation.significance import TESTED_METRIC, paired_p_value
from recbole_diffgrm.experiments import run_directory
from recbole_diffgrm.experiments.result import RunResult
from recbole_diffgrm.experiments.results_table import SID_KEYS, Row, load_ranks, per_user_ndcg
from recbole_diffgrm.experiments.study.plan import Plan, PlannedRun, hide_data_path
from recbole_diffgrm.files import atomic_write, reading, write_json

# (level, ranking) of the page's columns and tests
SHOWN = [("item", "all"), ("item", "unseen"), ("sid", "all")]
LARGEST_RANK = 255  # ranks are stored in a byte; larger ones become this


@dataclass(frozen=True)
class Summary:
    plan: dict[str, Any]
    commands: dict[str, str]
    rows: dict[str, Row]  # of each finished run
    tests: dict[str, dict[str, float]]  # run: {key (rank_name): p-value against its section's reference}
    short_table: dict[str, str]  # row: the run that is shown
    short_table_tests: dict[str, dict[str, float]]  # row: {key: p-value against the reference row}
    digests: dict[str, str]  # run: digest of what the plan, its presets and its config files ask for
    test_sets: dict[str, str]  # hash of a run: digest of its test users and targets
    ranks: dict[str, dict[str, NDArray[Any]]] = field(default_factory=dict)  # hash of a run: {key: [num_users]}

    def p_values(self) -> dict[tuple[str, str], dict[str, float]]:
        """Of each two runs that were tested against each other, in either order."""
        pairs = {
            (name, section["reference"]): self.tests[name]
            for section in self.plan["sections"]
            for name in section["runs"]
            if name in self.tests
        }
        reference = self.short_table.get(self.plan.get("reference", ""), "")
        pairs |= {(self.short_table[label], reference): tests for label, tests in self.short_table_tests.items()}
        pairs = {pair: tests for pair, tests in pairs.items() if tests}
        return pairs | {pair[::-1]: tests for pair, tests in pairs.items()}

    def ranks_of(self, row: Row) -> list[dict[str, NDArray[Any]]]:
        """One entry per run; empty where its ranks were not kept."""
        return [self.ranks.get(run.config_hash, {}) for run in row.runs]

    def save(self, path: Path) -> None:
        content = asdict(replace(self, ranks={}))
        del content["ranks"]
        content["rows"] = {name: [_to_json(run) for run in row.runs] for name, row in self.rows.items()}
        ranks: dict[str, Any] = {
            f"{run} {key}": values for run, of_run in self.ranks.items() for key, values in of_run.items()
        }
        with atomic_write(_ranks_file(path)) as file:
            np.savez_compressed(file, **ranks)
        write_json(content, path)

    @classmethod
    def load(cls, path: Path, with_ranks: bool = False) -> "Summary":
        advice = "restore it, or delete it and gather the runs that still exist with --report"
        with reading(path, "run the study first", advice):
            content = json.loads(path.read_text(encoding="utf-8"))
            rows = {
                name: Row(name, [RunResult(run_dir=Path(), **run) for run in runs])
                for name, runs in content["rows"].items()
            }
            summary = cls(**{**content, "rows": rows})
        return replace(summary, ranks=_load_ranks(_ranks_file(path))) if with_ranks else summary


def gather(plan: Plan, options: Mapping[str, Any], earlier: Summary | None = None) -> Summary:
    """All runs of the plan that are finished with all their seeds: from their directories or, where these are gone,
    from the earlier summary, if the plan still has them with the same settings."""
    rows: dict[str, Row] = {}
    ranks: dict[str, dict[str, NDArray[Any]]] = {}
    test_sets: dict[str, str] = {}
    for name, planned in plan.runs.items():
        seeds = find_finished(planned, plan.dataset, options)
        if not planned.base and any(map(_lacks_sid_file, planned.configs(plan.dataset, options))):
            print(f"{name}: its sid_file does not exist, so its finished run cannot be identified")
        results = [result for result in seeds if result]
        if len(results) == len(seeds):
            rows[name] = Row(name, results)
            for run in results:
                try:
                    ranks[run.config_hash], test_sets[run.config_hash] = _read_ranks(run)
                except UserError as error:
                    print(f"{name}: {error}: it is tested against others only where earlier ranks were kept")
                    if earlier and _has_same_results(rows[name], earlier) and run.config_hash in earlier.ranks:
                        ranks[run.config_hash] = earlier.ranks[run.config_hash]
                        test_sets[run.config_hash] = earlier.test_sets[run.config_hash]
        elif earlier and name in earlier.rows and _is_unchanged(planned, earlier, rows):
            rows[name] = earlier.rows[name]
            hashes = {run.config_hash for run in rows[name].runs}
            ranks |= {run: of_run for run, of_run in earlier.ranks.items() if run in hashes}
            test_sets |= {run: digest for run, digest in earlier.test_sets.items() if run in hashes}
    short_table = {}
    for label, names in plan.short_table.items():
        finished = [name for name in names if name in rows]
        if finished:
            short_table[label] = max(finished, key=lambda name: validation_score(rows[name]))
    summary = Summary(
        plan=plan.content,
        commands={name: planned.command(plan.dataset) for name, planned in plan.runs.items()},
        rows=rows,
        tests={},
        short_table=short_table,
        short_table_tests={},
        digests={name: planned.digest() for name, planned in plan.runs.items()},
        test_sets=test_sets,
        ranks=ranks,
    )
    reference = short_table.get(plan.reference or "")
    return replace(
        summary,
        tests={
            run.name: _test_pair(summary, (run.name, section.reference), earlier)
            for section in plan.sections
            for run in section.runs
            if section.reference in rows and run.name in rows and run.name != section.reference
        },
        short_table_tests={
            label: _test_pair(summary, (name, reference), earlier)
            for label, name in short_table.items()
            if reference and name != reference
        },
    )


def find_finished(planned: PlannedRun, dataset: str, options: Mapping[str, Any]) -> list[RunResult | None]:
    """The result of each seed, None where it is not finished."""
    configs = planned.configs(dataset, options)
    for config in configs:
        check_files(config)
    if not planned.base:
        if any(map(_lacks_sid_file, configs)):
            return [None] * len(configs)
        return [run_directory.latest_finished(config, run_directory.run_hash(config)) for config in configs]
    trained = find_finished(planned.base, dataset, options)
    return [
        run_directory.latest_finished(config, run_directory.run_hash(config, weights)) if weights else None
        for config, weights in zip(configs, trained)
    ]


def validation_score(row: Row) -> float:
    """Validation NDCG@10 (item level, in the configured ranking), the mean over seeds."""
    return float(np.mean([run.valid[TESTED_METRIC] for run in row.runs]))


def _lacks_sid_file(config: Config) -> bool:
    """The content of a SID file is part of the run's hash, so without the file no run can be identified."""
    path = config.values.get("sid_file")
    return path is not None and not Path(path).exists()


def _is_unchanged(planned: PlannedRun, earlier: Summary, rows: Mapping[str, Row]) -> bool:
    """Does the plan ask for what was gathered under this name? A retest must also be of the weights in `rows`."""
    name = planned.name
    if earlier.digests.get(name) != planned.digest():
        return False
    if not planned.base:
        return True
    trained = rows[planned.base.name].runs if planned.base.name in rows else []
    return [run.weights_of for run in earlier.rows[name].runs] == [run.config_hash for run in trained]


def _test_pair(summary: Summary, pair: tuple[str, str], earlier: Summary | None) -> dict[str, float]:
    """{key: p-value of the paired t-test of the users' NDCG@10}, for each key that both runs have. Where the ranks of
    one are gone: the earlier p-value, if both had the same results then."""
    rows = [summary.rows[name] for name in pair]
    test_sets = {summary.test_sets.get(run.config_hash) for row in rows for run in row.runs} - {None}
    if len(test_sets) > 1:
        raise UserError(f"{pair[0]} and {pair[1]} were tested on other users or targets: they cannot be compared")
    known = earlier.p_values().get(pair, {}) if earlier and all(_has_same_results(row, earlier) for row in rows) else {}
    tests = {}
    for level, ranking in SHOWN:
        key = rank_name(level, ranking)
        first, second = (per_user_ndcg(summary.ranks_of(row), level, ranking) for row in rows)
        if first is not None and second is not None:
            tests[key] = paired_p_value(first, second)
        elif key in known:
            tests[key] = known[key]
    return tests


def _has_same_results(row: Row, earlier: Summary) -> bool:
    before = earlier.rows[row.name].runs if row.name in earlier.rows else []
    return [run.test for run in row.runs] == [run.test for run in before]


def _read_ranks(run: RunResult) -> tuple[dict[str, NDArray[Any]], str]:
    """The ranks in a run's directory, as they are stored, and the digest of its test users and their targets."""
    saved = load_ranks(run)
    digest = hashlib.sha256("\n".join([*saved["user"], *saved["target"]]).encode()).hexdigest()[:16]
    keys = [key for key in (rank_name(level, ranking) for level, ranking in SHOWN) if key in saved]
    ranks = {key: saved[key].clip(max=LARGEST_RANK).astype(np.uint8) for key in keys}
    users, number = np.unique(saved["user"], return_inverse=True)
    if len(users) < len(number):  # whose targets belong together
        ranks["user"] = number.astype(np.int32)
    return ranks, digest


def _load_ranks(path: Path) -> dict[str, dict[str, NDArray[Any]]]:
    ranks: dict[str, dict[str, NDArray[Any]]] = {}
    if not path.exists():  # results without ranks can be shown, but not tested against new runs
        return ranks
    advice = "restore it, or delete it; runs whose directories are gone cannot be tested against new ones then"
    with reading(path, if_damaged=advice), np.load(path) as saved:
        for name, values in saved.items():
            run, _, key = name.partition(" ")
            ranks.setdefault(run, {})[key] = values
    return ranks


def _ranks_file(path: Path) -> Path:
    return path.with_name(f"{path.stem}-ranks.npz")


def _to_json(run: RunResult) -> dict[str, Any]:
    """A result without its directory, its settings (they are in the plan) but for those of its semantic IDs, groups of
    targets and statistics of single digits, and without checksums of files that may be gone."""
    content = asdict(run)
    del content["run_dir"], content["groups"], content["sha256"]
    of_sids = {key: value for key, value in run.config.items() if key in SID_KEYS} if run.sid_digest else {}
    data_path = run.config.get("data_path")  # not in a run that was stored before
    content["config"] = hide_data_path(of_sids, data_path) if data_path else of_sids
    content["curve"] = [{key: value for key, value in entry.items() if key != "statistics"} for entry in run.curve]
    return content

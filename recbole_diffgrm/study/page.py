"""The results page of a study, and the short table for the README. Every number comes from the summary."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from tabulate import tabulate

from recbole_diffgrm.errors import UserError
from recbole_diffgrm.running.comparison import Row
from recbole_diffgrm.study.summary import RANKINGS, TESTED, Summary

HEAD = [
    "Recall@10",
    "NDCG@10",
    "Recall@10, new",
    "NDCG@10, new",
    "Recall@10, IDs",
    "NDCG@10, IDs",
]
LEGEND = (
    "Test metrics. Without an addition: item level, all items ranked (RecBole's way). `new`: item level, items of the "
    "user's history left out of the ranking (a target that is one of them is a miss). `IDs`: the paper's level, a hit "
    "is the target's semantic ID; models without IDs have none."
)


def render(summary: Summary, name: str) -> str:
    plan = summary.plan
    parts = [f"# {plan.get('title', plan['dataset'])}", _made_by(name), plan.get("text", ""), _setting(summary)]
    parts += ["## Overview", short_table(summary)]
    if summary.short_table:
        parts += [f"![bars]({name}-bars.png)", f"![curves]({name}-curves.png)"]
    for section in plan["sections"]:
        parts += [f"## {section['title']}", section.get("text", ""), _section_table(summary, section)]
    parts += ["## Remarks", plan["remarks"]] if "remarks" in plan else []
    parts += ["## Runs", _runs_table(summary), _commands(summary)]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def short_table(summary: Summary) -> str:
    """One line a model, beside what others published."""
    champion = summary.plan.get("champion")
    body = []
    for label, run in summary.short_table.items():
        tests = summary.champion_tests.get(label, {})
        p_values = ["" if ranks not in tests else _p(tests[ranks]) for ranks in ("rank", "rank_new")]
        choice = run.removeprefix(label).strip(", ")
        shown = f"{label} ({choice})" if choice and len(summary.plan["short_table"][label]) > 1 else label
        body.append([shown, *_cells(summary.rows[run]), *p_values])
    published = summary.plan.get("published", {})
    for label, values in published.get("rows", {}).items():
        is_ids = values["level"] == "SID"
        numbers = [f"{values['recall@10']:.4f}", f"{values['ndcg@10']:.4f}"]
        body.append([label, *([""] * 4 + numbers if is_ids else numbers + [""] * 4), "", ""])
    missing = [label for label in summary.plan.get("short_table", {}) if label not in summary.short_table]
    head = ["", *HEAD, "p", "p, new"]
    lines = [_table(body, head), LEGEND]
    if champion:
        lines[1] += f" p: paired t-test of the users' NDCG@10 against {champion}, all items and new ones."
        if any(not tests for tests in summary.champion_tests.values()):
            lines[1] += " No p: not tested, because the ranks of one of the two runs were not kept."
    if published:
        lines[1] += " " + " ".join(published["text"].split())
    if missing:
        lines.append(f"Not finished: {', '.join(missing)}.")
    return "\n\n".join(lines)


def with_short_table(text: str, summary: Summary, name: str) -> str:
    """A text with the short table put between its marks, as in the README."""
    check_marks(text, name)
    begin, end = _marks(name)
    before, _, rest = text.partition(begin)
    after = rest.partition(end)[2]
    return f"{before}{begin}\n{_made_by(name)}\n\n{short_table(summary)}\n{end}{after}"


def check_marks(text: str, name: str) -> None:
    begin, end = _marks(name)
    if end not in text.partition(begin)[2]:
        raise UserError(f"--readme: there are no marks {begin} and {end} to put the table between")


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- {name} -->", f"<!-- end of {name} -->"


def _made_by(name: str) -> str:
    return f"*Written by `python -m recbole_diffgrm.study properties/study/{name}.yaml`; not edited by hand.*"


def _setting(summary: Summary) -> str:
    runs = [run for row in summary.rows.values() for run in row.runs]
    if not runs:
        return "No run is finished."
    # Models differ in their training samples and in the users they validate on.
    shown = {key: value for key, value in runs[0].statistics.items() if not key.startswith(("train_", "valid_"))}
    machine = {f"{run.environment['processor']}, {run.environment['cores']} cores" for run in runs}
    lines = [
        "| " + " | ".join(key.replace("_", " ") for key in shown) + " |",
        "|" + "---|" * len(shown),
        "| "
        + " | ".join(f"{value:,}" if isinstance(value, int) else _number(value) for value in shown.values())
        + " |",
        "",
        f"Hardware: {'; '.join(sorted(machine))}. Seeds: {_listed({run.seed for run in runs})}. Threads, commit and "
        "time of each run stand at the end.",
    ]
    return "\n".join(lines)


def _section_table(summary: Summary, section: dict[str, Any]) -> str:
    reference = section.get("compared_with")
    body, missing = [], []
    for name in section["runs"]:
        if name not in summary.rows:
            missing.append(name)
            continue
        row = summary.rows[name]
        line = [name, *_cells(row), f"{np.mean([run.valid[TESTED] for run in row.runs]):.4f}"]
        if reference in summary.rows:
            line += _differences(summary, name, reference)
        body.append(line)
    head = ["", *HEAD, "validation NDCG@10"]
    if reference in summary.rows:
        head += [f"{label}: change" for label in RANKINGS.values()]
    lines = [_table(body, head)] if body else []
    if reference in summary.rows and body:
        lines.append(f"change: of NDCG@10 against {reference}, and p of the paired t-test.")
        if any(not summary.tests[name] for name in section["runs"] if name in summary.tests):
            lines[-1] += " No p: not tested, because the ranks of one of the two runs were not kept."
    if missing:
        lines.append(f"Not finished: {', '.join(missing)}.")
    return "\n\n".join(lines)


def _differences(summary: Summary, name: str, reference: str) -> list[str]:
    """Relative change of NDCG@10 in each ranking, and its p-value where there is one."""
    if name == reference:
        return [""] * len(RANKINGS)
    cells = []
    for ranks in RANKINGS:
        metric, new = ("sid_" + TESTED if ranks == "sid_rank" else TESTED), ranks == "rank_new"
        ours, theirs = (summary.rows[run].values(metric, new) for run in (name, reference))
        p_value = summary.tests[name].get(ranks)
        words = [f"{ours.mean() / theirs.mean() - 1:+.1%}"] if len(ours) and len(theirs) and theirs.mean() else []
        cells.append(" ".join(words + ([] if p_value is None else [f"({_p(p_value)})"])))
    return cells


def _cells(row: Row) -> list[str]:
    of_items = [row.cell(metric, new) for new in (False, True) for metric in ("recall@10", "ndcg@10")]
    return [cell.replace("-", "") for cell in [*of_items, row.cell("sid_recall@10"), row.cell("sid_ndcg@10")]]


def _runs_table(summary: Summary) -> str:
    body = []
    for name, row in summary.rows.items():
        for run in row.runs:
            commit = (run.environment["commit"] or "")[:7] + (
                "+" if "changes" in (run.environment["commit"] or "") else ""
            )
            body.append(
                [name, run.seed, f"{run.best_epoch} of {run.epochs}" if run.epochs else ""]
                + [f"{run.seconds[part]:,.0f}" for part in ("train", "valid", "test")]
                + [
                    run.environment["threads"],
                    f"{run.statistics['train_samples']:,}",
                    f"{run.statistics['valid_users']:,}",
                ]
                + [f"{run.parameters:,}", f"{run.peak_memory_mib:,.0f}", commit]
            )
    head = ["", "seed", "best epoch", "training, s", "validation, s", "test, s", "threads", "training samples"]
    return _table(body, [*head, "validation users", "parameters", "peak, MiB", "commit"])


def _commands(summary: Summary) -> str:
    lines = [f"    # {name}\n    {command}" for name, command in summary.commands.items() if name in summary.rows]
    return "Each of them by itself (add `--data_path=FOLDER`):\n\n" + "\n".join(lines)


def _table(body: Iterable[list[Any]], head: list[str]) -> str:
    return tabulate(list(body), head, tablefmt="github", disable_numparse=True)


def _p(value: float) -> str:
    return f"{value:.1g}" if value > 0 else "< 1e-300"  # less than a float holds


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(str, sorted(values)))

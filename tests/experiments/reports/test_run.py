"""The report of a run: its numbers are those of its files, it is one harmless file, and no run is lost for it."""

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from recbole_diffgrm import RunResult, run
from recbole_diffgrm.cli.main import main
from recbole_diffgrm.cli.report import main as report_main
from recbole_diffgrm.evaluation.intervals import bootstrap_intervals
from recbole_diffgrm.evaluation.significance import ndcg_at
from recbole_diffgrm.experiments.reports import page
from recbole_diffgrm.experiments.reports import run as report
from tests.conftest import ROOT, error_line, run_python
from tests.experiments.reports.conftest import HOSTILE, report_of


class Page(HTMLParser):
    """What a browser would make of it: its tags with their attributes, and the cells of its tables."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.texts: list[str] = []
        self.is_in_cell = False
        self.feed(text)
        self.rows = [[" ".join(cell.split()) for cell in row] for row in self.rows]

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.is_in_cell = True

    def handle_endtag(self, tag):
        self.is_in_cell &= tag not in ("td", "th")

    def handle_data(self, data):
        self.texts.append(data)
        if self.is_in_cell:
            self.rows[-1][-1] += data


def test_metrics_with_their_intervals(finished):
    rows = Page(report_of(finished.run.run_dir)).rows
    head = next(row for row in rows if "validation" in row)
    assert head == ["", "validation", "test, all items", "test, seen items filtered"]
    with np.load(finished.run.run_dir / "ranks.npz") as saved:
        ranks = dict(saved)
    levels = {}
    for row in rows[rows.index(head) + 1 :]:
        levels.setdefault(row[0], []).append(row)
    for level, row in zip(("item", "sid"), levels["ndcg@10"]):
        name = "sid_ndcg@10" if level == "sid" else "ndcg@10"
        expected = [f"{finished.run.valid[name]:.4f}"]
        for ranking in ("all", "unseen"):
            values = ndcg_at(ranks[f"{level}_{ranking}"])
            low, high = bootstrap_intervals({name: values}, ranks["user"])[name]
            assert low < values.mean() < high
            expected.append(f"{finished.run.test[ranking][name]:.4f} {low:.4f}–{high:.4f}")  # noqa: RUF001
        assert row[1:] == expected


def test_groups_of_targets(finished):
    with np.load(finished.run.run_dir / "ranks.npz") as saved:
        ranks = dict(saved)
    assert ranks["history_length"].min() >= 1 and len(ranks["popularity"]) == len(ranks["user"])
    is_short = ranks["history_length"] <= 5
    values = ndcg_at(ranks["item_all"])[is_short]
    low, high = bootstrap_intervals({"m": values}, ranks["user"][is_short])["m"]
    row = next(row for row in Page(report_of(finished.run.run_dir)).rows if row and row[0] == "1-5")
    recall = f"Recall@10 {(ranks['item_all'] <= 10)[is_short].mean():.4f}"
    assert row[1:3] == [str(is_short.sum()), f"{values.mean():.4f} {low:.4f}–{high:.4f} {recall}"]  # noqa: RUF001


def test_a_group_without_a_hit_has_no_interval(finished, monkeypatch):
    """The bootstrap gives 0 to 0, however few targets there are."""
    monkeypatch.setattr(report, "bootstrap_intervals", lambda values, users: dict.fromkeys(values, (0.0, 0.0)))
    rows = Page(report.render(finished.run)).rows
    row = next(row for row in rows if row and row[0] == "1-5")
    assert "–" not in "".join(row) and "Recall@10" in row[2]  # noqa: RUF001


def test_the_rest_of_the_run_is_there(finished):
    text = report_of(finished.run.run_dir)
    for words in ("training loss", "learning rate", "accuracy", "confidence", "items per code", "All settings"):
        assert words in text
    assert re.search(r"<th>digit 3</th><td>\d</td>", text)  # codes of the last digit
    assert "<th>seed</th><td>2020</td>" in text and "<th>train_batch_size</th><td>64</td>" in text


def test_examples_are_what_the_run_recommends(finished):
    examples = json.loads((finished.run.run_dir / "examples.json").read_text())["examples"]
    with np.load(finished.run.run_dir / "ranks.npz") as saved:
        user, target, rank = saved["user"], saved["target"], saved["item_all"]
    assert len(examples) == 8 and [one["row"] for one in examples] == sorted(one["row"] for one in examples)
    for one in examples:
        assert one["user"] == user[one["row"]]
        place = [recommended["is_target"] for recommended in one["recommended"]]
        assert (place.index(True) + 1 if any(place) else None) == (rank[one["row"]] if rank[one["row"]] <= 10 else None)
        assert one["target"].endswith(f" {target[one['row']][1:]}")
        for recommended in one["recommended"]:
            steps = recommended["denoising"]["steps"]
            last = steps[-1]["chosen"]["items_left"]
            assert recommended["title"] in steps[-1]["titles_left"] or last > 5


def test_hostile_titles_stay_text(finished):
    text = report_of(finished.run.run_dir)
    parsed = Page(text)
    assert [attributes for tag, attributes in parsed.tags if tag == "script"] == [
        {"type": "application/json", "id": "examples"},
        {},
    ]
    assert not [
        tag for tag, attributes in parsed.tags if tag == "img" or any(name.startswith("on") for name in attributes)
    ]
    embedded = re.search(r'id="examples">(.*?)</script>', text, re.S)[1]
    users = json.loads(embedded)
    titles = {one["title"] for user in users for one in user["recommended"]}
    titles |= {title for user in users for title in user["history"]}
    assert {title.rsplit(" ", 1)[0] for title in titles} == set(HOSTILE)
    assert "{{ 7 * 7 }}" in "".join(parsed.texts)


@pytest.mark.parametrize("what", ["run", "comparison"])
def test_nothing_is_fetched(finished, what):
    folder = finished.run.run_dir if what == "run" else finished.comparison.path
    text = report_of(folder)
    assert len(text.encode()) < 6_000_000
    for tag, attributes in Page(text).tags:
        for name in ("src", "href", "srcset", "action", "data"):
            value = attributes.get(name) or ""
            assert not re.match(r"\s*(\w+:)?//", value), (tag, value)
        assert tag not in ("iframe", "object", "embed", "base") and attributes.get("http-equiv") is None
    style = re.search(r"<style>(.*?)</style>", text, re.S)[1]
    assert "url(" not in style and "@import" not in style
    assert not re.search(r"fetch\(|XMLHttpRequest|import\(", text)


def test_again_from_the_directory_alone(finished, tmp_path, capsys):
    copy = shutil.copytree(finished.run.run_dir, tmp_path / finished.run.run_dir.name)
    before = (copy / "report.html").read_bytes()
    (copy / "report.html").unlink()
    (copy / "best.pt").unlink()
    assert report_main([str(copy)]) == 0
    assert capsys.readouterr().out == f"report: {copy / 'report.html'}\n"
    assert (copy / "report.html").read_bytes() == before  # the same bytes
    (copy / "examples.json").unlink()
    (copy / "ranks.npz").unlink()
    assert report_main([str(copy)]) == 0  # with less in it
    assert "Some test users" not in report_of(copy) and f"{finished.run.test['all']['ndcg@10']:.4f}" in report_of(copy)


def test_the_command_line_names_and_opens_it(options, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    words = [f"--{key}={value}" for key, value in options.items() if key != "config_files"]
    assert (
        main(["--model=Pop", "--dataset=tiny", f"--config_files={options['config_files'][0]}", *words, "--open"]) == 0
    )
    last = capsys.readouterr().out.splitlines()[-1]
    path = last.removeprefix("report: ")
    assert opened == [f"file://{path}"] and "Pop on tiny" in page.Path(path).read_text()
    assert main(["--recommend=nowhere", "--open", "--history=1"]) == 2
    assert "--open" in error_line(capsys.readouterr().err)


def test_a_report_that_fails_loses_no_run(options, monkeypatch, caplog):
    def fail(*arguments, **values):
        raise ValueError("no such thing\nand more")

    monkeypatch.setattr(page, "render", fail)
    result = run("Pop", "tiny", **options)
    assert RunResult.load(result.run_dir) == result and not (result.run_dir / "report.html").exists()
    assert "report.html is not written: ValueError: no such thing" in caplog.messages
    assert str(result).endswith(f"results: {result.run_dir}")


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--open"], "first argument"),
        (["nowhere"], "no such folder"),
        (["nowhere.json"], "does not exist"),
        (["comparison-nowhere"], "does not exist"),
        (["nowhere", "--wide"], "--wide"),
    ],
)
def test_what_cannot_be_reported(arguments, words, capsys):
    assert report_main(arguments) == 2
    assert words in error_line(capsys.readouterr().err)


def test_help_needs_no_torch():
    code = (
        "import sys; from recbole_diffgrm.cli.report import main; main(['--help']); assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True).returncode == 0
    assert "--open" in run_python("-m", "recbole_diffgrm.report", "--help").stdout

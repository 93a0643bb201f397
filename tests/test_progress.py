"""Progress without a terminal: lines, not bars."""

import ast
import io
import logging
import sys

import pytest

from recbole_diffgrm import progress
from recbole_diffgrm.progress import progress_bar
from recbole_diffgrm.words import count, duration
from tests.conftest import ROOT


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch):
    """Ten seconds go by with every look at it."""
    now = [0.0]

    def tick() -> float:
        now[0] += 10
        return now[0]

    monkeypatch.setattr("tqdm.std.time", tick)
    return now


def test_a_line_every_so_often(clock, caplog, capsys):
    caplog.set_level(logging.INFO)
    with progress_bar(total=513, desc="train epoch 3 of 20", unit="batch", leave=False) as bar:
        for batch in range(513):
            bar.set_postfix_str(f"loss {4 - batch / 513:.4f}", refresh=False)
            bar.update()
    assert 100 < len(caplog.messages) < 260  # an update takes at least 10 s of this clock, a line comes after 30
    first, *_, last = caplog.messages
    assert first.startswith("train epoch 3 of 20: 1% of 513 batches, loss 3.99") and first.endswith(" h left")
    assert ", loss 3.0" in last and last.endswith(" s left")
    assert capsys.readouterr().err == ""  # no control characters either


def test_short_work_and_hidden_work_have_no_line(caplog, capsys, clock):
    caplog.set_level(logging.INFO)
    for _ in progress_bar(range(2), desc="graph", unit="block"):
        pass
    for _ in progress_bar(range(100), desc="graph", unit="block", show=False):
        pass
    assert not caplog.messages and capsys.readouterr().err == ""


def test_bytes_and_work_of_unknown_size(monkeypatch, caplog):
    monkeypatch.setattr(progress, "SECONDS", 1e-9)
    caplog.set_level(logging.INFO)
    with progress_bar(total=4_000_000, initial=1_000_000, desc="read", unit="B", unit_scale=True) as bar:
        bar.update(1_000_000)
    with progress_bar(total=None, desc="reviews", unit="B", unit_scale=True) as bar:
        bar.update(2_500_000)
    assert [message.split(", ")[0] for message in caplog.messages] == ["read: 50% of 4.0 MB", "reviews: 2.5 MB"]


def test_a_bar_on_a_terminal(monkeypatch, caplog):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    caplog.set_level(logging.INFO)
    with progress_bar(total=3, desc="test", unit="target") as bar:
        bar.update(3)
    assert "test: 100%|" in screen.getvalue() and not caplog.messages


def test_all_bars_are_these():
    for path in (ROOT / "recbole_diffgrm").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tqdm"):
                assert path.name == "progress.py", path


def test_numbers_in_words():
    assert [count(n, "user") for n in (0, 1, 2, 1000)] == ["0 users", "1 user", "2 users", "1,000 users"]
    assert count(2, "batch", "batches") == "2 batches" and count(1, "batch", "batches") == "1 batch"
    assert [duration(s) for s in (0, 40, 720, 12600)] == ["0 s", "40 s", "12 min", "3.5 h"]

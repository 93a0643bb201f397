"""The thread that uses the model."""

import threading
from concurrent.futures import Future

import pytest

from recbole_diffgrm import UserError
from recbole_diffgrm.serving import worker as worker_module
from recbole_diffgrm.serving.recommender import Query
from recbole_diffgrm.serving.worker import MAX_BATCH, Busy, Worker


class Echo:
    """Answers with the histories; notes what was asked at once."""

    def __init__(self):
        self.batches: list[list[str]] = []

    def check(self, queries):
        if any(query.history[0] == "bad" for query in queries):
            raise UserError("bad")

    def answer(self, queries):
        self.batches.append([query.history[0] for query in queries])
        if any(query.history[0] == "broken" for query in queries):
            raise RuntimeError("broken")
        return [[query.history[0]] for query in queries]


@pytest.fixture
def held():
    """A worker whose first job waits until `go` is set, so that others wait behind it."""
    echo, go, began = Echo(), threading.Event(), threading.Event()
    worker = Worker(echo)
    worker.call(lambda: (began.set(), go.wait(10)))
    assert began.wait(10)  # else the first jobs of a test could be before it
    yield worker, echo, go
    go.set()
    worker.close()


def ask(worker: Worker, *names: str) -> Future:
    return worker.recommend([Query([name]) for name in names])


def test_what_waits_is_computed_together(held):
    worker, echo, go = held
    futures = [ask(worker, "a", "b"), ask(worker, "c")]
    between = worker.call(lambda: echo.batches.append(["call"]))
    futures.append(ask(worker, "d"))
    go.set()
    assert [future.result(10) for future in futures] == [[["a"], ["b"]], [["c"]], [["d"]]]
    assert between.result(10) is None
    assert echo.batches == [["a", "b", "c"], ["call"], ["d"]]  # in their order


def test_a_batch_has_an_end(held):
    worker, echo, go = held
    futures = [ask(worker, *[f"{i}"] * 30) for i in range(5)]
    go.set()
    for future in futures:
        assert len(future.result(10)) == 30
    assert [len(batch) for batch in echo.batches] == [60, 60, 30] and MAX_BATCH == 64


def test_a_wrong_query_fails_alone(held):
    worker, echo, go = held
    good, bad, other = ask(worker, "a"), ask(worker, "bad"), ask(worker, "b")
    go.set()
    assert good.result(10) == [["a"]] and other.result(10) == [["b"]]
    with pytest.raises(UserError, match="bad"):
        bad.result(10)
    assert echo.batches == [["a", "b"]]


def test_a_failure_is_told_and_the_next_one_is_answered(held):
    worker, _, go = held
    broken, failing = ask(worker, "broken"), worker.call(lambda: 1 / 0)
    go.set()
    with pytest.raises(RuntimeError, match="broken"):
        broken.result(10)
    with pytest.raises(ZeroDivisionError):
        failing.result(10)
    assert ask(worker, "a").result(10) == [["a"]]


def test_cancelled_jobs_are_not_done(held):
    worker, echo, go = held
    gone, stays = ask(worker, "a"), ask(worker, "b")
    assert gone.cancel()
    go.set()
    assert stays.result(10) == [["b"]] and echo.batches == [["b"]]


def test_too_many_are_refused_and_the_waiting_ones_done_at_the_end(held, monkeypatch):
    worker, _, go = held
    monkeypatch.setattr(worker_module, "MAX_WAITING", 3)
    futures = [ask(worker, "a") for _ in range(3)]
    with pytest.raises(Busy):
        ask(worker, "b")
    threading.Timer(0.05, go.set).start()
    worker.close()
    assert all(future.done() for future in futures)
    with pytest.raises(Busy):
        ask(worker, "late")

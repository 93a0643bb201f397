"""One thread that uses the model: recommendations that are asked for at the same moment are computed together."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from recbole_diffgrm.serving.recommender import Query, Recommender

MAX_WAITING = 256  # jobs; more are refused at once instead of late
MAX_BATCH = 64  # histories that are computed together


class Busy(Exception):
    """So many jobs wait that another one would wait too long."""


@dataclass
class _Job:
    queries: Sequence[Query] = ()
    call: Callable[[], Any] | None = None  # instead of queries
    future: Future = field(default_factory=Future)


class Worker:
    def __init__(self, recommender: Recommender):
        self.recommender = recommender
        self._waiting: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self._thread.start()

    def recommend(self, queries: Sequence[Query]) -> Future:
        """Lists of recommendations."""
        return self._submit(_Job(queries))

    def call(self, function: Callable[[], Any]) -> Future:
        """Whatever else uses or changes the model, in its turn."""
        return self._submit(_Job(call=function))

    def close(self) -> None:
        """Once all that waits is done."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _submit(self, job: _Job) -> Future:
        with self._changed:
            if self._is_closed or len(self._waiting) >= MAX_WAITING:
                raise Busy
            self._waiting.append(job)
            self._changed.notify()
        return job.future

    def _work(self) -> None:
        while jobs := self._take():
            running = [job for job in jobs if job.future.set_running_or_notify_cancel()]
            if len(running) == 1 and running[0].call:
                _fulfil(running[0].future, running[0].call)
            elif running:
                self._recommend(running)

    def _take(self) -> list[_Job]:
        """A call, or all queries that wait before the next one, up to MAX_BATCH; none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            jobs, num_histories = list[_Job](), 0
            while self._waiting:
                job = self._waiting[0]
                num_histories += len(job.queries)
                if jobs and (job.call or num_histories > MAX_BATCH):
                    break
                jobs.append(self._waiting.popleft())
                if job.call:
                    break
            return jobs

    def _recommend(self, jobs: list[_Job]) -> None:
        jobs = [job for job in jobs if self._is_right(job)]
        try:
            lists = iter(self.recommender.answer([query for job in jobs for query in job.queries]))
            answers = [[next(lists) for _ in job.queries] for job in jobs]
        except Exception as error:
            for job in jobs:
                job.future.set_exception(error)
        else:
            for job, answer in zip(jobs, answers):
                job.future.set_result(answer)

    def _is_right(self, job: _Job) -> bool:
        """A wrong query fails alone, and the others are still computed together."""
        try:
            self.recommender.check(job.queries)
        except Exception as error:
            job.future.set_exception(error)
            return False
        return True


def _fulfil(future: Future, function: Callable[[], Any]) -> None:
    try:
        answer = function()
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(answer)

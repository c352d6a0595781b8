"""Watching, restarting and stopping a query. Without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from pyspark.errors import StreamingQueryException

import actorproc.spark.query_runner
from actorproc.errors import QueryFailed, StoreUnavailable
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.spark.query_runner import QueryRunner, RunLimits
from actorproc.spark.session import finished_within


def report(batch: int, second: int, *, ran: bool) -> Any:
    """A progress report of Spark about a query."""
    document = {
        "batchId": batch, "batchDuration": 1, "sources": [], "sink": {"description": "NoopTable"},
        "durationMs": {"addBatch": 1} if ran else {"latestOffset": 1},
    }  # fmt: skip
    return SimpleNamespace(
        batchId=batch, timestamp=f"2026-01-01T00:00:{second:02}.000Z", json=orjson.dumps(document).decode()
    )


class Query:
    """A query like Spark's. At each look it has reached the next of `reports`, counted from 1. Then it ends with
    `error`."""

    def __init__(self, reports: list[Any], looks: list[int], error: Exception | None = None) -> None:
        self._reports = reports
        self._looks = looks
        self._error = error
        self.asked = 0

    @property
    def isActive(self) -> bool:  # noqa: N802
        return len(self._looks) > 1

    @property
    def lastProgress(self) -> Any:  # noqa: N802
        self._come = self._looks.pop(0)
        return self._reports[self._come - 1] if self._come else None

    @property
    def recentProgress(self) -> list[Any]:  # noqa: N802
        self.asked += 1
        return self._reports[: self._come]

    def exception(self) -> Exception | None:
        return self._error


Told = list[tuple[int, bool]]
"""Number of each reported micro-batch, and whether it ran."""


def attended(start: Callable[[bool], Any], limits: RunLimits | None = None) -> Told:
    """Run it to its end, in virtual time."""
    told: Told = []

    async def work() -> None:
        await QueryRunner(
            start,
            spec="app:late",
            reads="x",
            limits=limits or RunLimits(),
            on_progress=lambda progress: told.append((progress.batch, progress.ran)),
            clock=VirtualClock(0),
        ).run()

    run(work())
    return told


def test_each_micro_batch_is_reported_once() -> None:
    reports = [
        report(5, 1, ran=True), report(6, 11, ran=False), report(6, 12, ran=True), report(7, 13, ran=True),
        report(8, 23, ran=False), report(8, 24, ran=True), report(9, 34, ran=False), report(9, 35, ran=True),
        report(10, 36, ran=True),
    ]  # fmt: skip
    query = Query(reports, [0, 1, 2, 2, 4, 5, 7, 8, 9])
    assert attended(lambda _: query) == [
        (5, True), (6, False), (6, True), (7, True), (8, False), (8, True), (9, False), (9, True), (10, True)
    ]  # fmt: skip
    assert query.asked == 3, "a hundred reports are asked for where one may have been missed"


AWAY = StoreUnavailable("http://minio: no answer")


def starting(*outcomes: Query | Exception) -> Callable[[bool], Any]:
    """One after the other."""
    coming = iter(outcomes)

    def start(_: bool) -> Query:
        outcome = next(coming)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return start


def failed() -> Query:
    return Query([], [0], StreamingQueryException("actorproc.errors.StoreUnavailable: http://minio: no answer"))


def test_an_unavailable_store_at_a_restart_is_one_more_failure() -> None:
    last = Query([report(5, 1, ran=True)], [1])
    assert attended(starting(failed(), AWAY, AWAY, last), RunLimits(failures=4)) == [(5, True)]
    with pytest.raises(QueryFailed, match=r"^stopped after 3 failures in a row, the last one: http://minio: no answer"):
        attended(starting(failed(), AWAY, AWAY, last), RunLimits(failures=3))


def test_an_unavailable_store_at_the_first_start_is_final() -> None:
    with pytest.raises(StoreUnavailable):
        attended(starting(AWAY, failed()))


def test_a_stop_does_not_wait_for_a_blocked_function(monkeypatch: pytest.MonkeyPatch) -> None:
    returns, stopped_by = threading.Event(), []

    def stop() -> None:
        stopped_by.append(threading.current_thread())
        returns.wait(60)

    def start(_: bool) -> Any:
        running.stop()
        return SimpleNamespace(isActive=True, lastProgress=None, status={"isTriggerActive": True}, stop=stop)

    running = QueryRunner(
        start,
        spec="app:late",
        reads="x",
        limits=RunLimits(stop_within=30),
        on_progress=lambda _: None,
        clock=VirtualClock(0),
    )
    monkeypatch.setattr(actorproc.spark.query_runner, "_STOP_TIMEOUT", 0.01)
    said: list[str] = []
    monkeypatch.setattr(
        actorproc.spark.query_runner, "logger", SimpleNamespace(warning=lambda event, **_: said.append(event))
    )
    run(running.run())
    (thread,) = stopped_by
    assert thread.is_alive()
    assert thread.daemon, "or this process could not end"
    returns.set()
    assert said == ["spark.batch_cut_off", "spark.cut_off"]


def test_finished_within_returns_in_time_or_raises() -> None:
    def fail() -> None:
        raise OSError("gone")

    assert finished_within(60, list)
    with pytest.raises(OSError, match="gone"):
        finished_within(60, fail)

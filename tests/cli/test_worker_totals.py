"""The summary of all workers of one `serve`, also of those that are killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from typing import Any

import anyio
import pytest

from actorproc.cli.exit_codes import REACHED_END, WRONG_USE
from actorproc.cli.serve import _supervise
from actorproc.cli.worker_totals import REPORT_PIPE, Report, Totals, report_pipe, send
from actorproc.counts import Counts
from actorproc.runtime.backoff import Backoff
from tests.cli.test_workers import Ending


@pytest.fixture
def totals() -> Iterator[Totals]:
    with Totals(["a", "b"]) as made:
        yield made


def test_reports_are_added_up(totals: Totals, monkeypatch: pytest.MonkeyPatch) -> None:
    for host, records in (("a", 1_500), ("b", 500)):
        monkeypatch.setenv(REPORT_PIPE, str(totals.pipe))
        pipe = report_pipe()
        assert pipe == totals.pipe
        send(Report(host, Counts(records, records - 2, 1, 1)), pipe)
        totals.ended(host, "exit code 0")
    assert report_pipe() is None, "the processes of a worker do not report"
    assert totals.text("Delays", 1.25) == (
        "Delays on 2 workers: 2,000 records handled, 1,996 rows and 2 dead letters committed, 2 skipped, in 1.2 s"
    )


def test_a_worker_without_a_report_is_named(totals: Totals) -> None:
    send(Report("a", Counts(3, 3)), totals.pipe)
    for host, cause in (("a", "exit code 0"), ("b", "SIGKILL"), ("b", "SIGKILL"), ("a", "exit code 1"), ("b", None)):
        totals.ended(host, cause)
    totals.ended("the query", "SIGKILL")
    told = totals.text("Delays", 1)
    assert told is not None
    assert "on 2 workers: 3 records handled" in told
    assert "not counted, as they ended without a report: a (exit code 1); b (SIGKILL), 2 times" in told
    assert "query" not in told


def test_the_only_worker_has_a_summary_of_its_own() -> None:
    with Totals(["a"]) as totals:
        send(Report("a", Counts(3, 3)), totals.pipe)
        totals.ended("a", "exit code 0")
        assert totals.text("Delays", 1) is None
        totals.ended("a", "SIGKILL")
        assert "on 1 worker: 3 records" in str(totals.text("Delays", 1))


def test_a_parent_that_does_not_read_holds_up_no_worker(totals: Totals) -> None:
    for _ in range(5_000):
        send(Report("a", Counts(1)), totals.pipe)
    totals.ended("a", None)
    assert 500 < totals.sum.records < 5_000
    os.close(os.dup(totals.pipe))
    send(Report("a"), -1)


class Process(Ending):
    """Ends at once with a code. It reports before if the code is that of a reached end."""

    def __init__(self, host: str, code: int, pipe: str) -> None:
        super().__init__(code)
        if code == REACHED_END:
            send(Report(host, Counts(10, 9, 1)), int(pipe))


@pytest.mark.parametrize(
    ("codes", "says"),
    [
        ([REACHED_END], "20 records handled, 18 rows and 2 dead letters committed"),
        ([-signal.SIGKILL, REACHED_END], "20 records handled.*\nnot counted.*: host-0 (SIGKILL); host-1 (SIGKILL)"),
        ([WRONG_USE], ""),
    ],
)
def test_a_run_of_workers_ends_with_a_total(
    codes: list[int], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left = {host: list(codes) for host in ("host-0", "host-1")}

    async def open_process(command: list[str], *, env: Mapping[str, str], pass_fds: list[int], **_: Any) -> Process:
        assert int(env[REPORT_PIPE]) in pass_fds
        return Process(command[0], left[command[0]].pop(0), env[REPORT_PIPE])

    monkeypatch.setattr(anyio, "open_process", open_process)
    monkeypatch.setattr("actorproc.cli.workers._BACKOFF", Backoff(0.001, 0.001))
    _supervise({host: [host] for host in left}, "query", None, until_end=True, processor="Delays")
    told = capsys.readouterr().out
    assert all(part in told for part in says.split(".*"))
    assert says or not told
    assert told.startswith("Delays on 2 workers: ") or not says
    assert ("not counted" in told) == (len(codes) > 1)

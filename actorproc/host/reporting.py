"""Makes the report of a host's partitions for its heartbeat, from their statistics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple
from datetime import datetime

from msgspec.structs import replace

from actorproc.group.reports import AbandonedReport, HostReport, PartitionReport, RetryReport, SinkReport, TimesReport
from actorproc.partition.statistics import PartitionStatistics, Retry, Trouble
from actorproc.partition.time_spent import Activity
from actorproc.runtime.watchdog import Blockage
from actorproc.sinks.delivery import SinkStatistics
from actorproc.sinks.tables.committer import TableStatistics

_REPORTED: tuple[Activity, ...] = ("read", "handle", "commit")  # the fields of TimesReport


def progress_of(partitions: Iterable[PartitionStatistics]) -> dict[str, PartitionReport]:
    """The reports by partition."""
    return {found.partition: report_of(found) for found in partitions}


def abandoned_of(troubles: Iterable[tuple[str, Trouble]]) -> dict[str, AbandonedReport]:
    """The reports of partitions that the host abandoned."""
    return {
        name: AbandonedReport(found.error, int(found.since), found.fault, found.reached) for name, found in troubles
    }


def blocked_report(report: HostReport, found: Blockage, since: float) -> HostReport:
    """The report of a host whose event loop does not answer: the partitions in their handler are stuck, unless the
    process gets no CPU.

    Args:
        since: seconds since 1970.
    """
    if found.starved:
        why = "its process gets too little CPU: other processes, or the CPU limit of its container, take it"
        return replace(report, blocked=why, blocked_since=since, starved=True)
    held = [name for name, found in report.progress.items() if found.activity == "handle"]
    handled = f"; in the handler: partition {', '.join(held)}" if held else ""
    why = (
        f"a handler blocks the event loop of its host, at {found.where}{handled}. Await, or write a plain `def process`"
    )
    stuck = {
        name: replace(report.progress[name], trouble="stuck", trouble_since=int(since), fault="user") for name in held
    }
    return replace(
        report, progress={**report.progress, **stuck}, failing={**report.failing, **dict.fromkeys(held, why)},
        blocked=why, blocked_since=since,
    )  # fmt: skip


def report_of(found: PartitionStatistics) -> PartitionReport:
    """The report of one partition. Times are whole seconds, to keep the heartbeat small."""
    trouble, totals = found.trouble, found.totals
    return PartitionReport(
        epoch=found.epoch, state=found.state, since=int(found.since), origin=found.origin,
        sequence=found.committed.sequence, lag=found.lag, lag_seconds=_tenths(found.lag_seconds),
        last_commit=_whole(found.last_commit),
        activity=found.activity, activity_since=int(found.activity_since),
        times=TimesReport(*(round(found.seconds.get(activity, 0.0), 1) for activity in _REPORTED)),
        retry=None if found.retry is None else _retry(found.retry),
        trouble=None if trouble is None else trouble.kind,
        trouble_since=None if trouble is None else int(trouble.since),
        fault=None if trouble is None else trouble.fault,
        totals=None if totals is None else astuple(totals), sinks=tuple(map(_sink, found.sinks)),
        lag_seconds_end_to_end=_if_other(_tenths(found.lag_seconds_end_to_end), _tenths(found.lag_seconds)),
    )  # fmt: skip


def sink_errors(partitions: Iterable[PartitionStatistics], tables: Iterable[TableStatistics]) -> dict[str, str]:
    """For each sink that fails, its error, or that of one of the partitions."""
    rows = {sink.name: sink.error for found in partitions for sink in found.sinks if sink.error is not None}
    return rows | {table.name: table.error for table in tables if table.error is not None}


def reports_of_tables(tables: Iterable[TableStatistics]) -> tuple[SinkReport, ...]:
    """The tables whose transactions this host makes."""
    return tuple(
        SinkReport(
            t.name,
            t.state,
            t.lag,
            t.lag_rows,
            _tenths(t.lag_seconds),
            error_since=None if t.error_since is None else int(t.error_since),
        )
        for t in tables
        if t.state != "waiting"
    )


def _sink(found: SinkStatistics) -> SinkReport:
    since = None if found.error_since is None else int(found.error_since)
    return SinkReport(
        found.name, found.state, found.lag, found.lag_rows, _tenths(found.lag_seconds), found.rate, since
    )  # fmt: skip


def _retry(retry: Retry) -> RetryReport:
    next_at = None if retry.next_at is None else int(retry.next_at)
    return RetryReport(retry.first, retry.records, retry.attempt, next_at)


def _whole(time: datetime | None) -> int | None:
    return None if time is None else int(time.timestamp())


def _if_other(seconds: float | None, than: float | None) -> float | None:
    return None if seconds == than else seconds


def _tenths(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)

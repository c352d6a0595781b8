"""The report of a host in its heartbeat, on itself and its partitions: for `status`, dashboards, runs until the end."""

from __future__ import annotations

from dataclasses import fields

import msgspec

from actorproc.counts import Counts


class RetryReport(msgspec.Struct, frozen=True, array_like=True):
    """The records of the batch in hand that failed and are tried again. See `partition.statistics.Retry`."""

    first: int
    records: int
    attempt: int
    next_at: int | None = None


class TimesReport(msgspec.Struct, frozen=True, array_like=True):
    """Seconds that the partition's actor has spent on each activity; it has waited for the rest of its time.

    See `partition.time_spent.Activity`.
    """

    read: float = 0.0
    handle: float = 0.0
    commit: float = 0.0


class SinkReport(msgspec.Struct, frozen=True, array_like=True):
    """The delivery of a partition to one sink. See `sinks.delivery.SinkStatistics`. The text of an error is in
    `HostReport.sink_errors`."""

    name: str
    state: str
    commits: int | None = None
    """That the sink does not have."""
    rows: int | None = None
    seconds: float | None = None
    rate: float = 0.0
    error_since: int | None = None


class PartitionReport(msgspec.Struct, frozen=True, array_like=True):
    """One partition as its owner sees it. Stored as an array, since there may be thousands: only append fields.

    Times are seconds since 1970 by the host's clock.
    """

    epoch: int
    state: str = "opening"
    since: int = 0
    """When the host got the lease."""
    origin: str = ""
    """Why the host got the lease."""
    sequence: int = -1
    """Of the last committed record."""
    lag: int | None = None
    lag_seconds: float | None = None
    former_records: int = 0
    """Unused, as are the three after it: older releases have the counts of the actor here."""
    former_rows: int = 0
    former_dead_letters: int = 0
    former_skipped: int = 0
    last_commit: int | None = None
    activity: str = "wait"
    activity_since: int = 0
    times: TimesReport = TimesReport()
    retry: RetryReport | None = None
    trouble: str | None = None
    """Kind of its trouble: see `partition.statistics.TroubleKind`. The text is in `HostReport.failing`."""
    trouble_since: int | None = None
    fault: str | None = None
    """Whose its trouble is: "user" or "infrastructure". See `errors.Fault`."""
    totals: tuple[int, ...] | None = None
    """The fields of `Counts`, in their order; older releases leave the last ones out. Since the first record of the
    partition, up to what is committed. None before the partition is opened, and in heartbeats of older versions."""
    sinks: tuple[SinkReport, ...] = ()
    lag_seconds_end_to_end: float | None = None
    """See `PartitionStatistics`. None also if it is `lag_seconds`."""

    @property
    def seconds_end_to_end(self) -> float | None:
        """See `PartitionStatistics.lag_seconds_end_to_end`."""
        return self.lag_seconds if self.lag_seconds_end_to_end is None else self.lag_seconds_end_to_end

    @property
    def counts(self) -> Counts | None:
        """`totals` by their names."""
        return None if self.totals is None else Counts(*self.totals[: len(fields(Counts))])


class AbandonedReport(msgspec.Struct, frozen=True, array_like=True):
    """A partition that the host abandoned because a call does not end, and the call still lasts."""

    error: str
    since: int
    """Seconds since 1970, by the host's clock."""
    fault: str
    reached: int = -1
    """Sequence up to which it had processed records."""


class HostReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of one host."""

    partitions: int = 0
    """How many run there."""
    failing: dict[str, str] = {}
    """Partition -> error, for the first few."""
    failed_for_good: tuple[str, ...] = ()
    """Partitions that have failed repeatedly, with nothing committed in between."""
    error: str | None = None
    """Why it cannot look at the group or the source."""
    error_since: float | None = None
    """Seconds since 1970, by the host's clock. None also in heartbeats of older versions."""
    progress: dict[str, PartitionReport] = {}
    """By partition. Empty in heartbeats of older versions."""
    abandoned: dict[str, AbandonedReport] = msgspec.field(default_factory=dict, name="given_up")
    """By partition. Empty in heartbeats of older versions."""
    blocked: str | None = None
    """Why its event loop does not answer. Only its watchdog writes this; the next heartbeat shows that it goes on."""
    blocked_since: float | None = None
    """Seconds since 1970, by the host's clock."""
    starved: bool = False
    """It does not answer because its process gets no CPU."""
    sink_errors: dict[str, str] = {}
    """Sink -> why it does not take the rows of one of the partitions."""
    tables: tuple[SinkReport, ...] = ()
    """Sinks that are tables, as far as this host makes their transactions."""
    max_process_time: float | None = None
    """Its setting: a handler without progress for that long is stuck."""

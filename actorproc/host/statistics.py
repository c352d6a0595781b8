"""`Statistics`: a snapshot of one processor on one host, as `Processor.statistics()` returns it."""

from __future__ import annotations

from dataclasses import dataclass, field

from actorproc.counts import Counts
from actorproc.partition.statistics import PartitionStatistics, Trouble
from actorproc.partition.time_spent import Activity, Durations
from actorproc.sinks.tables.committer import TableStatistics


@dataclass(frozen=True, slots=True)
class Statistics:
    """A snapshot of one processor on one host. After it has stopped: as it was at the end."""

    processor: str
    host: str
    running: bool = False
    incarnation: str | None = None
    """Changes with each start, and each time that the host was removed from the group. None before the first start."""
    fenced: bool = False
    """No heartbeat was written in time, so nothing runs until one is."""
    members: tuple[str, ...] = ()
    """Hosts of the group, as this one saw it last."""
    error: str | None = None
    """Why this host cannot start yet, or why the latest look at the group or at the source's partitions, or the latest
    heartbeat failed, or why the store does not answer; running partitions go on then. Or why this host has ended."""
    error_since: float | None = None
    """Since when, in seconds since 1970; None: no error, or this host has not started yet."""
    counts: Counts = field(default_factory=Counts)
    """Since this host started, including partitions that have moved away. A record counts each time that it is
    processed, its results when they are committed."""
    partitions: tuple[PartitionStatistics, ...] = ()
    """Partitions that run on this host, by name."""
    abandoned: dict[str, Trouble] = field(default_factory=dict)
    """Partitions that this host abandoned because a call of their handler does not end, while the call lasts."""
    store_requests: dict[str, int] = field(default_factory=dict)
    """Requests to the container's store, by verb."""
    store_failures: dict[str, int] = field(default_factory=dict)
    """Of these the ones without an answer, most of which were sent again, by cause: `throttled` (the store gets too
    many requests), `timeout` or `unavailable`."""
    source_requests: int = 0
    """Requests to the source, as far as it counts them; see `records.ReadCost`."""
    source_bytes: int = 0
    source_charges: dict[str, float] = field(default_factory=dict)
    """What the source charges, by name, such as `request_units`."""
    source_throttled: int = 0
    """Requests that the source's service refused because there were too many."""
    read_ahead_bytes: int = 0
    """Bytes that were read and not processed yet."""
    uncommitted_bytes: int = 0
    """Bytes of rows and dead letters that wait for a commit."""
    seconds: dict[Activity, float] = field(default_factory=dict)
    """Where the time of all partition actors went since this host started."""
    sink_rows: dict[str, int] = field(default_factory=dict)
    """Rows that this host has delivered since it started, by sink."""
    tables: tuple[TableStatistics, ...] = ()
    """Sinks that are tables, as this host knows them."""
    durations: dict[Activity, Durations] = field(default_factory=dict)
    """Histograms: how long batches and commits took."""

    @property
    def lag(self) -> int | None:
        """Sum of the partitions' lags that are known; None if none is."""
        known = [partition.lag for partition in self.partitions if partition.lag is not None]
        return sum(known) if known else None

"""The read model of a fleet: the hosts and the partitions of a processor at one moment. `FleetWatch` reads it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from actorproc.admin.fleet_sinks import FleetSink, SinkView, fleet_sinks
from actorproc.admin.verdict import CLOSED, TROUBLED, WELL, VerdictKind
from actorproc.counts import Counts
from actorproc.group.reports import RetryReport, TimesReport
from actorproc.group.wishes import Wishes
from actorproc.sources.protocol import End
from actorproc.storage.names import natural

_NUMBERS = re.compile(r"\d+")


class PartitionView(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A partition, as its owner has reported it or as its commits and the source say. Times: seconds since 1970, by the
    hosts' clocks."""

    partition: str
    owner: str | None = None
    epoch: int = 0
    next_owner: str | None = None
    verdict: VerdictKind = "ok"
    reason: str = ""
    since: int | None = None
    """Of the verdict."""
    fault: str | None = None
    """Of the verdict: "user" (handler, options, schema) or "infrastructure" (source, store, network)."""

    # What its owner reports

    origin: str = ""
    owned_since: int | None = None
    state: str | None = None
    """Of its actor; `unread`: no host runs it, and its commits are not read yet."""
    activity: str | None = None
    activity_since: int | None = None
    times: TimesReport | None = None
    retry: RetryReport | None = None
    sinks: tuple[SinkView, ...] = ()
    """Its deliveries."""

    # How far it is: by its commits and the source if they were read, else by its owner

    sequence: int | None = None
    """Of the last committed record."""
    lag: int | None = None
    """Sequences between the last committed record, or else the first record, and the end. None: not known."""
    lag_seconds: float | None = None
    """Age of the oldest record that is not committed, by its timestamp; 0 at the end. None: not known."""
    lag_seconds_end_to_end: float | None = None
    """The same since that record began its way through a chain of processors. `ChainLag` adds what waits before."""
    counts: Counts | None = None
    """Since the partition's first record. None: neither a host nor the commits have told them yet."""
    last_commit: float | None = None

    # Only by its commits and the source

    position: str | None = None
    """What is committed. None: nothing ever was."""
    output_files: int = 0
    """Number of the next output file: how many there were."""
    end: End | None = None
    """None: no source was asked, or it could not say."""
    lag_bytes: int | None = None
    """Stored size of the records that are not committed. None: the source cannot tell."""
    begins_at: str | None = None
    """Position at which the first owner would begin, where that was asked for and nothing is committed."""

    @property
    def is_open(self) -> bool:
        """Whether a host may run it."""
        return self.verdict not in CLOSED

    @property
    def error(self) -> str | None:
        """Why it cannot be read, or fails on its owner."""
        return self.reason if self.verdict in TROUBLED else None


class HostView(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A host. Without a heartbeat only `host`, `incarnation` and `leases` are known."""

    host: str
    incarnation: str
    alive: bool
    """Its heartbeat is younger than the expiration."""
    in_group: bool
    """False: it has a heartbeat, and nobody has written it in yet."""
    leaving: bool = False
    leases: int = 0
    age: float | None = None
    """Of its heartbeat: seconds, by the store's clock."""
    started: float | None = None
    pid: int | None = None
    address: str | None = None
    release: str | None = None
    """Of the actorproc that it runs."""
    error: str | None = None
    """Why it cannot look at the group or the source."""
    error_since: float | None = None
    """Seconds since 1970, by the host's clock."""
    tables: tuple[SinkView, ...] = ()
    """Sinks that are tables, whose transactions it makes."""


class ErrorGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One error, and the partitions that have it. Texts that differ in numbers only count as one."""

    reason: str
    verdict: str
    since: int | None
    partitions: list[str]


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """A processor at one moment."""

    processor: str
    time: float
    """By the store's clock."""
    hosts: list[HostView]
    partitions: dict[str, PartitionView]
    wishes: Wishes = Wishes()
    """What operators asked for: pauses, drains, placements."""
    is_chained: bool = False
    """It reads the output of another processor, and the partitions tell the lag from the first one on."""

    @property
    def open(self) -> list[PartitionView]:
        """The partitions that a host may run."""
        return [view for view in self.partitions.values() if view.is_open]

    @property
    def counts(self) -> Counts:
        """Of all partitions."""
        return sum((view.counts for view in self.partitions.values() if view.counts), Counts())

    @property
    def lag(self) -> int | None:
        """The sum of the lags that are known. None: none is."""
        return _sum(view.lag for view in self.partitions.values())

    @property
    def lag_exact(self) -> bool:
        """Whether the lag of each open partition is known."""
        return all(view.lag is not None for view in self.open)

    @property
    def lag_bytes(self) -> int | None:
        """The sum of the sizes that are known. None: none is."""
        return _sum(view.lag_bytes for view in self.partitions.values())

    @property
    def lag_seconds(self) -> float | None:
        """Of the partition that is furthest behind."""
        known = (view.lag_seconds for view in self.partitions.values() if view.lag_seconds is not None)
        return max(known, default=None)

    @property
    def lag_seconds_end_to_end(self) -> float | None:
        """Of the partition that is furthest behind the beginning of the chain. None: not known, or there is none."""
        known = [view.lag_seconds_end_to_end for view in self.partitions.values()] if self.is_chained else []
        return max((seconds for seconds in known if seconds is not None), default=None)

    @property
    def sinks(self) -> list[FleetSink]:
        """The sinks of the partitions whose owners report, and tables."""
        tables = [table for host in self.hosts if host.alive for table in host.tables]
        return fleet_sinks([*(sink for view in self.partitions.values() for sink in view.sinks), *tables])

    def errors(self) -> list[ErrorGroup]:
        """The reasons of all partitions that are not well, the most frequent first."""
        return grouped(view for view in self.partitions.values() if view.verdict not in {*WELL, "moving", "paused"})


def grouped(views: Iterable[PartitionView]) -> list[ErrorGroup]:
    """The views by verdict and reason, the most frequent first."""
    groups: dict[tuple[str, str], list[PartitionView]] = {}
    for view in views:
        groups.setdefault((view.verdict, _NUMBERS.sub("#", view.reason)), []).append(view)
    found = [_error_group(views) for views in groups.values()]
    return sorted(found, key=lambda group: -len(group.partitions))


def _error_group(views: list[PartitionView]) -> ErrorGroup:
    since = [view.since for view in views if view.since is not None]
    return ErrorGroup(
        reason=views[0].reason, verdict=views[0].verdict, since=min(since, default=None),
        partitions=sorted((view.partition for view in views), key=natural),
    )  # fmt: skip


def _sum(numbers: Iterable[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def changed(before: Mapping[str, PartitionView], after: Mapping[str, PartitionView]) -> Iterable[PartitionView]:
    """The partitions whose views differ."""
    return [view for name, view in after.items() if before.get(name) != view]

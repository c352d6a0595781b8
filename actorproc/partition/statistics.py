"""Counters of one partition since its actor started on this host, and its present activity."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from actorproc.counts import Counts
from actorproc.errors import Fault
from actorproc.partition.time_spent import Activity
from actorproc.records import Cursor
from actorproc.sinks.delivery import SinkStatistics

PartitionState = Literal["opening", "running", "draining", "drained", "closing", "released", "waiting"]
"""- `drained`: everything processed is committed, and the source's `read` has not ended yet.
- `released`: drained, and about to be handed over.
- `waiting`: failed, and started again after a pause.
"""

TroubleKind = Literal["stuck", "failing", "starved", "retrying"]
"""- `stuck`: a call of the handler or of the source does not end.
- `failing`: the actor failed, and is started again.
- `starved`: the handler has waited long for a thread.
- `retrying`: the batch in hand failed, and is tried again.
"""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a partition is not progressing. `since`: seconds since 1970, by the host's clock."""

    kind: TroubleKind
    error: str
    since: float
    fault: Fault = "user"
    reached: int = -1
    """Sequence up to which records were processed before."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The records of the batch in hand that failed and are tried again."""

    first: int
    """Sequence of the first of them."""
    records: int
    attempt: int
    """Number of the attempt that failed, from 1 on."""
    next_at: float | None
    """When the next attempt begins, in seconds since 1970; None: it has begun."""


@dataclass(slots=True)
class PartitionStatistics:
    """Progress of a partition actor since it started here."""

    partition: str
    epoch: int
    state: PartitionState = "opening"
    cursor: Cursor = field(default_factory=lambda: Cursor(""))
    """Processed up to here; committed up to `committed`."""
    committed: Cursor = field(default_factory=lambda: Cursor(""))
    caught_up: Cursor | None = None
    """`cursor` when the source first had nothing more; None: not yet."""
    counts: Counts = field(default_factory=Counts)
    """Since the actor started. A record counts when it is processed, its results when they are committed."""
    commits: int = 0
    totals: Counts | None = None
    """Counts since the first record of the partition, up to `committed`; None before it is opened here."""
    lag: int | None = None
    """Records of the source after `committed`, by their sequences.

    None until reading has come to the end of the source, or the host has asked the source for its end. It asks each
    `lag_interval` while there is a backlog.
    """
    lag_bytes: int | None = None
    """Size of these records, by the mean size of those that were read; None: not known."""
    last_commit: datetime | None = None
    lag_seconds: float | None = None
    """Age of the oldest record that is read and not committed, by its timestamp; 0 without lag; None: not known."""
    lag_seconds_end_to_end: float | None = None
    """The same since that record began its way through a chain of processors. What still waits before this processor
    is not in it."""
    since: float = 0.0
    """When this host got the lease, in seconds since 1970."""
    origin: str = ""
    """Why this host got the lease, such as "b handed it over: b is leaving"."""
    activity: Activity = "wait"
    activity_since: float = 0.0
    """When it began with `activity`, in seconds since 1970."""
    seconds: dict[Activity, float] = field(default_factory=dict)
    """Where the actor's time went."""
    sinks: tuple[SinkStatistics, ...] = ()
    """The deliveries of the partition's commits."""
    retry: Retry | None = None
    trouble: Trouble | None = None
    error: str | None = None

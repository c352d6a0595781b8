"""The styles of handlers that the simulation plays, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from actorproc.handler.base import PartitionHandler
from actorproc.simulation.output_checks import RecordCheck
from tests.simulation.handler_styles import (
    AwaitedRecords,
    Columns,
    Committing,
    Concurrent,
    Loop,
    Plain,
    Records,
)
from tests.simulation.reference_records import check_reference, check_reference_once
from tests.simulation.stateful_styles import (
    CountingAwaitedRecords,
    CountingCommitting,
    CountingLoop,
    CountingPlain,
    CountingRecords,
    WakingCommitting,
    WakingLoop,
    WakingPlain,
    WakingRecords,
)


@dataclass(frozen=True, slots=True)
class Style:
    """A handler with its settings and the check of its results."""

    handler: type[PartitionHandler]
    settings: Mapping[str, Any] = field(default_factory=dict)
    check: RecordCheck = check_reference
    traits: Mapping[str, Any] = field(default_factory=dict)
    """Class variables of the handler that differ."""
    counts: bool = False
    """Whether it is a `Counting` handler."""
    wakes: bool = False
    """Whether it is a `Waking` handler."""


_MANUAL = {"auto_commit": False}
_ONCE = {"delivery": "at-most-once"}
_COMMITS = {"commits": True, "at_end": 0.1}
_ALWAYS = {"at_end": 1.0}  # without auto_commit only the handler commits
_NEVER_IDLE = {"stream_idle_time": 86_400}  # so that the wall clock has no part in stream time

STYLES = {
    "loop": Style(Loop),
    "thread": Style(Plain, traits={"exclusive": True}),
    "map": Style(Concurrent),
    "map, commits": Style(Concurrent, traits=_COMMITS),
    "map, commits, no auto commit": Style(Concurrent, _MANUAL, traits=_COMMITS | _ALWAYS),
    "commits": Style(Committing),
    "commits, no auto commit": Style(Committing, _MANUAL, traits=_ALWAYS),
    "columns": Style(Columns),
    "records": Style(Records),
    "records awaited": Style(AwaitedRecords),
    "at most once": Style(Committing, _ONCE, check_reference_once),
    "at most once, map": Style(Concurrent, _ONCE, check_reference_once, _COMMITS),
    "state": Style(CountingLoop, counts=True),
    "state, thread": Style(CountingPlain, counts=True),
    "state, commits": Style(CountingCommitting, counts=True),
    "state, commits, no auto commit": Style(CountingCommitting, _MANUAL, traits=_ALWAYS, counts=True),
    "state, at most once": Style(CountingLoop, _ONCE, check_reference_once, {"count_failures": False}, counts=True),
    "timers": Style(WakingLoop, _NEVER_IDLE, counts=True, wakes=True),
    "timers, idle": Style(WakingPlain, counts=True, wakes=True),
    "timers, commits": Style(WakingCommitting, _NEVER_IDLE, counts=True, wakes=True),
    "state, records": Style(CountingRecords, counts=True),
    "state, records awaited": Style(CountingAwaitedRecords, counts=True),
    "timers, records": Style(WakingRecords, _NEVER_IDLE, counts=True, wakes=True),
    "state, records, at most once": Style(CountingRecords, _ONCE, check_reference_once, counts=True),
}
"""By name."""

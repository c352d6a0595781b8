"""Public test kit for handlers and sources.

- `run_handler` runs a handler over a few records (docs/handlers.md).
- `check_source` checks that a source keeps the rules of `Source` (docs/sources.md).
- `Cluster` runs a handler on a simulated cluster with faults (docs/simulation.md). `python -m actorproc.testing` runs
  actorproc's own simulation.
"""

from __future__ import annotations

from actorproc.testing.handler_runner import HandlerResult, run_handler
from actorproc.testing.memory_source import MemorySource
from actorproc.testing.simulation.clock import VirtualClock
from actorproc.testing.simulation.cluster import Cluster, InvariantViolation
from actorproc.testing.simulation.faults import LATENCY_ONLY, Faults, FaultyBackend
from actorproc.testing.simulation.loop import (
    Deadlock,
    Host,
    SimulationError,
    VirtualLoop,
    call_outside,
    current_host,
    current_loop,
    run,
)
from actorproc.testing.simulation.process import Process
from actorproc.testing.simulation.reference_records import RecordCheck, RecordResult
from actorproc.testing.simulation.streams import KnownStream, UnsteadySource
from actorproc.testing.source_check import CheckedSource, check_source
from actorproc.testing.source_reader import InvalidSource

__all__ = [
    "LATENCY_ONLY",
    "CheckedSource",
    "Cluster",
    "Deadlock",
    "Faults",
    "FaultyBackend",
    "HandlerResult",
    "Host",
    "InvalidSource",
    "InvariantViolation",
    "KnownStream",
    "MemorySource",
    "Process",
    "RecordCheck",
    "RecordResult",
    "SimulationError",
    "UnsteadySource",
    "VirtualClock",
    "VirtualLoop",
    "call_outside",
    "check_source",
    "current_host",
    "current_loop",
    "run",
    "run_handler",
]

"""A cluster in virtual time: event loop, hosts, faulty store, and the invariants that are checked on every write.

`Cluster` runs a handler of yours on it (docs/simulation.md). `tests.simulation` of the repository runs actorproc's own.
"""

from __future__ import annotations

from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.cluster import Cluster, InvariantViolation
from actorproc.simulation.faults import LATENCY_ONLY, Faults, FaultyBackend
from actorproc.simulation.loop import (
    Deadlock,
    Host,
    SimulationError,
    VirtualLoop,
    call_outside,
    current_host,
    current_loop,
    run,
)
from actorproc.simulation.output_checks import RecordCheck, RecordResult
from actorproc.simulation.process import Process
from actorproc.simulation.streams import KnownStream, UnsteadySource

__all__ = [
    "LATENCY_ONLY",
    "Cluster",
    "Deadlock",
    "Faults",
    "FaultyBackend",
    "Host",
    "InvariantViolation",
    "KnownStream",
    "Process",
    "RecordCheck",
    "RecordResult",
    "SimulationError",
    "UnsteadySource",
    "VirtualClock",
    "VirtualLoop",
    "call_outside",
    "current_host",
    "current_loop",
    "run",
]

"""Public test kit for handlers, sources and sinks.

- `run_handler` runs a handler over a few records (docs/handlers.md).
- `check_source` checks that a source keeps the rules of `Source` (docs/sources.md).
- `check_sink` checks that a sink keeps its guarantee (docs/sinks.md).

`actorproc.simulation` runs a handler on a simulated cluster with faults (docs/simulation.md).
"""

from __future__ import annotations

from actorproc.testing.handler_runner import HandlerResult, run_handler
from actorproc.testing.memory_source import MemorySource
from actorproc.testing.sink_check import CheckedSink, InvalidSink, check_sink
from actorproc.testing.source_check import CheckedSource, check_source
from actorproc.testing.source_reader import InvalidSource

__all__ = [
    "CheckedSink",
    "CheckedSource",
    "HandlerResult",
    "InvalidSink",
    "InvalidSource",
    "MemorySource",
    "check_sink",
    "check_source",
    "run_handler",
]

"""Public test kit for handlers and sources.

- `run_handler` runs a handler over a few records (docs/handlers.md).
- `check_source` checks that a source keeps the rules of `Source` (docs/sources.md).

`actorproc.simulation` runs a handler on a simulated cluster with faults (docs/simulation.md).
"""

from __future__ import annotations

from actorproc.testing.handler_runner import HandlerResult, run_handler
from actorproc.testing.memory_source import MemorySource
from actorproc.testing.source_check import CheckedSource, check_source
from actorproc.testing.source_reader import InvalidSource

__all__ = [
    "CheckedSource",
    "HandlerResult",
    "InvalidSource",
    "MemorySource",
    "check_source",
    "run_handler",
]

"""actorproc: a partition processor. Leases in a bucket, one actor per partition, output exactly once."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actorproc.config.settings import Settings
    from actorproc.errors import ActorprocError
    from actorproc.handler.base import CloseReason, Decision, PartitionHandler
    from actorproc.handler.context import PartitionContext, PartitionInfo
    from actorproc.log.producer import Producer
    from actorproc.processor import Processor, Statistics
    from actorproc.records import Batch, Cursor, Record
    from actorproc.sources.protocol import Chunk, End, Source

__version__ = "0.1.0"

__all__ = [
    "ActorprocError",
    "Batch",
    "Chunk",
    "CloseReason",
    "Cursor",
    "Decision",
    "End",
    "PartitionContext",
    "PartitionHandler",
    "PartitionInfo",
    "Processor",
    "Producer",
    "Record",
    "Settings",
    "Source",
    "Statistics",
]

# Imported when first asked for, so that the command line starts in a fraction of the time that pyarrow takes.
_HOME = {
    "ActorprocError": "errors",
    "Batch": "records",
    "Chunk": "sources.protocol",
    "CloseReason": "handler.base",
    "Cursor": "records",
    "Decision": "handler.base",
    "End": "sources.protocol",
    "PartitionContext": "handler.context",
    "PartitionHandler": "handler.base",
    "Processor": "processor",
    "Producer": "log.producer",
    "Record": "records",
    "Settings": "config.settings",
    "PartitionInfo": "handler.context",
    "Source": "sources.protocol",
    "Statistics": "processor",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

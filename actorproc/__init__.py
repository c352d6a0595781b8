"""actorproc: a partition processor. Leases in a bucket, one actor per partition, output exactly once."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from actorproc.runtime.process_one import obey_sigterm

if TYPE_CHECKING:
    from actorproc.config.settings import Settings
    from actorproc.errors import ActorprocError
    from actorproc.handler.base import CloseReason, Decision, PartitionHandler
    from actorproc.handler.context import PartitionContext
    from actorproc.handler.hooks import Event, Hooks
    from actorproc.handler.info import PartitionInfo
    from actorproc.handler.wake_context import WakeContext
    from actorproc.handlers import (
        Capture,
        DecodedRows,
        Dedupe,
        JsonRows,
        Latest,
        RecordHandler,
        SequenceHandler,
        Sessions,
    )
    from actorproc.processor import Processor, Statistics
    from actorproc.produce.producer import Producer
    from actorproc.records import Batch, Cursor, ReadCost, Record
    from actorproc.sources.protocol import Chunk, End, Partition, Source

__version__ = "0.1.0"

__all__ = [
    "ActorprocError",
    "Batch",
    "Capture",
    "Chunk",
    "CloseReason",
    "Cursor",
    "Decision",
    "DecodedRows",
    "Dedupe",
    "End",
    "Event",
    "Hooks",
    "JsonRows",
    "Latest",
    "Partition",
    "PartitionContext",
    "PartitionHandler",
    "PartitionInfo",
    "Processor",
    "Producer",
    "ReadCost",
    "Record",
    "RecordHandler",
    "SequenceHandler",
    "Sessions",
    "Settings",
    "Source",
    "Statistics",
    "WakeContext",
]

obey_sigterm()  # first of all, as the imports below take seconds

# Imported on first use: the command line must start without waiting for pyarrow.
_MODULES = {
    "ActorprocError": "errors",
    "Batch": "records",
    "Capture": "handlers",
    "Chunk": "sources.protocol",
    "CloseReason": "handler.base",
    "Cursor": "records",
    "Decision": "handler.base",
    "DecodedRows": "handlers",
    "Dedupe": "handlers",
    "End": "sources.protocol",
    "Event": "handler.hooks",
    "Hooks": "handler.hooks",
    "JsonRows": "handlers",
    "Latest": "handlers",
    "Partition": "sources.protocol",
    "PartitionContext": "handler.context",
    "PartitionHandler": "handler.base",
    "PartitionInfo": "handler.info",
    "Processor": "processor",
    "Producer": "produce.producer",
    "ReadCost": "records",
    "Record": "records",
    "RecordHandler": "handlers",
    "SequenceHandler": "handlers",
    "Sessions": "handlers",
    "Settings": "config.settings",
    "Source": "sources.protocol",
    "Statistics": "processor",
    "WakeContext": "handler.wake_context",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

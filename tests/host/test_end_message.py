"""The message of a run that did not reach its end."""

from __future__ import annotations

import structlog

from actorproc.host.end_message import end_not_reached
from actorproc.host.ends import Ends
from actorproc.sources.protocol import End
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource


def test_a_partition_whose_end_is_lost_counts_once() -> None:
    ends = Ends(MemorySource(2), Store(MemoryStore()).limits, structlog.get_logger())
    ends.found = {"0": End("5", 4), "1": End("7", 6)}
    ends.unknown = {"1": "the source lists it no more"}
    message = end_not_reached(ends, {}, None)
    assert message.startswith("1 of 2 partitions has not reached the end it had at the start\npartition 1: the source")

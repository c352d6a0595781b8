"""Where partitions without a checkpoint begin."""

from __future__ import annotations

from actorproc import Processor
from actorproc.sources.protocol import Start
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource
from tests.processor.doubling import QUICK, Double, fed, rows


async def run(source: MemorySource, store: Store, start: Start) -> list[int]:
    await Processor(Double, source=source, container=store, start=start, **QUICK).run(until_end=True)
    return await rows(store)


async def test_a_later_partition_begins_with_its_first_record() -> None:
    source, store = fed(2, each=3), Store(MemoryStore())
    assert await run(source, store, "latest") == []
    source.add_partition("2")
    source.append("2", [b"7", b"8"])
    assert await run(source, store, "latest") == [14, 16]


async def test_a_source_without_partitions_at_the_first_start_loses_nothing_at_latest() -> None:
    source, store = MemorySource(0), Store(MemoryStore())
    assert await run(source, store, "latest") == []
    source.add_partition("0")
    source.append("0", [b"7"])
    assert await run(source, store, "latest") == [14]


async def test_a_processor_that_began_elsewhere_takes_latest_as_the_end() -> None:
    source, store = fed(1, each=3), Store(MemoryStore())
    assert await run(source, store, "earliest") == [0, 2, 4]
    source.add_partition("1")
    source.append("1", [b"7"])
    assert await run(source, store, "latest") == [0, 2, 4], "nobody noted which partitions there were"

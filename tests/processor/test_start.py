"""Where partitions without a checkpoint begin."""

from __future__ import annotations

import anyio
import pytest

from actorproc import Processor
from actorproc.errors import SourceError, UsageError
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


class OnlyNew(MemorySource):
    """Keeps nothing, so it has no beginning."""

    starts = 0

    async def start(self, partition: str, at: Start) -> str:
        self.starts += 1
        if at == "earliest":
            raise UsageError("start = 'earliest': this stream keeps nothing; give 'latest'")
        return await super().start(partition, at)


@pytest.mark.parametrize("until_end", [True, False])
async def test_a_start_that_the_source_does_not_support_is_refused_once(until_end: bool) -> None:
    source = OnlyNew(3)
    with anyio.fail_after(10), pytest.raises(UsageError, match="give 'latest'"):
        await Processor(Double, source=source, container=Store(MemoryStore()), **QUICK).run(until_end=until_end)
    assert source.starts == 1


async def test_a_later_start_goes_on_at_the_checkpoints_with_any_source() -> None:
    source, store = OnlyNew(1), Store(MemoryStore())
    assert await run(source, store, "latest") == []
    source.append("0", [b"7"])
    assert await run(source, store, "earliest") == [14]


class Incomplete(MemorySource):
    missing = True
    asked = 0

    async def check_exists(self) -> None:
        self.asked += 1
        if self.missing:
            raise SourceError("there is no topic 'mistyped'")


async def test_a_part_of_the_stream_may_be_missing_at_later_starts_only() -> None:
    source, store = Incomplete(1), Store(MemoryStore())
    source.append("0", [b"7"])
    with anyio.fail_after(10), pytest.raises(SourceError, match="no topic 'mistyped'"):
        await run(source, store, "earliest")
    source.missing = False
    assert await run(source, store, "earliest") == [14]
    asked, source.missing = source.asked, True
    source.append("0", [b"8"])
    assert await run(source, store, "earliest") == [14, 16]
    assert source.asked == asked

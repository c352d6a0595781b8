"""The running maximum of timestamps in segment footers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from actorproc.log.positions import read_footer_at
from actorproc.produce.producer import Producer
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore


def hour(number: int) -> datetime:
    return datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=number)


def microseconds(number: int) -> int:
    return int(hour(number).timestamp()) * 10**6


async def append(producer: Producer, *hours: int) -> None:
    """One file."""
    await producer.send_many([b"x"] * len(hours), timestamps=[hour(number) for number in hours])
    await producer.flush()


async def times(store: Store, base: int) -> tuple[int, int]:
    notes, _ = await read_footer_at(store, "0", base)
    return notes.newest, notes.running


async def test_a_segment_has_its_newest_and_the_running_timestamp() -> None:
    store = Store(MemoryStore())
    async with Producer(store, partitions=1) as producer:
        await append(producer, 9, 5)
        await append(producer, 2)
        await append(producer, 4)
    assert await times(store, 0) == (microseconds(9), microseconds(9))
    assert await times(store, 2) == (microseconds(2), microseconds(9))
    assert await times(store, 3) == (microseconds(4), microseconds(9))


async def test_the_running_timestamp_includes_segments_of_other_producers() -> None:
    store = Store(MemoryStore())
    async with Producer(store, partitions=1) as first, Producer(store, partitions=1) as second:
        await append(first, 5)
        await append(second, 3)  # begins at the end of the first's
        await append(first, 9)
        await append(second, 2)  # finds the first's in its way
        await append(second, 4)
    assert (await times(store, 1))[1] == microseconds(5)
    assert (await times(store, 4))[1] == microseconds(9)

"""Trimming a log: processors hold it; producers, processors and replays continue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from actorproc import Processor, Producer
from actorproc.admin.replay import Replay
from actorproc.admin.replay_target import LogTarget
from actorproc.admin.retained import RetainedLog
from actorproc.admin.trim import Trim, plan_trim, trim
from actorproc.errors import CorruptObject, SourceError, StoreRefused, StoreUnavailable
from actorproc.log.positions import end_base, first_base
from actorproc.produce.growth import grow_log
from actorproc.produce.transactions import Transactions
from actorproc.retention.boundary import raise_boundary, read_boundary
from actorproc.retention.readers import Reader, decide, read_registry, register
from actorproc.sources import LogSource
from actorproc.storage.names import READERS, log_boundary, log_dir, log_file
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from tests.admin.conftest import HOUR, LAYOUT, SETTINGS, Later, Place
from tests.fragile import Killed
from tests.log.reading import values
from tests.produce.test_append_faults import Tampered
from tests.spark.committing import QUICK, Numbers

LOG = log_dir("0")
START = datetime(2026, 1, 1, tzinfo=UTC)


async def produce(store: Store, *counts: int, first: int = 0, partitions: int | None = 1) -> None:
    """Append one file for each count, with that many records. The values count on from `first`, a second apart."""
    for count in counts:
        async with Producer(store, partitions=partitions, clock=store.clock) as producer:
            numbers = range(first, first + count)
            times = [START + timedelta(seconds=n) for n in numbers]
            await producer.send_many([str(n).encode() for n in numbers], keys=[b"k"] * count, timestamps=times)
        first += count


def processor(place: Place, container: Store, name: str = "numbers") -> Processor:
    source = LogSource(place.store, settings=SETTINGS)
    return Processor(Numbers, name=name, source=source, container=container, host="a", **QUICK)


async def trim_now(kept: RetainedLog) -> Trim:
    return await trim(kept, SETTINGS)


@pytest.fixture
def container(tmp_path: object) -> Store:
    return Store(MemoryStore(f"{tmp_path}/state"))


async def test_processors_register_with_their_log_once(place: Place, container: Store) -> None:
    await produce(place.store, 10)
    assert (await read_registry(place.store, READERS)).readers == {}
    await processor(place, container).run(until_end=True)
    registry = await read_registry(place.store, READERS)
    [reader] = registry.readers.values()
    assert (reader.name, reader.kind, reader.processor, reader.url) == (
        "numbers",
        "processor",
        "numbers",
        container.url,
    )
    await processor(place, container).run(until_end=True)
    assert await read_registry(place.store, READERS) == registry, "not written again"
    other = Store(MemoryStore(f"{container.url}/other"))
    await processor(place, other).run(until_end=True)
    assert set((await read_registry(place.store, READERS)).readers) == {"numbers", "numbers-2"}


async def test_segments_that_a_processor_has_not_processed_stay(
    place: Place, kept_log: RetainedLog, container: Store
) -> None:
    await produce(place.store, 10, 10)
    await processor(place, container).run(until_end=True)
    await produce(place.store, 10, 10, first=20)
    place.wait(2 * HOUR)
    trimmed = await trim_now(kept_log)
    assert trimmed.partitions[0].hold == (20, "reader numbers reads 20 next")
    assert await place.numbers(LOG) == [20, 30]
    await processor(place, container).run(until_end=True)
    await trim_now(kept_log)
    assert await place.numbers(LOG) == [30], "the newest file stays"


async def test_a_processor_that_has_registered_and_not_begun_holds_everything(
    place: Place, kept_log: RetainedLog, container: Store
) -> None:
    await produce(place.store, 10, 10, 10)
    place.wait(2 * HOUR)
    source = LogSource(place.store, settings=SETTINGS)
    await source.open()
    await source.register("numbers", container.url)
    trimmed = await trim_now(kept_log)
    assert (trimmed.files, trimmed.partitions[0].hold.why) == (0, "reader numbers has not begun")


async def test_producers_and_processors_go_on_after_a_trim(
    place: Place, kept_log: RetainedLog, container: Store, tmp_path: object
) -> None:
    await produce(place.store, 10, 10, 10)
    await processor(place, container).run(until_end=True)
    place.wait(2 * HOUR)
    await trim_now(kept_log)
    await produce(place.store, 10, first=30, partitions=None)
    assert await place.numbers(LOG) == [20, 30]
    assert await end_base(place.store, "0") == 40
    await processor(place, container).run(until_end=True)
    letters = [entry.key for entry in (await container.list(LAYOUT.dead_letters)).entries]
    assert len(letters) == 4, "7, 17, 27 and 37"
    late = Store(MemoryStore(f"{tmp_path}/late"))
    await processor(place, late).run(until_end=True)
    assert len((await late.list(LAYOUT.output)).entries) == 2, "it begins with what there is"


async def test_a_reader_in_the_midst_of_a_file_keeps_it(place: Place, kept_log: RetainedLog) -> None:
    await produce(place.store, 10, 10, 10)
    place.wait(2 * HOUR)
    await register(place.store, READERS, Reader.at("export", {"0": 15}))
    await trim_now(kept_log)
    assert await place.numbers(LOG) == [10, 20]


async def test_a_read_only_log_is_processed_with_a_warning(container: Store, caplog: pytest.LogCaptureFixture) -> None:
    class ReadOnly(MemoryStore):
        async def put_if_absent(self, key: str, body: bytes) -> str:
            if key == READERS:
                raise StoreRefused("you may only read here")
            return await super().put_if_absent(key, body)

    place = Place(Store(ReadOnly()), Later(), None)
    await produce(place.store, 10)
    await processor(place, container).run(until_end=True)
    assert len((await container.list(LAYOUT.output)).entries) == 1
    [warning] = [record.getMessage() for record in caplog.records if "reader_not_registered" in record.getMessage()]
    assert "you may only read here" in warning


async def test_a_late_file_below_the_boundary_is_nobodys(place: Place, kept_log: RetainedLog) -> None:
    await produce(place.store, 10, 10, 10)
    late = await place.store.get(log_file("0", 0))
    assert late is not None
    place.wait(2 * HOUR)
    await trim_now(kept_log)
    await place.store.create(log_file("0", 0), late.body)
    source = LogSource(place.store, settings=SETTINGS)
    await source.open()
    assert await first_base(place.store, "0") == 0, "it lies there"
    assert await source.start("0", "earliest") == "20"
    assert await source.start("0", START + timedelta(seconds=3)) == "20"
    assert await source.start("0", START + timedelta(seconds=25)) == "20+5"
    assert len(await values(source, "0", "20")) == 10
    with pytest.raises(SourceError, match=r"lost its records from position 0 on \(the next begin at 20\)"):
        await values(source, "0", "0")
    assert (await trim_now(kept_log)).files == 1
    assert await place.numbers(LOG) == [20]


async def test_a_late_processor_begins_at_the_decided_boundary(place: Place, container: Store) -> None:
    await produce(place.store, 10, 10, 10)
    assert await decide(place.store, READERS, await read_registry(place.store, READERS), {"0": 20})
    source = LogSource(place.store, settings=SETTINGS)
    await source.open()
    await source.register("numbers", container.url)
    with pytest.raises(SourceError, match=r"lost its records from position 10 on \(the next begin at 20\)"):
        await values(source, "0", "10")
    assert len(await values(source, "0", "20")) == 10


async def test_a_start_time_is_found_although_a_file_was_trimmed(place: Place, kept_log: RetainedLog) -> None:
    """A producer that lost a race says in its file that it knows of nothing before: the files in between speak for
    themselves, if they are there."""
    async with Producer(place.store, partitions=1, clock=place.clock) as slow:
        await slow.send(b"0", key=b"k", timestamp=START)
        await slow.flush()
        await produce(place.store, 10, first=1)
        await produce(place.store, 10, first=11)
        await slow.send(b"21", key=b"k", timestamp=START + timedelta(seconds=21))
        await slow.flush()
    assert await place.numbers(LOG) == [0, 1, 11, 21]
    place.wait(2 * HOUR)
    await trim_now(kept_log)
    assert await place.numbers(LOG) == [21]
    await produce(place.store, 5, first=22)
    source = LogSource(place.store, settings=SETTINGS)
    await source.open()
    assert await source.start("0", START) == "21"
    assert await source.start("0", START + timedelta(seconds=23)) == "22+1"


async def test_an_append_that_slept_through_a_trim_fails() -> None:
    clock = Later()
    truth = MemoryStore(clock=clock)
    asleep = False

    async def create(key: str, body: bytes, really: Callable[[], Awaitable[str]]) -> str:
        nonlocal asleep
        if asleep:
            asleep = False
            await produce(Store(truth, clock=clock), 10, 10, 10, first=10)
            clock.ahead += 2 * HOUR
            await trim_now(RetainedLog(Store(truth, clock=clock)))
        return await really()

    store = Store(Tampered(truth, create), clock=clock)
    async with Producer(store, partitions=1, clock=clock) as producer:
        await producer.send_many([b"x"] * 10, keys=[b"k"] * 10)
        await producer.flush()
        asleep = True
        with pytest.raises(
            StoreUnavailable, match="trimmed beyond their place meanwhile; they may be in the log or not"
        ):
            await (await producer.send(b"late", key=b"k"))
        with pytest.raises(StoreUnavailable):
            await producer.flush()  # raises the errors of deliveries that the caller does not await
        sent = await (await producer.send(b"next", key=b"k"))
    assert (await read_boundary(store, log_boundary("0"))).lowest == 30
    assert sent.sequence == 40, "not where the void file ends"
    await trim_now(RetainedLog(store))
    assert [number for number in await Place(store, clock, None).numbers(LOG) if number < 30] == []


async def kill_a_replay(store: Store, container: Store, letters: str, *, appended: bool) -> None:
    """Run a replay that is killed just before or just after it appends."""
    create = Transactions._create

    async def killed(self: Transactions, partition: str, base: int, segment: Any) -> bool:
        if appended:
            await create(self, partition, base, segment)
        raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises((Killed, BaseExceptionGroup)):
        patch.setattr(Transactions, "_create", killed)
        async with Replay.opened(container, "numbers", LogTarget.opened(store)) as replay:
            await replay.file(letters)


UNFINISHED = "batch 0 is unfinished, and partition 0 has lost its files from 10 on"


async def test_an_unfinished_replay_below_the_boundary_is_refused(place: Place, container: Store) -> None:
    await produce(place.store, 10)
    await processor(place, container).run(until_end=True)
    [letters] = [entry.key for entry in (await container.list(LAYOUT.dead_letters)).entries]
    await kill_a_replay(place.store, container, letters, appended=False)
    await produce(place.store, 10, 10, first=10)
    await place.store.delete(log_file("0", 10))
    await raise_boundary(place.store, log_boundary("0"), 20)
    async with Replay.opened(container, "numbers", LogTarget.opened(place.store)) as replay:
        with pytest.raises(CorruptObject, match=UNFINISHED):
            await replay.file(letters)


async def test_a_replay_of_a_trimmed_segment_is_refused(place: Place, kept_log: RetainedLog, container: Store) -> None:
    await produce(place.store, 10)
    slept = await place.store.get(log_file("0", 0))
    assert slept is not None
    await processor(place, container).run(until_end=True)
    [letters] = [entry.key for entry in (await container.list(LAYOUT.dead_letters)).entries]
    await kill_a_replay(place.store, container, letters, appended=True)
    assert await place.numbers(LOG) == [0, 10]
    await produce(place.store, 10, first=11)
    await processor(place, container).run(until_end=True)
    place.wait(2 * HOUR)
    await trim_now(kept_log)
    await place.store.create(log_file("0", 10), slept.body)
    assert await place.numbers(LOG) == [10, 11]
    async with Replay.opened(container, "numbers", LogTarget.opened(place.store)) as replay:
        with pytest.raises(CorruptObject, match=UNFINISHED):
            await replay.file(letters)
    assert await end_base(place.store, "0") == 21


async def test_a_log_of_which_everything_is_young_is_left_alone(place: Place, kept_log: RetainedLog) -> None:
    await produce(place.store, 10, 10)
    [partition] = (await plan_trim(kept_log, SETTINGS)).partitions
    assert (partition.going.files, partition.hold.why) == (0, "younger than 1 h")


async def test_a_trim_keeps_the_end_of_a_partition_that_others_follow(
    place: Place, kept_log: RetainedLog, container: Store
) -> None:
    await produce(place.store, 10, 10)
    await grow_log(place.store, 2)
    await produce(place.store, 10, first=20)
    await processor(place, container).run(until_end=True)
    place.wait(2 * HOUR)
    await trim_now(kept_log)
    assert await place.numbers(LOG) == [20], "the seal"
    assert [trimmed.partition for trimmed in (await trim_now(kept_log)).partitions] == ["0", "1", "2"]
    await produce(place.store, 10, first=30)  # by the count that the log had at first
    await processor(place, container).run(until_end=True)
    other = Store(MemoryStore(f"{container.url}/other"))
    await processor(place, other).run(until_end=True)
    followed = "1" if await first_base(place.store, "1") is not None else "2"
    assert await end_base(place.store, followed) == 20

"""A replay appends each dead letter once, although it is killed, late or concurrent."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import orjson
import pytest

from actorproc.admin.replay import Replay
from actorproc.admin.replay_state import Letter, ReplayState, replayed_sequences
from actorproc.admin.replay_target import LogTarget
from actorproc.errors import CorruptObject, StoreUnavailable, UsageError
from actorproc.handler.info import PartitionInfo
from actorproc.log.metadata import open_log
from actorproc.output.letter import HISTORY, letter_files, read_letters, render_letter
from actorproc.produce.producer import Producer
from actorproc.records import Batch, Record
from actorproc.runtime.clock import Clock
from actorproc.sources.log import LogSource
from actorproc.storage.document import SharedDocument
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store, StoreLimits
from actorproc.stores.memory import MemoryStore
from tests.fragile import CLOCK, Fate, Fragile, Killed, Shuffled
from tests.log.reading import batches

LAYOUT = ProcessorLayout("flights")
SITE = PartitionInfo("flights", "host-a", "1", 3)
LETTERS = 3
TIME = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)


def everything(letter: Letter) -> bool:
    return True


def second(letter: Letter) -> bool:
    """Of each file."""
    return bool(letter["sequence"] % 10 == 1)


class World:
    """A container with dead letters, and the log they came from, in memory."""

    def __init__(self) -> None:
        self.container, self.log = MemoryStore(), MemoryStore()

    async def prepare(self) -> None:
        async with Producer(Store(self.log), partitions=2) as producer:
            await producer.send_many([b"original"] * 5, keys=[b"k"] * 5)
        await self.dead_letter_file("1", 0)

    async def dead_letter_file(self, partition: str, number: int) -> None:
        values = [f"{partition}/{number}/{index}".encode() for index in range(LETTERS)]
        batch = Batch.of(
            partition,
            values,
            range(number * 10, number * 10 + LETTERS),
            keys=[b"key", b"\xff\x00", None],
            headers=[[("trace", b"a"), ("raw", b"\xfe")], [], []],
            timestamps=[TIME + timedelta(seconds=index) for index in range(LETTERS)],
        )
        body = b"".join(render_letter(record, KeyError("delay"), 3, SITE, Clock()) for record in batch)
        await self.container.put(LAYOUT.dead_letter_file(partition, number), body)

    @asynccontextmanager
    async def replay(self, fate: Fate | None = None) -> AsyncIterator[Replay]:
        fate = fate or Fate()
        limits = StoreLimits(patience=0)
        container = Store(Fragile(self.container, fate), limits=limits)
        log = Store(Fragile(self.log, fate), limits=limits)
        async with Replay.opened(container, "flights", LogTarget.opened(log)) as replay:
            yield replay

    async def files(self) -> list[str]:
        return await letter_files(Store(self.container), LAYOUT, None)

    async def run(self, fate: Fate | None = None, wanted: Callable[[Letter], bool] = everything) -> int:
        """A replay of the wanted letters of all files; how many letters it says it appended."""
        appended = 0
        async with self.replay(fate) as replay:
            for key in await self.files():
                done = await replay.file(key, wanted)
                appended += 0 if done is None else done[0]
        return appended

    async def someone_appends(self) -> None:
        async with Producer(Store(self.log), partitioner=lambda *_: 1) as producer:
            await producer.send(b"another's")

    async def records(self, partition: str = "1") -> list[Record]:
        source = LogSource(Store(self.log))
        await source.open()
        return [record for batch in await batches(source, partition) for record in batch]

    async def replayed(self, partition: str = "1") -> list[bytes | None]:
        return [record.value for record in await self.records(partition) if b"/" in (record.value or b"")]


@pytest.fixture
async def world() -> World:
    world = World()
    await world.prepare()
    return world


EXPECTED = [b"1/0/0", b"1/0/1", b"1/0/2"]


async def test_replayed_records_equal_the_originals_plus_history_headers(world: World) -> None:
    await world.run()
    first, second, third = [record for record in await world.records() if record.value in EXPECTED]
    assert [first.key, second.key, third.key] == [b"key", b"\xff\x00", None]
    assert [first.timestamp, third.timestamp] == [TIME, TIME + timedelta(seconds=2)]
    own, history = dict(first.headers[:2]), dict(first.headers[2:])
    assert own == {"trace": b"a", "raw": b"\xfe"}
    assert history.pop(HISTORY + "time")
    assert history == {
        HISTORY + "processor": b"flights",
        HISTORY + "partition": b"1",
        HISTORY + "sequence": b"0",
        HISTORY + "error": b"KeyError",
        HISTORY + "attempts": b"3",
    }


async def test_a_second_replay_appends_nothing(world: World) -> None:
    assert await world.run() == LETTERS
    assert await world.run() == 0
    assert await world.replayed() == EXPECTED


async def test_letters_written_after_a_replay_are_replayed_by_the_next(world: World) -> None:
    await world.run()
    await world.dead_letter_file("1", 7)
    assert await world.run() == LETTERS
    assert Counter(await world.replayed()) == Counter([*EXPECTED, b"1/7/0", b"1/7/1", b"1/7/2"])


async def test_letters_can_be_replayed_in_parts(world: World) -> None:
    async def done() -> set[int]:
        store, key = Store(world.container), LAYOUT.dead_letter_file("1", 0)
        return await replayed_sequences(store, LAYOUT, key, await read_letters(store, key))

    assert await done() == set()
    assert await world.run(wanted=second) == 1
    assert await world.run(wanted=second) == 0
    assert await world.replayed() == [b"1/0/1"]
    assert await done() == {1}
    assert await world.run() == 2
    assert await world.run() == 0
    assert await world.replayed() == [b"1/0/1", b"1/0/0", b"1/0/2"]
    assert await done() == {0, 1, 2}


@pytest.mark.parametrize(
    "change", [{"sequences": []}, {"sequences": [77]}, {"done": "x"}, {"done": True, "sequences": [77]}]
)
async def test_a_corrupt_replay_document_repeats_no_letter(world: World, change: dict[str, Any]) -> None:
    with pytest.raises((Killed, BaseExceptionGroup)):
        await world.run(Fate(2, "before"), second)
    key = LAYOUT.replay("1", 0)
    stored = await world.container.get(key)
    assert stored is not None
    intent = orjson.loads(stored.body)
    intent["parts"][0] |= change
    await world.container.put(key, orjson.dumps(intent))
    if change.get("done") is True:  # of a letter that is not there: nothing says that any other was replayed
        assert await world.run() == LETTERS
        assert await world.replayed() == EXPECTED
    else:
        with pytest.raises(CorruptObject, match=key):
            await world.run()
        assert await world.replayed() == []


@pytest.mark.slow
@pytest.mark.parametrize("how", ["before", "after", "late"])
@pytest.mark.parametrize(("first", "then"), [(second, everything), (everything, second)])
async def test_a_partial_replay_killed_at_any_write_repeats_nothing(
    how: str, first: Callable[[Letter], bool], then: Callable[[Letter], bool]
) -> None:
    total = await writes_of_a_replay()
    for number in range(total):
        for landing in range(2 * total) if how == "late" else [0]:
            world = World()
            await world.prepare()
            fate = Fate(number, how)
            with pytest.raises((Killed, BaseExceptionGroup)):
                await world.run(fate, first)
            await world.someone_appends()
            again = Fate(lands=fate.pending, landing=landing)
            await world.run(again, then)
            await world.someone_appends()
            await again.land()
            await world.run()
            assert sorted(await world.replayed(), key=str) == EXPECTED, (number, how, landing)


async def test_letters_go_into_a_log_after_batches_that_another_stream_has_refused(world: World) -> None:
    document = SharedDocument(Store(world.container), LAYOUT.replay("1", 0), ReplayState)
    await document.swap(ReplayState(transaction="replay-1", void=3))
    assert await world.run(wanted=second) == 1
    assert await world.run() == 2
    assert await world.run() == 0
    assert sorted(await world.replayed(), key=str) == EXPECTED


def state_of_format_1(*, done: bool) -> bytes:
    """The replay of letters 0 and 2, as versions before transactions stored it."""
    part = {"log": "x", "sequences": [0, 2], "put_id": "p", "covers": 5, "running": 0, "base": 5, "done": done}
    return orjson.dumps({"version": 1, "parts": [part], "write_id": "w"})


async def test_a_finished_replay_of_format_1_is_not_repeated(world: World) -> None:
    await world.container.put(LAYOUT.replay("1", 0), state_of_format_1(done=True))
    assert await world.run() == 1
    assert await world.run() == 0
    assert await world.replayed() == [b"1/0/1"]


async def test_an_unfinished_replay_of_format_1_is_refused(world: World) -> None:
    """Only the version that began it knows whether its segment is in the log."""
    meta = await open_log(Store(world.log))
    body = state_of_format_1(done=False).replace(b'"log":"x"', b'"log":"%s"' % meta.identity.encode())
    await world.container.put(LAYOUT.replay("1", 0), body)
    with pytest.raises(UsageError, match="an older actorproc began a replay of these letters and did not finish it"):
        await world.run()
    assert await world.replayed() == []
    store, key = Store(world.container), LAYOUT.dead_letter_file("1", 0)
    assert await replayed_sequences(store, LAYOUT, key, await read_letters(store, key)) == set(), "listing still works"


async def writes_of_a_replay() -> int:
    world, fate = World(), Fate()
    await world.prepare()
    await world.run(fate)
    return fate.writes


@pytest.mark.parametrize("others_append", [False, True])
@pytest.mark.parametrize("how", ["before", "after", "late"])
async def test_a_replay_killed_at_any_write_and_run_again_repeats_nothing(how: str, others_append: bool) -> None:
    total = await writes_of_a_replay()
    assert total >= 4  # the head, the intent, the append, the intent again
    for number in range(total):
        for landing in range(total + 2) if how == "late" else [0]:
            world = World()
            await world.prepare()
            fate = Fate(number, how)
            with pytest.raises((Killed, BaseExceptionGroup)):
                await world.run(fate)
            assert fate.writes == number + 1
            if others_append:
                await world.someone_appends()
            again = Fate(lands=fate.pending, landing=landing)
            await world.run(again)
            if others_append:
                await world.someone_appends()
            await again.land()
            await world.run()
            assert await world.replayed() == EXPECTED, (number, how, landing)


@pytest.mark.parametrize("how", ["before", "after"])
async def test_a_corrected_value_survives_the_death_of_its_replay(how: str) -> None:
    """The next replay, which does not know it, finishes the part with it, unless the part was not recorded yet."""
    key = LAYOUT.dead_letter_file("1", 0)
    for number in range(await writes_of_a_replay()):
        world, fate = World(), Fate(number, how)
        await world.prepare()
        with pytest.raises((Killed, BaseExceptionGroup)):
            async with world.replay(fate) as replay:
                await replay.file(key, second, value=b"1/0/corrected")
        state = await SharedDocument(Store(world.container), LAYOUT.replay("1", 0), ReplayState).read()
        await world.run()
        corrected = b"1/0/corrected" if state is not None else b"1/0/1"
        assert sorted(await world.replayed(), key=str) == sorted([b"1/0/0", corrected, b"1/0/2"]), (number, how)
        assert state is None or state.format_version == 3, "an older actorproc would append the letter's own value"


async def test_killed_twice_at_any_two_writes_repeats_nothing() -> None:
    total = await writes_of_a_replay()
    for first in range(total):
        for second in range(total):
            world = World()
            await world.prepare()
            with pytest.raises((Killed, BaseExceptionGroup)):
                await world.run(Fate(first, "after"))
            await world.someone_appends()
            try:
                await world.run(Fate(second, "before"))
            except (Killed, BaseExceptionGroup):
                await world.someone_appends()
            await world.run()
            assert await world.replayed() == EXPECTED, (first, second)


@pytest.mark.parametrize("seed", range(60))
async def test_concurrent_replays_of_different_letters_repeat_nothing(world: World, seed: int) -> None:
    CLOCK.random.seed(seed)
    log, container = Store(Shuffled(world.log, Fate())), Store(Shuffled(world.container, Fate()))
    appended = 0

    async def replay(wanted: Callable[[Letter], bool]) -> None:
        nonlocal appended
        async with Replay.opened(container, "flights", LogTarget.opened(log)) as replaying:
            for key in await world.files():
                done = await replaying.file(key, wanted)
                assert done is not None
                appended += done[0]

    async with anyio.create_task_group() as tasks:
        for wanted in (second, everything, lambda letter: not second(letter)):
            tasks.start_soon(replay, wanted)
    assert appended == LETTERS
    assert sorted(await world.replayed(), key=str) == EXPECTED


@pytest.mark.parametrize("seed", range(30))
async def test_concurrent_replays_beside_a_producer_repeat_nothing(world: World, seed: int) -> None:
    CLOCK.random.seed(seed)
    log = Store(Shuffled(world.log, Fate()))
    container = Store(Shuffled(world.container, Fate()))
    counted: list[tuple[int, int] | None] = []

    async def replay() -> None:
        async with Replay.opened(container, "flights", LogTarget.opened(log)) as replaying:
            counted.extend([await replaying.file(key) for key in await world.files()])

    async def produce() -> None:
        async with Producer(log, partitioner=lambda *_: 1, linger=0) as producer:
            for _ in range(10):
                await (await producer.send(b"another's"))

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(replay)
        tasks.start_soon(produce)
    assert sorted(counts for counts in counted if counts is not None) == [(0, 3), (0, 3), (3, 0)]
    assert await world.replayed() == EXPECTED
    assert len([record for record in await world.records() if record.value == b"another's"]) == 10


async def test_a_replay_goes_on_after_an_outage(world: World) -> None:
    class Down(Fragile):
        async def put_if_absent(self, key: str, body: bytes) -> str:
            if key.startswith("partition="):
                raise StoreUnavailable("down")
            return await super().put_if_absent(key, body)

    with pytest.raises(StoreUnavailable):
        down = Store(Down(world.log, Fate()), limits=StoreLimits(patience=0))
        async with Replay.opened(Store(world.container), "flights", LogTarget.opened(down)) as replaying:
            for key in await world.files():
                await replaying.file(key)
    assert await world.replayed() == []
    assert await world.run() == LETTERS
    assert await world.replayed() == EXPECTED


async def test_purged_letters_are_not_replayed(world: World) -> None:
    await world.container.put(LAYOUT.dead_letter_file("1", 0), b"")
    assert await world.run() == 0
    assert await world.replayed() == []


async def test_a_log_without_the_partition_is_refused_by_name(world: World) -> None:
    await world.dead_letter_file("7", 0)
    with pytest.raises(UsageError, match=r"has no partition '7'"):
        await world.run()


async def test_an_unfinished_replay_does_not_go_on_in_another_log(world: World) -> None:
    with pytest.raises((Killed, BaseExceptionGroup)):
        await world.run(Fate(2, "before"))
    other = World()
    await other.prepare()
    begun = (await open_log(Store(world.log))).identity
    world.log = other.log
    with pytest.raises(UsageError, match=f"another stream is unfinished: into the one with the identity '{begun}'"):
        await world.run()
    assert await world.replayed() == []


async def test_a_corrupt_dead_letter_file_is_not_replayed(world: World) -> None:
    key = LAYOUT.dead_letter_file("1", 0)
    await world.container.put(key, b'{"partition": "1"}\n')
    with pytest.raises(CorruptObject, match=key):
        await world.run()
    assert await world.replayed() == []


async def test_a_place_without_a_log_is_refused(world: World) -> None:
    world.log = MemoryStore()
    with pytest.raises(UsageError, match="there is no log"):
        await world.run()


async def test_records_of_one_letter_are_appended_in_their_order() -> None:
    world = World()
    await world.prepare()
    batch = Batch.of("1", [b"first", b"\xfe", b"last"], [50, 53, 60], keys=[b"k"] * 3)
    body = render_letter(batch[-1], "it never ended", 1, SITE, Clock(), kind="IncompleteSequence", earlier=batch[:-1])
    key = LAYOUT.dead_letter_file("1", 7)
    await world.container.put(key, body)
    async with world.replay() as replay:
        assert await replay.file(key) == (1, 0)
        assert await replay.file(key) == (0, 1)
    assert [record.value for record in await world.records()][-3:] == [b"first", b"\xfe", b"last"]

"""A replay into a stream without transactions repeats at most the letters whose outcome it does not know."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import anyio
import pytest

from actorproc import Batch
from actorproc.admin.replay import Replay
from actorproc.admin.replay_claim import EXPIRES
from actorproc.admin.replay_target import AppendableTarget
from actorproc.errors import SourceError
from actorproc.handler.info import PartitionInfo
from actorproc.output.letter import letter_files, render_letter
from actorproc.runtime.clock import Clock
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import current_loop, run
from actorproc.sources.replay_target import Appendable
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore

LAYOUT = ProcessorLayout("flights")


class Stream(Appendable):
    """Takes two letters at once. `trouble` is called with each that it has appended."""

    appended_at_once = 2

    def __init__(self, trouble: Callable[[int], Awaitable[None]]) -> None:
        self.appended: list[int] = []
        self._trouble = trouble

    async def append(self, partition: str, records: Batch, transaction: str) -> Mapping[int, str]:
        for record in records:
            self.appended.append(record.json())
            await self._trouble(len(self.appended))
        return {}


async def letters(clock: Clock) -> MemoryStore:
    """A store with the dead letters of five records in one file."""
    backend = MemoryStore(clock=clock)
    batch = Batch.of("1", [b"%d" % n for n in range(5)], range(5))
    site = PartitionInfo("flights", "host-a", "1", 3)
    body = b"".join(render_letter(record, KeyError("delay"), 3, site, clock) for record in batch)
    await backend.put(LAYOUT.dead_letter_file("1", 0), body)
    return backend


async def replay(backend: MemoryStore, clock: Clock, stream: Stream) -> tuple[int, int] | None:
    store = Store(backend, clock=clock)
    [key] = await letter_files(store, LAYOUT, None)
    return await Replay(store, "flights", AppendableTarget("stream", "id", stream)).file(key)


async def test_only_the_letters_of_a_lost_reply_are_appended_again() -> None:
    async def lose_one_reply(count: int) -> None:
        if count == 4:
            raise SourceError("no reply")

    clock, stream = Clock(), Stream(lose_one_reply)
    backend = await letters(clock)
    with pytest.raises(SourceError):
        await replay(backend, clock, stream)
    assert await replay(backend, clock, stream) == (3, 2)
    assert await replay(backend, clock, stream) == (0, 5)
    assert stream.appended == [0, 1, 2, 3, 2, 3, 4]


def test_replays_at_once_append_each_letter_once() -> None:
    """The stream is so slow that a part takes longer than an unrenewed claim lasts."""

    async def main() -> tuple[list[int], list[int]]:
        clocks = [VirtualClock(f"{n}", delay=0.02) for n in range(3)]
        stream, counts = Stream(lambda _: clocks[0].sleep(EXPIRES)), [0, 0, 0]
        backend = await letters(clocks[0])

        async def one(number: int) -> None:
            counts[number], others = await replay(backend, clocks[number], stream) or (0, 0)
            assert counts[number] + others == 5

        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(one, number)
        return stream.appended, counts

    appended, counts = run(main())
    assert (appended, sum(counts)) == ([0, 1, 2, 3, 4], 5)


def test_the_part_of_a_killed_replay_is_taken_over_when_its_claim_expires() -> None:
    async def main() -> tuple[float, list[int]]:
        clock = VirtualClock("a")
        backend = await letters(clock)
        host = current_loop().host("killed")
        host.start(replay(backend, VirtualClock("b"), Stream(lambda _: anyio.sleep_forever())))
        await clock.sleep(7.0)
        host.crash()
        began, stream = clock.monotonic(), Stream(lambda _: clock.sleep(0.0))
        assert await replay(backend, clock, stream) == (5, 0)
        return clock.monotonic() - began, stream.appended

    seconds, appended = run(main())
    assert EXPIRES <= seconds <= EXPIRES + 3.0
    assert appended == [0, 1, 2, 3, 4]


def test_a_replay_that_is_stopped_leaves_its_part_to_the_next_one_at_once() -> None:
    async def main() -> float:
        clock = VirtualClock("a")
        backend = await letters(clock)
        with anyio.move_on_after(7.0):
            await replay(backend, clock, Stream(lambda _: anyio.sleep_forever()))
        began = clock.monotonic()
        assert await replay(backend, clock, Stream(lambda _: clock.sleep(0.0))) == (5, 0)
        return clock.monotonic() - began

    assert run(main()) < 1.0

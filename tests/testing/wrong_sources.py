"""Sources with common mistakes, and the message of `check_source` for each."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import datetime

import anyio

from actorproc import Batch, Chunk, End, Partition
from actorproc.records import Cursor
from actorproc.sources import Start
from actorproc.testing import MemorySource

# Wrong sources, each as one is written by mistake


class TooFar(MemorySource):
    """Its position is that of the next record, and read goes on after it."""

    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        first = int(position) + (position != "0")
        async with aclosing(super().read(partition, str(min(first, len(self._values[partition]))))) as chunks:
            async for chunk in chunks:
                yield chunk


class Inclusive(MemorySource):
    """Its position is that of the last record, at which each query begins."""

    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        values, at = self._values[partition], int(position)
        while True:
            page = values[at : at + 2]
            yield Chunk(Batch.of(partition, page, range(at, at + len(page))), str(at + max(0, len(page) - 1)))
            at += max(0, len(page) - 1)
            await anyio.sleep(0.01)


class Counting(MemorySource):
    """Its sequences count the records that the instance has read."""

    seen = 0

    async def end(self, partition: str) -> End:
        return End((await super().end(partition)).position, None)

    def sequence_before(self, partition: str, position: str) -> int | None:
        return None

    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        async with aclosing(super().read(partition, position)) as chunks:
            async for chunk in chunks:
                numbers = range(self.seen, self.seen + len(chunk.batch))
                self.seen += len(chunk.batch)
                yield Chunk(Batch.of(partition, chunk.batch.values, numbers), chunk.next)


class CountingReaders(Counting):
    """Its sequences count the records that the reader has read."""

    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        one = Counting(0)
        one.__dict__ |= self.__dict__ | {"seen": 0}
        async with aclosing(Counting.read(one, partition, position)) as chunks:
            async for chunk in chunks:
                yield chunk


class Silent(MemorySource):
    """It has no empty chunk."""

    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        async with aclosing(super().read(partition, position)) as chunks:
            async for chunk in chunks:
                if len(chunk.batch):
                    yield chunk


class Ending(MemorySource):
    """It ends where there is no more."""

    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        async with aclosing(super().read(partition, position)) as chunks:
            async for chunk in chunks:
                yield chunk
                if not len(chunk.batch):
                    return


class Snapshot(MemorySource):
    """A reader sees only the records that existed when it began."""

    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        values, at = list(self._values[partition]), int(position)
        while True:
            yield Chunk(Batch.of(partition, values[at:], range(at, max(at, len(values)))), str(max(at, len(values))))
            at = max(at, len(values))
            await anyio.sleep(0.01)


class Columns(MemorySource):
    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        async with aclosing(super().read(partition, position)) as chunks:
            async for chunk in chunks:
                data = chunk.batch.data.select(["key", "value"])
                yield Chunk(Batch(partition, data, chunk.batch.sequence_array), chunk.next)


class NumberedPositions(MemorySource):
    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        async with aclosing(super().read(partition, position)) as chunks:
            async for chunk in chunks:
                yield Chunk(chunk.batch, int(chunk.next))  # type: ignore[arg-type]


class EndBy(MemorySource):
    """Its end is off by so much: (position, sequence). No sequence: None."""

    off: tuple[int, int | None] = (0, 0)

    async def end(self, partition: str) -> End:
        end = await super().end(partition)
        position, sequence = self.off
        known = end.sequence is not None and sequence is not None
        return End(str(int(end.position) + position), end.sequence + sequence if known else None)  # type: ignore[operator]


class EndNext(EndBy):
    off = (0, 1)


class EndBefore(EndBy):
    off = (0, -1)


class EndPositionBefore(EndBy):
    off = (-1, None)


class EndPositionBeyond(EndBy):
    off = (1, 0)


class EndAtOnce(EndBy):
    """It says of each position that it is the end."""

    off = (0, None)

    def reached(self, cursor: Cursor, end: End) -> bool:
        return True


class StuckEnd(MemorySource):
    """It remembers the end that it found first."""

    def __init__(self, partitions: int) -> None:
        super().__init__(partitions, page=2)
        self.found: dict[str, End] = {}

    async def end(self, partition: str) -> End:
        return self.found.setdefault(partition, await super().end(partition))


class Forgetful(MemorySource):
    """It says yes only at the record itself that was the last at some time."""

    def reached(self, cursor: Cursor, end: End) -> bool:
        return cursor.sequence == 3 or cursor.sequence == end.sequence


class SharedCursor(MemorySource):
    """All readers of a partition move one cursor on, as of a connection."""

    def __init__(self, partitions: int) -> None:
        super().__init__(partitions, page=2)
        self.at: dict[str, int] = {}

    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        while True:
            at, values = self.at.get(partition, 0), self._values[partition]
            stop = self.at[partition] = min(len(values), at + 2)
            yield Chunk(Batch.of(partition, values[at:stop], range(at, stop)), str(stop))
            if at == stop:
                await anyio.sleep(0.01)


class OneCursor(MemorySource):
    """The readers of all partitions move one cursor on."""

    at = 0

    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        self.at, values = int(position), self._values[partition]
        while True:
            at, stop = self.at, min(len(values), self.at + 2)
            yield Chunk(Batch.of(partition, values[at:stop], range(at, stop)), str(max(at, stop)))
            self.at = max(at, stop)
            if at >= stop:
                await anyio.sleep(0.01)


class Unordered(MemorySource):
    """It takes records in any order, like a listing or a query without `order by`."""

    def ordered(self, values: Sequence[bytes | None]) -> Sequence[bytes | None]:
        return random.sample(values, len(values))

    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        at = int(position)
        while True:
            values = self.ordered(self._values[partition])
            yield Chunk(Batch.of(partition, values[at:], range(at, len(values))), str(len(values)))
            if at == len(values):
                await anyio.sleep(0.01)
            at = len(values)


class NewestFirst(Unordered):
    """Its sequences count from the newest."""

    def ordered(self, values: Sequence[bytes | None]) -> Sequence[bytes | None]:
        return values[::-1]


class Cancelled(MemorySource):
    """It takes a cancellation for an error of the stream, and tries again."""

    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        values = self._values[partition]
        yield Chunk(Batch.of(partition, values, range(len(values))), str(len(values)))
        yield Chunk(Batch.of(partition, [], []), str(len(values)))
        for _ in range(100):
            try:
                await anyio.sleep(0.01)
            except BaseException:  # noqa: BLE001
                continue


class ClosesForAll(MemorySource):
    """A reader that ends takes the connection with it."""

    connected = True

    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        if not self.connected:
            raise ConnectionError("closed")
        try:
            async with aclosing(super().read(partition, position)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self.connected = False


class FailsClosing(MemorySource):
    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        try:
            async with aclosing(super().read(partition, position)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except GeneratorExit:
            raise OSError("no such cursor") from None


class Vanishing(MemorySource):
    asked = 0

    async def partitions(self) -> Sequence[str]:
        self.asked += 1
        return ["0", "1"] if self.asked == 1 else ["1"]


class Hanging(MemorySource):
    async def end(self, partition: str) -> End:
        await anyio.sleep_forever()
        raise AssertionError


class Circle(MemorySource):
    """Names children in place of parents for one partition."""

    async def partitions(self) -> list[str | Partition]:
        return [Partition("0", ("2",)), "1", Partition("2", ("0",))]


class LatestBefore(MemorySource):
    async def start(self, partition: str, at: Start) -> str:
        return str(max(0, int(await super().start(partition, at)) - (at == "latest")))


class TimeAfter(MemorySource):
    async def start(self, partition: str, at: Start) -> str:
        return str(int(await super().start(partition, at)) + isinstance(at, datetime))


class BeforeIsAt(MemorySource):
    def sequence_before(self, partition: str, position: str) -> int | None:
        return int(position)


class BeforeNothing(MemorySource):
    def sequence_before(self, partition: str, position: str) -> int | None:
        return -1


WRONG: dict[type[MemorySource], str] = {
    TooFar: "partition '0': read.* from '.*', which .* did not give sequence",
    Inclusive: "partition '0', after position '1' and sequence 1: .*gave sequence 1 after 1",
    Counting: "did not give sequence 0",
    CountingReaders: "there before: it must stay the same",
    Silent: "read.* gave nothing for 0.5 s .*must yield an empty chunk before it waits",
    Ending: "read.* ended: it must go on for ever",
    Snapshot: "did not get the record that was added",
    Columns: "read.* failed: KeyError",
    NumberedPositions: "NumberedPositions returned .*expected a position",
    EndNext: r"end.* gave End\(position='7', sequence=7\), and the record that was added after that has sequence 7",
    EndBefore: r"end.* gave End\(position='7', sequence=5\), and read.* has given sequence 6",
    EndPositionBefore: "nothing more at .*'7', sequence=6.* not yet End.position='6', sequence=None",
    EndPositionBeyond: "partition '2': read.* nothing more at .*'0', sequence=-1.* not yet End.position='1'",
    EndAtOnce: "with 7 records to come: a run until the end would stop",
    StuckEnd: "after a record was added",
    Forgetful: "reached.* says no at",
    SharedCursor: "did not give sequence",
    OneCursor: "gave sequence",
    Unordered: "it must stay the same",
    NewestFirst: "it must stay the same",
    Cancelled: "did not end for 0.5 s .*abandon_on_cancel",
    ClosesForAll: "read.* failed: .*ConnectionError: closed",
    FailsClosing: "read.* failed as it was closed: .*OSError: no such cursor",
    Vanishing: r"\['0'\] before, and does not now",
    Hanging: r"end\(\) gave no answer for 0.5 s",
    Circle: r"parents in a circle, so none of \['.', '.', '.'\] would ever run",
    LatestBefore: "start.'latest'.*there before",
    TimeAfter: "start.'2013-01-01 12:03:00.* did not give sequence 3",
    BeforeIsAt: r"sequence_before\('0'\) is 0: .* from -1 to -1",
    BeforeNothing: r"sequence_before\('3'\) is -1: .* from 2 to 2",
}


SLOW_TO_FIND = {Silent, Snapshot, Cancelled, Hanging}  # no record comes; other sources get time on a busy machine

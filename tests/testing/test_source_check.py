"""`check_source`: right sources pass, however awkward; each wrong one is found, by a message that names the rule."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import copy
from typing import Any

import anyio
import pyarrow as pa
import pytest

from actorproc import Batch, Chunk, End, Producer
from actorproc.errors import UsageError
from actorproc.records import RECORD_SCHEMA, Cursor
from actorproc.sources import LogSource, OutputSource, Start
from actorproc.store import Store
from actorproc.stores.memory import Memory
from actorproc.testing import CheckedSource, MemorySource, UnsteadySource, WrongSource, check_source, run
from tests.spark.committing import Fleet
from tests.test_own_source import Pages as PagesFromTheirFirst

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)


def filled(source: MemorySource, records: int = 7) -> MemorySource:
    """Three partitions, one of them empty."""
    for partition in "01":
        for number in range(records):
            time, key = NOON + timedelta(minutes=number), b"k%d" % number
            source.append(partition, [b"%d" % number], key=key, headers=[("n", key)], timestamp=time)
    return source


def appending(source: MemorySource) -> Callable[[], Awaitable[None]]:
    async def add() -> None:
        source.append("1", [b"news"])

    return add


class Pages(PagesFromTheirFirst):
    async def start(self, partition: str, at: Start) -> str:
        if at != "earliest":
            raise UsageError("earliest only")
        return "0"


async def checked(source: MemorySource, **how: Any) -> CheckedSource:
    return await check_source(lambda: source, add=appending(source), **how)


async def test_a_right_source_passes_and_the_report_tells_what_was_seen() -> None:
    report = await checked(filled(MemorySource(3, page=2, step=5)))
    assert report == CheckedSource({"0": 7, "1": 8, "2": 0}, report.positions, [])
    assert report.positions["1"] == ["0", "3", "7", "2", "4", "6", "8"]


@pytest.mark.parametrize("make", [lambda: UnsteadySource(3, page=4), lambda: MemorySource(3, page=1), lambda: Pages(3)])
async def test_positions_may_be_coarse(make: Callable[[], MemorySource]) -> None:
    await checked(filled(make()))


async def test_a_source_need_not_know_times_or_the_latest_nor_the_sequences_of_its_ends_and_positions() -> None:
    class Plain(MemorySource):
        async def start(self, partition: str, at: Start) -> str:
            if at != "earliest":
                raise UsageError("earliest only")
            return "0"

        async def end(self, partition: str) -> End:
            return End((await super().end(partition)).position, None)

        def sequence_before(self, partition: str, position: str) -> int | None:
            return None

    report = await checked(filled(Plain(3)))
    assert report.not_checked.count("start('latest'), which is refused: earliest only") == 3


async def test_a_source_may_pass_over_its_newest_records_and_lack_its_first() -> None:
    class Filtered(MemorySource):
        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            async with aclosing(super().read(partition, position)) as chunks:
                async for chunk in chunks:
                    kept = [index for index, record in enumerate(chunk.batch) if record.value not in (b"0", b"6")]
                    yield Chunk(chunk.batch.take(kept), chunk.next)

    await checked(filled(Filtered(3)))


async def test_pages_may_be_of_other_column_types_and_records_without_key_time_or_value() -> None:
    large = pa.schema(
        [field.with_type(pa.large_binary()) if field.name == "value" else field for field in RECORD_SCHEMA]
    )

    class Large(MemorySource):
        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            async with aclosing(super().read(partition, position)) as chunks:
                async for chunk in chunks:
                    yield Chunk(Batch(partition, chunk.batch.data.cast(large), chunk.batch.sequence_array), chunk.next)

    source = Large(2)
    source.append("0", [b"a", None, b"b"], timestamp=None)
    await checked(source)


async def test_of_a_long_partition_the_first_records_and_the_end_are_looked_at() -> None:
    report = await checked(filled(MemorySource(3, page=3), 100), most_records=60)
    assert report.records == {"0": 60, "1": 60, "2": 0}
    assert report.not_checked == [f"where partition {name} ends: it has more than 60 records" for name in "01"]
    assert (len(report.positions["0"]), report.positions["0"][:4]) == (21, ["0", "30", "3", "6"])


async def test_a_partition_that_goes_on_for_ever_is_left_at_some_record() -> None:
    class Endless(MemorySource):
        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            at = int(position)
            while True:
                if at == 1000:
                    yield Chunk(Batch.of(partition, [], []), str(at))
                yield Chunk(Batch.of(partition, [b"%d" % at], [at]), str(at := at + 1))

        async def end(self, partition: str) -> End:
            return End("1000", 999)

    report = await check_source(Endless(1), most_records=50)
    assert report.records == {"0": 50}


async def test_a_source_is_checked_as_it_is_and_what_cannot_be_is_told() -> None:
    report = await check_source(filled(MemorySource(3)))
    assert [why.partition(": give")[0] for why in report.not_checked] == [
        "whether a record that arrives is seen",
        "whether its positions are good in a new instance",
    ]


async def test_a_stream_without_records_proves_nothing() -> None:
    with pytest.raises(UsageError, match="no records, which proves nothing"):
        await check_source(MemorySource(2))
    with pytest.raises(UsageError, match="a source, or a function"):
        await check_source("events")  # type: ignore[arg-type]


@pytest.mark.parametrize("place", ["folder", "memory"])
async def test_the_built_in_log_is_right(tmp_path: Path, place: str) -> None:
    log: Any = tmp_path / "log" if place == "folder" else Store(Memory())

    async def add(count: int = 1) -> None:
        async with Producer(log, partitions=3, partitioner="round-robin", linger=0) as producer:
            for number in range(count):
                await producer.send(
                    b"%d" % number, key=b"k", headers={"a": "b"}, timestamp=NOON + timedelta(seconds=number)
                )
                await producer.flush()

    await add(20)
    report = await check_source(lambda: LogSource(log), add=add)
    assert (sum(report.records.values()), report.not_checked) == (21, [])


async def test_another_processors_output_is_right() -> None:
    store = Store(Memory())
    fleet = Fleet(store)
    for _ in range(3):
        await fleet.commit(p0=30, p1=12)
    report = await check_source(lambda: OutputSource(store, "numbers"), add=lambda: fleet.commit(p1=1))
    assert report.not_checked == []


def test_it_runs_in_virtual_time() -> None:
    async def main() -> None:
        await checked(filled(UnsteadySource(3, page=4)))

    run(main())


async def test_what_the_page_on_sources_says_is_what_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[2]
    copy(root / "examples" / "sql_source.py", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    section = (root / "docs" / "sources.md").read_text().partition("\n## Testing a source\n")[2]
    (code,) = re.findall(r"```python\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    said: dict[str, Any] = {}
    exec(code, said)
    await said["test_the_table_is_a_source"](tmp_path)
    sys.modules.pop("sql_source")


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
    """Its sequences count what the instance has read."""

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
    """Its sequences count what the reader has read."""

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
    """What was there as it began is all it ever sees."""

    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        values, at = list(self._values[partition]), int(position)
        while True:
            yield Chunk(Batch.of(partition, values[at:], range(at, max(at, len(values)))), str(max(at, len(values))))
            at = max(at, len(values))
            await anyio.sleep(0.01)


class Text(MemorySource):
    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        schema = pa.schema(
            [field.with_type(pa.string()) if field.name == "value" else field for field in RECORD_SCHEMA]
        )
        async with aclosing(super().read(partition, position)) as chunks:
            async for chunk in chunks:
                yield Chunk(Batch(partition, chunk.batch.data.cast(schema), chunk.batch.sequence_array), chunk.next)


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
    """It takes records in whatever order they come, as a listing or a query without `order by` has them."""

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


class Doubled(MemorySource):
    async def partitions(self) -> Sequence[str]:
        return ["0", "1", "1"]


class Hanging(MemorySource):
    async def end(self, partition: str) -> End:
        await anyio.sleep_forever()
        raise AssertionError


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
    Silent: "read.* gave nothing for 0.5 s .*must yield an empty chunk, before it waits",
    Ending: "read.* ended: it must go on for ever",
    Snapshot: "has not seen the record that was added",
    Text: r"value='0'.*must be bytes \(of text: text.encode",
    Columns: "columns are not those of RECORD_SCHEMA: KeyError",
    NumberedPositions: "NumberedPositions.read gave .*it must be a position",
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
    Doubled: "it must be names that differ: '1' is there more than once",
    Hanging: r"end\(\) gave no answer for 0.5 s",
    LatestBefore: "start.'latest'.*there before",
    TimeAfter: "start.'2013-01-01 12:03:00.* did not give sequence 3",
    BeforeIsAt: r"sequence_before\('0'\) is 0: .* from -1 to -1",
    BeforeNothing: r"sequence_before\('3'\) is -1: .* from 2 to 2",
}


SLOW_TO_FIND = {Silent, Snapshot, Cancelled, Hanging}  # nothing comes; the others are given time on a busy machine


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
async def test_a_wrong_source_is_found_and_the_rule_is_named(kind: type[MemorySource]) -> None:
    source = filled(kind(3))
    if kind is not StuckEnd and kind is not SharedCursor:
        source._page = 2
    add = None if kind is Cancelled else appending(source)
    with pytest.raises(WrongSource) as caught:
        await check_source(lambda: source, add=add, patience=0.5 if kind in SLOW_TO_FIND else 30)
    assert re.search(WRONG[kind], str(caught.value), re.DOTALL)


class OfInstance(MemorySource):
    """Its positions are tokens that only the instance knows which gave them."""

    truth = filled(MemorySource(2, page=2))

    def __init__(self) -> None:
        self.__dict__ |= self.truth.__dict__
        self._tokens: dict[str, str] = {"first": "0"}

    async def start(self, partition: str, at: Start) -> str:
        return "first"

    async def end(self, partition: str) -> End:
        return End("last", (await super().end(partition)).sequence)

    def sequence_before(self, partition: str, position: str) -> int | None:
        return None

    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        async with aclosing(super().read(partition, self._tokens[position])) as chunks:
            async for chunk in chunks:
                token = f"token {len(self._tokens)}"
                self._tokens[token] = chunk.next
                yield Chunk(chunk.batch, token)


async def test_what_holds_in_one_instance_only_is_found() -> None:
    class Tokens(OfInstance):
        async def start(self, partition: str, at: Start) -> str:
            if at != "earliest":
                raise UsageError("earliest only")
            return "first"

        async def end(self, partition: str) -> End:
            newest = await MemorySource.end(self, partition)
            self._tokens["last"] = newest.position
            return End("last", newest.sequence)

    await check_source(Tokens())
    with pytest.raises(WrongSource, match=r"new instance\), partition '0'.*KeyError: 'last'"):
        await check_source(Tokens)


async def test_another_identity_of_each_instance_is_found() -> None:
    class Made(MemorySource):
        made = 0

        def __init__(self) -> None:
            super().__init__(2)
            filled(self)
            type(self).made += 1
            self.identity = f"made {self.made}"

    with pytest.raises(WrongSource, match="identity is 'made 2', and was 'made 1'"):
        await check_source(Made)


async def test_a_function_that_makes_no_source_is_wrong_use() -> None:
    nothing: Any = lambda: None  # noqa: E731
    with pytest.raises(UsageError, match="gave None, which is none"):
        await check_source(nothing)

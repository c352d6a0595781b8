"""Sources of the user's own: the stream that a name belongs to, and errors when a method fails."""

from __future__ import annotations

import asyncio
import gc
import io
import warnings
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import anyio
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import structlog

from actorproc import Batch, Capture, Chunk, Cursor, End, JsonRows, Processor, Producer, Source
from actorproc.errors import EndNotReached, SourceError, UsageError
from actorproc.records import RECORD_SCHEMA
from actorproc.sources import guard_source
from actorproc.sources.guard import GuardedSource
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource
from tests.processor.doubling import QUICK, Double, fed, rows


class Other(MemorySource):
    """Another class without an identity."""


class Named(MemorySource):
    identity = "orders-2026"


def run(source: Source | str, container: Store | str) -> Any:
    return Processor(Double, source=source, container=container, **QUICK).run(until_end=True)


async def one_record(log: Path) -> str:
    async with Producer(str(log), partitions=1) as producer:
        await producer.send("1")
    return str(log)


async def test_a_log_is_refused_after_a_source_without_identity(tmp_path: Path) -> None:
    log, store = await one_record(tmp_path / "events"), Store(MemoryStore())
    await run(fed(1, 3), store)
    says = rf"Double in memory://.* belongs to another stream: file://{log} is not known to be MemorySource: .*another"
    with pytest.raises(UsageError, match=says):
        await run(log, store)
    assert await rows(store) == [0, 2, 4]


async def test_a_source_without_identity_is_refused_after_a_log(tmp_path: Path) -> None:
    log, store = await one_record(tmp_path / "events"), Store(MemoryStore())
    await run(log, store)
    with pytest.raises(UsageError, match=rf"file://{log} has an identity, MemorySource has none. .*or container"):
        await run(fed(1, 3), store)
    assert await rows(store) == [2]


async def test_a_log_is_refused_for_state_without_a_recorded_source(tmp_path: Path) -> None:
    log, store = await one_record(tmp_path / "events"), Store(MemoryStore())
    await run(fed(1, 3), store)
    await store.delete(ProcessorLayout("Double").origin)
    with pytest.raises(UsageError, match=rf"began with a source that has no identity, and file://{log} has one"):
        await run(log, store)
    await run(fed(1, 4), store)
    assert await rows(store) == [0, 2, 4, 6]


async def test_sources_without_an_identity_are_distinguished_by_class() -> None:
    store = Store(MemoryStore())
    await run(fed(1, 3), store)
    with pytest.raises(UsageError, match=r"Other is of class Other, not MemorySource \(neither has an identity"):
        await run(Other(), store)
    await run(fed(1, 4), store)
    assert await rows(store) == [0, 2, 4, 6]


class Pages(MemorySource):
    """A position is the number of a page of five records: it is the same inside of a page as at its end."""

    async def end(self, partition: str) -> End:
        end = await super().end(partition)
        return End(str((end.sequence or 0) // 5), end.sequence)

    def sequence_before(self, partition: str, position: str) -> int | None:
        return 5 * int(position) - 1

    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        async with aclosing(super().read(partition, str(5 * int(position)))) as chunks:
            async for chunk in chunks:
                await anyio.sleep(0.05)  # so that more records exist than were read first
                yield Chunk(chunk.batch, str(int(chunk.next) // 5))


async def test_until_end_reads_a_page_that_was_partly_committed() -> None:
    store = Store(MemoryStore())
    await run(pages(7), store)
    await run(pages(9), store)
    assert await rows(store) == [2 * n for n in range(9)]


async def test_a_first_page_that_is_not_full_is_read_too() -> None:
    store = Store(MemoryStore())
    await run(pages(3), store)
    await run(pages(4), store)
    assert await rows(store) == [0, 2, 4, 6]


async def test_an_end_with_filtered_newest_records_is_reached() -> None:
    class Filtered(MemorySource):
        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            async with aclosing(super().read(partition, position)) as chunks:
                async for chunk in chunks:
                    yield Chunk(chunk.batch[: max(0, len(chunk.batch) - 2)], chunk.next)

        def sequence_before(self, partition: str, position: str) -> int | None:
            return None

    store, source = Store(MemoryStore()), Filtered(1)
    source.append("0", [b"%d" % number for number in range(9)])
    await run(source, store)
    assert await rows(store) == [2 * n for n in range(7)]


def pages(records: int) -> Pages:
    source = Pages(1)
    source.append("0", [b"%d" % number for number in range(records)])
    return source


async def test_an_identity_of_ones_own_guards_the_name() -> None:
    store = Store(MemoryStore())
    await run(Named(), store)
    await run(Named(), store)
    another = Named()
    another.identity = "orders-2027"
    with pytest.raises(UsageError, match="deleted and created again"):
        await run(another, store)


class Failing(MemorySource):
    """A source of which one method is replaced."""

    @classmethod
    def by(cls, method: str, function: object) -> Source:
        return guard_source(type("Failing", (cls,), {method: function})(1))


CALLS: dict[str, Callable[[Source], Any]] = {
    "open": lambda source: source.open(),
    "register": lambda source: source.register("p", "memory://"),
    "partitions": lambda source: source.partitions(),
    "start": lambda source: source.start("0", "earliest"),
    "end": lambda source: source.end("0"),
    "read": lambda source: anext(source.read("0", "0")),
    "sequence_before": lambda source: source.sequence_before("0", "{0}"),
    "reached": lambda source: source.reached(Cursor("0"), End("0", None)),
    "identity": lambda source: source.identity,
}


@pytest.mark.parametrize("method", CALLS)
async def test_an_error_of_a_method_becomes_a_source_error(method: str) -> None:
    def raising(*_: object) -> Any:
        raise ConnectionError("db is down")

    source = Failing.by(method, property(raising) if method == "identity" else raising)
    with pytest.raises(SourceError, match=rf"^{method}\(\) of .* failed: ConnectionError: db is down \(in .*raising, "):
        await CALLS[method](source)


async def test_an_unsupported_start_is_refused_before_anything_runs() -> None:
    class Timeless(MemorySource):
        async def start(self, partition: str, at: Any) -> str:
            if at not in ("earliest", "latest"):
                raise UsageError(f"start = {at!r}: earliest or latest; the records have no times")
            return await super().start(partition, at)

    store = Store(MemoryStore())
    with pytest.raises(UsageError, match="the records have no times"), anyio.fail_after(60):
        await Processor(Double, source=Timeless(1), container=store, start="2013-01-01T00:00Z").run()


@pytest.mark.parametrize("until_end", [True, False])
async def test_a_source_without_partitions_is_warned_of_once(until_end: bool) -> None:
    source, store = MemorySource(0), Store(MemoryStore())
    processor = Processor(Double, source=source, container=store, **QUICK | {"partition_refresh_interval": 0.01})
    with structlog.testing.capture_logs() as logs, anyio.fail_after(60):
        if until_end:
            await processor.run(until_end=True)
        else:
            async with processor:
                while (did := processor.statistics()) is None or not did.members:
                    await anyio.sleep(0.01)
                await anyio.sleep(0.5)  # looks at the group: one each 0.2 s
                source.add_partition("0")
                source.append("0", [b"1"])
                while await rows(store) != [2]:
                    await anyio.sleep(0.01)
    told = [(log["log_level"], log["source"]) for log in logs if log["event"] == "processor.no_partitions"]
    assert told == [("warning", "MemorySource")]


async def test_partitions_may_have_names_of_numpys_text() -> None:
    class PartitionFiles(MemorySource):
        async def partitions(self) -> Any:
            return np.unique([str(name) for name in await super().partitions()])

    source, store = PartitionFiles(2), Store(MemoryStore())
    source.append("1", [b"1"])
    await run(source, store)
    assert await rows(store) == [2]


@pytest.mark.parametrize(
    ("method", "answer", "expected"),
    [
        ("partitions", [0], "a list of names"),
        ("partitions", "0", "a list of names"),
        ("partitions", None, "a list of names"),
        ("start", 0, "a position"),
        ("end", "0", "an End"),
        ("end", End("0", "x"), "an End"),  # type: ignore[arg-type]
        ("end", End(0, 1), "a position"),  # type: ignore[arg-type]
        ("sequence_before", "0", "an int or None"),
    ],
)
async def test_a_wrong_answer_is_refused_with_the_method(method: str, answer: object, expected: str) -> None:
    def plain(*_: object) -> Any:
        return answer

    async def awaited(*_: object) -> Any:
        return answer

    source = Failing.by(method, plain if method == "sequence_before" else awaited)
    with pytest.raises(SourceError, match=rf"^{method}\(\) of the source Failing returned .*; expected {expected}"):
        called = CALLS[method](source)
        await called


async def test_partitions_listed_twice_count_once() -> None:
    async def twice(*_: object) -> Any:
        return ["0", "1", "0"]

    assert await Failing.by("partitions", twice).partitions() == ["0", "1"]


@pytest.mark.parametrize(
    ("chunk", "expected"),
    [
        ([b"1"], "a Chunk"),
        (Chunk(Batch.of("0", [b"1"], [0]), 1), "a position"),  # type: ignore[arg-type]
        (Chunk([b"1"], "1"), "a Batch"),  # type: ignore[arg-type]
        (Chunk(Batch.of("1", [b"1"], [0]), "1"), "a Batch of partition '0'"),
        (Chunk(Batch("0", Batch.of("0", [b"1"], [0]).data, pa.array([None], pa.int64())), "1"), "sequences: integers"),
        (Chunk(Batch("0", Batch.of("0", [b"1"], [0]).data, pa.array(["0"])), "1"), "sequences: integers"),
    ],
)
async def test_a_wrong_chunk_is_refused(chunk: object, expected: str) -> None:
    async def reading(*_: object) -> Any:
        yield chunk

    with pytest.raises(SourceError, match=rf"read\(\) of the source Failing returned (.|\n)*; expected {expected}"):
        await CALLS["read"](Failing.by("read", reading))


async def test_an_async_reached_is_refused_since_a_coroutine_is_true() -> None:
    def reached(*_: object) -> Any:
        return asyncio.sleep(0)

    with warnings.catch_warnings(action="ignore"), pytest.raises(SourceError, match="expected a bool"):
        await CALLS["reached"](Failing.by("reached", reached))
        gc.collect()


@pytest.mark.parametrize("answer", [None, []])
async def test_a_read_that_returns_no_async_generator_is_refused(answer: object) -> None:
    with pytest.raises(SourceError, match=r"read\(\) of the source Failing returned .*; expected an async generator"):
        await CALLS["read"](Failing.by("read", lambda *_: answer))


@pytest.mark.parametrize("method", ["open", "register", "partitions", "start", "end"])
async def test_a_cancellation_from_outside_ends_a_method_as_it_should(method: str) -> None:
    async def waiting(*_: object) -> Any:
        await asyncio.Event().wait()

    task = asyncio.ensure_future(CALLS[method](Failing.by(method, waiting)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("method", ["open", "register", "partitions", "start", "end"])
async def test_a_method_that_is_cancelled_from_within_is_named(method: str) -> None:
    async def cancelled(*_: object) -> Any:
        raise asyncio.CancelledError

    with pytest.raises(SourceError, match=rf"{method}\(\) of the source Failing was cancelled from within"):
        await CALLS[method](Failing.by(method, cancelled))


async def test_an_error_on_closing_is_logged_and_hides_no_other_error() -> None:
    async def closing(_: object) -> None:
        raise OSError("gone")

    store = Store(MemoryStore())
    with structlog.testing.capture_logs() as logs:
        await run(type("Closing", (MemorySource,), {"close": closing})(1), store)
    assert [log["error"][:13] for log in logs if log["event"] == "source.close_failed"] == ["OSError: gone"]


class Odd(MemorySource):
    """Gives its records otherwise than as records are."""

    columns: ClassVar[list[str]] = RECORD_SCHEMA.names
    sequences: ClassVar[Any] = None

    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        async for chunk in super().read(partition, position):
            batch = chunk.batch
            sequences = batch.sequence_array if self.sequences is None else self.sequences[: len(batch)]
            yield Chunk(Batch(partition, batch.data.select(self.columns), sequences), chunk.next)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"columns": ["value", "key"]}, "read.* failed: KeyError"),
        (
            {"sequences": pa.array([2**63], pa.uint64())},
            "read.* failed: ArrowInvalid: Integer value 9223372036854775808",
        ),
    ],
)
async def test_records_that_would_be_taken_for_others_are_refused(given: dict[str, Any], says: str) -> None:
    source = type("Odder", (Odd,), given)(1)
    source.append("0", [b"1"])
    with pytest.raises(EndNotReached, match=says):
        await run(source, Store(MemoryStore()))


async def test_a_timestamp_without_a_zone_is_refused() -> None:
    class Local(MemorySource):
        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            yield Chunk(Batch.of(partition, [b"1"], [0], timestamps=[datetime(2026, 1, 2, 3, 4)]), "1")  # noqa: DTZ001

    source = Local(1)
    source.append("0", [b"1"])
    with pytest.raises(EndNotReached, match=r"timestamp datetime.datetime\(2026, 1, 2, 3, 4\) has no zone"):
        await run(source, Store(MemoryStore()))


async def test_columns_in_another_order_are_put_right() -> None:
    class Columns(Capture): ...

    source, store = (
        type("Turned", (Odd,), {"columns": ["value", "key", "timestamp", "headers"]})(1),
        Store(MemoryStore()),
    )
    source.append("0", [b"v"], key=b"k")
    await Processor(Columns, source=source, container=store, **QUICK).run(until_end=True)
    (entry,) = (await store.list("Columns/output/")).entries
    stored = await store.get(entry.key)
    assert stored is not None
    assert pq.read_table(io.BytesIO(stored.body)).select(["key", "value"]).to_pylist() == [{"key": b"k", "value": b"v"}]


@pytest.mark.parametrize(
    "types",
    [
        {"value": pa.large_binary()},
        {"value": pa.binary_view(), "key": pa.null()},
        {"value": pa.dictionary(pa.int32(), pa.binary())},
        {"timestamp": pa.timestamp("ns"), "headers": pa.map_(pa.string(), pa.binary())},
    ],
    ids=str,
)
@pytest.mark.parametrize("sequences", [pa.int8(), pa.uint64(), pa.int64()], ids=str)
async def test_columns_of_castable_types_are_accepted(types: dict[str, pa.DataType], sequences: pa.DataType) -> None:
    class Typed(MemorySource):
        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            async for chunk in super().read(partition, position):
                columns = [
                    pa.nulls(len(chunk.batch), kind)
                    if kind in (pa.null(), pa.map_(pa.string(), pa.binary()))
                    else column.dictionary_encode()
                    if pa.types.is_dictionary(kind)
                    else column.cast(kind)
                    for column, kind in ((chunk.batch.data[f.name], types.get(f.name, f.type)) for f in RECORD_SCHEMA)
                ]
                data = pa.RecordBatch.from_arrays(columns, names=RECORD_SCHEMA.names)
                yield Chunk(Batch(partition, data, chunk.batch.sequence_array.cast(sequences)), chunk.next)

    class Parsed(JsonRows):
        output_schema = "n long"

    source, store = Typed(1), Store(MemoryStore())
    source.append("0", [b'{"n": %d}' % n for n in range(5)])
    await Processor(Parsed, source=source, container=store, **QUICK).run(until_end=True)
    assert await rows(store, "Parsed") == list(range(5))


@pytest.mark.parametrize(
    ("column", "values", "says"),
    [
        ("headers", ["a"], "read.* failed: Arrow.*string to list"),
        ("timestamp", ["yesterday"], "read.* failed: Arrow.*'yesterday'"),
    ],
)
async def test_a_column_that_cannot_become_the_declared_one_is_named(column: str, values: Any, says: str) -> None:
    class Wrong(MemorySource):
        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            async for chunk in super().read(partition, position):
                index = RECORD_SCHEMA.get_field_index(column)
                data = chunk.batch.data.set_column(index, column, pa.array(values))
                yield Chunk(Batch(partition, data, chunk.batch.sequence_array), chunk.next)

    source = Wrong(1)
    source.append("0", [b"1"])
    with pytest.raises(EndNotReached, match=says):
        await run(source, Store(MemoryStore()))


async def test_a_table_in_place_of_a_record_batch_is_refused() -> None:
    class Tables(MemorySource):
        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            async for chunk in super().read(partition, position):
                table: Any = pa.Table.from_batches([chunk.batch.data])
                yield Chunk(Batch(partition, table, chunk.batch.sequence_array), chunk.next)

    source = Tables(1)
    source.append("0", [b"1"])
    with pytest.raises(EndNotReached, match="expected a Batch of an Arrow RecordBatch"):
        await run(source, Store(MemoryStore()))


async def test_a_plain_read_may_return_an_async_generator() -> None:
    class Wrapped(MemorySource):
        def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            return super().read(partition, position)

    source, store = Wrapped(1), Store(MemoryStore())
    source.append("0", [b"1"])
    await run(source, store)
    assert await rows(store) == [2]


def test_the_guard_passes_every_method_of_a_source_on() -> None:
    public = {name for name, value in vars(Source).items() if callable(value) and not name.startswith("_")}
    assert public <= vars(GuardedSource).keys()

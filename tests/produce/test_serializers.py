"""The producer refuses unusual or huge records by name, and sends all other records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

from actorproc.errors import StoreError, UsageError
from actorproc.log.segment import Segment, encode_segment
from actorproc.produce import appender
from actorproc.produce import serializers as payloads
from actorproc.produce.producer import Producer
from actorproc.records import Batch
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.storage.names import log_file
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from tests.log.reading import log_contents

HALF = "caf\udce9"  # as os.listdir gives a name that is no UTF-8


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"value": HALF}, r"^value 'caf\\udce9' cannot be sent as UTF-8"),
        ({"value": b"", "key": HALF}, r"^key 'caf\\udce9' cannot"),
        ({"value": b"", "headers": {HALF: b""}}, r"^name of a header 'caf\\udce9' cannot"),
        ({"value": b"", "headers": {"a": HALF}}, r"^value of a header 'caf\\udce9' cannot"),
        ({"value": b"x" * 1001}, r"^value b'x+\.\.\. has 1001 bytes: at most 1000"),
        ({"value": "x" * 1001}, r"^value b'x+\.\.\. has 1001 bytes"),
        ({"value": b"", "key": b"x" * 1001}, r"^key b'x+\.\.\. has 1001 bytes"),
        ({"value": b"", "key": "x" * 1001}, r"^key b'x+\.\.\. has 1001 bytes"),
        ({"value": b"", "headers": {"a": b"x" * 500, "b": b"x" * 500}}, r"^headers .* have 1002 bytes: at most 1000"),
    ],
)
async def test_a_record_too_large_for_a_segment_is_refused(
    record: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actorproc.produce.serializers.VALUE_LIMIT", 1000)
    monkeypatch.setattr("actorproc.produce.producer.VALUE_LIMIT", 1000)
    store = Store(MemoryStore())
    async with Producer(store, partitions=1) as producer:
        await producer.send("before")
        with pytest.raises(UsageError, match=message):
            await producer.send(**record)
        with pytest.raises(UsageError, match=message):
            await producer.send_many([record["value"]], keys=[record.get("key")], headers=[record.get("headers")])
        await (await producer.send("after"))
    assert (await log_contents(store))["0"] == [b"before", b"after"]


async def test_columns_are_encoded_as_their_items_are() -> None:
    store = Store(MemoryStore())
    async with Producer(store, partitions=1) as producer:
        await producer.send_many(pa.array([{"a": 1}]), keys=pa.array([7]))
        with pytest.raises(UsageError, match="value 1 is of type int"):
            await producer.send_many(pa.array([1]))
        with pytest.raises(UsageError, match=r"key 1\.5 is of type float"):
            await producer.send_many(["a"], keys=pa.array([1.5]))
    assert (await log_contents(store))["0"] == [b'{"a":1}']


async def test_numpy_and_pandas_columns_are_encoded_as_their_items_are() -> None:
    store = Store(MemoryStore())
    async with Producer(store, partitions=1) as producer:
        await producer.send_many(np.array(["a", "caf\u00e9"]), keys=pd.Series([1, 256]))
        await producer.send_many(pd.Series([b"a\0b", None, float("nan")]), keys=pd.Categorical([7, 7, 8]))
        for keys in (np.array([1]), np.array([1.5]), pd.Series([True])):
            with pytest.raises(UsageError, match=r"^key .* is of type"):
                await producer.send_many(["x"], keys=keys)
    found = Segment("0", 0, (await store.get(log_file("0", 0))).body)  # type: ignore[union-attr]
    (batch,) = found.batches()
    assert batch.values == [b"a", "caf\u00e9".encode(), b"a\0b", None, None]
    assert batch.keys == [b"1", b"256", b"7", b"7", b"8"]
    own = Batch.of("0", np.array(["caf\u00e9"]), [0])  # type: ignore[arg-type]  # as a source of one's own may give
    assert own.values == ["caf\u00e9".encode()]


def test_an_unexpected_error_fails_only_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def picky(table: pa.Table, *rest: Any) -> bytes:
        if b"bad" in table.column("value").to_pylist():
            raise ValueError("no such luck")
        return encode_segment(table, *rest)

    async def main() -> None:
        monkeypatch.setattr(appender, "encode_segment", picky)
        clock = VirtualClock("p")
        store = Store(MemoryStore(clock=clock), clock=clock)
        async with Producer(
            store, partitions=2, partitioner=lambda key, value, n: int(key or b"0"), linger=0, clock=clock
        ) as producer:
            bad, good = await producer.send("bad", key=0), await producer.send("good", key=1)
            with pytest.raises(StoreError, match=r"may be in the log or not: ValueError: no such luck"):
                await bad
            assert await good == ("1", 0)
            assert await (await producer.send("next", key=0)) == ("0", 0)
            with pytest.raises(StoreError, match="no such luck"):
                await producer.flush()
        assert await log_contents(store) == {"0": [b"next"], "1": [b"good"]}

    run(main())


async def test_headers_count_towards_the_buffer() -> None:
    async with Producer(Store(MemoryStore()), partitions=1, linger=3600, buffer_bytes=10_000) as producer:
        await producer.send(b"", headers=[("a", bytes(1000)), ("b", None), ("c", "x")])
        assert 1000 < producer.statistics().waiting_bytes < 3000
        await producer.flush()
        assert producer.statistics().waiting_bytes == 0


@pytest.mark.parametrize("many", [False, True])
async def test_a_send_that_waits_for_buffer_space_fails_when_the_producer_closes(
    many: bool,
) -> None:
    store, said = Store(MemoryStore()), list[str]()

    async def send(producer: Producer) -> None:
        try:
            await (producer.send_many([b"y" * 900]) if many else producer.send(b"y" * 900))
        except UsageError as error:
            said.append(str(error))

    opened = Producer(store, partitions=1, linger=3600, buffer_bytes=1_000)
    async with anyio.create_task_group() as tasks, opened as producer:
        await producer.send(b"x" * 900)
        tasks.start_soon(send, producer)
        await anyio.lowlevel.checkpoint()  # it waits, and the other record is only about to be sent
    assert said == ["the producer was closed while a record waited for room in its buffer: it was not sent"]
    assert await log_contents(store) == {"0": [b"x" * 900]}


async def test_who_is_cancelled_in_send_has_sent_nothing() -> None:
    async with Producer(Store(MemoryStore()), partitions=1, linger=3600) as producer:
        returned = 0
        for _ in range(1200):
            with anyio.CancelScope() as scope:
                scope.cancel()
                await producer.send(b"x")
                returned += 1
        assert returned < 1200
        await producer.flush()
        assert producer.statistics().records == returned


def chunked(values: Any, encode: Any) -> Any:
    """Fail as Arrow does beyond 2 GiB."""
    column = payloads_binary_column(values, encode)
    return pa.chunked_array([column[:1], column[1:]]) if column.nbytes > 100_000 else column


def refused(values: Any, encode: Any) -> Any:
    column = payloads_binary_column(values, encode)
    if column.nbytes > 100_000:
        raise pa.ArrowCapacityError("array cannot contain more")
    return column


payloads_binary_column = payloads.binary_column


@pytest.mark.parametrize("full", [chunked, refused, payloads_binary_column])
async def test_records_of_varying_sizes_are_sent_in_parts(
    full: Callable[[Any, Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def watched(*given: Any) -> pa.RecordBatch | None:
        tried.append(len(given[0]))
        data = made(*given)
        sizes.append(data.nbytes if data is not None else 0)
        return data

    tried: list[int] = []
    sizes: list[int] = []
    made = payloads.columns
    monkeypatch.setattr(payloads, "binary_column", full)
    monkeypatch.setattr(payloads, "COLUMNS_LIMIT", 120_000)
    monkeypatch.setattr("actorproc.produce.producer.columns", watched)
    values = [b"small"] * 64 + [b"%d" % number * 500 for number in range(1000, 1400)] + [bytes(90_000)]
    store = Store(MemoryStore())
    async with Producer(store, partitions=1) as producer:
        sent = await (await producer.send_many(values))
    assert [sequence for _, sequence in sent] == list(range(len(values)))
    assert (await log_contents(store))["0"] == values
    assert max(sizes) <= 120_000
    assert max(tried) <= 256, "after small ones not all at once"


async def test_a_log_is_given_by_url_or_path(tmp_path: Path) -> None:
    async with Producer(tmp_path / "events", partitions=1) as producer:
        await producer.send("x")
    async with Producer(str(tmp_path / "events")) as producer:
        assert producer.partitions == 1
    with pytest.raises(UsageError, match="log = None: the URL or path of a log"):
        Producer(None)  # type: ignore[arg-type]

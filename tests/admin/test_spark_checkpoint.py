"""Positions of Spark queries, read from their checkpoints in a folder."""

from __future__ import annotations

import orjson
import pytest

from actorproc.admin.spark_checkpoint import committed_numbers, has_begun
from actorproc.errors import CorruptObject, UsageError
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore

OF, IDENTITY = "output numbers at somewhere", "output: 1234"


def offset(identity: str = IDENTITY, **numbers: int) -> bytes:
    document = {
        "version": 1,
        "of": OF,
        "identity": identity,
        "next": {p.removeprefix("p"): n for p, n in numbers.items()},
    }
    return orjson.dumps(document)


async def checkpoint(*batches: tuple[bytes, ...], committed: int) -> Store:
    """Offsets of the sources of each micro-batch. The first `committed` batches are committed."""
    store = Store(MemoryStore())
    for batch, sources in enumerate(batches):
        await store.put(f"offsets/{batch}", b"\n".join([b"v1", b'{"batchWatermarkMs":0}', *sources]))
        await store.put(f"offsets/.{batch}.crc", b"x")
        if batch < committed:
            await store.put(f"commits/{batch}", b'v1\n{"nextBatchWatermarkMs":0}')
            await store.put(f"commits/.{batch}.crc", b"x")
    return store


async def test_the_end_of_the_last_committed_micro_batch_counts() -> None:
    batches = [(offset(p0=n, p1=2 * n),) for n in range(12)]
    store = await checkpoint(*batches, committed=11)
    assert await committed_numbers(store, OF, IDENTITY) == {"0": 10, "1": 20}


async def test_before_the_first_is_committed_nothing_is_known() -> None:
    store = await checkpoint((offset(p0=5),), committed=0)
    assert await committed_numbers(store, OF, IDENTITY) == {}
    assert await committed_numbers(Store(MemoryStore()), OF, IDENTITY) == {}


async def test_of_a_query_that_reads_it_twice_the_slower_counts() -> None:
    other = offset("output: another", p0=1)
    store = await checkpoint((other, b"-", offset(p0=5, p1=9), b"17", offset(p0=7)), committed=1)
    assert await committed_numbers(store, OF, IDENTITY) == {"0": 5}


async def test_a_query_that_reads_something_else_is_refused() -> None:
    store = await checkpoint((offset("output: another", p0=1),), committed=1)
    with pytest.raises(UsageError, match="belongs to a query that does not read output numbers at somewhere"):
        await committed_numbers(store, OF, IDENTITY)


async def test_a_query_has_begun_once_a_micro_batch_is_planned() -> None:
    assert not await has_begun(Store(MemoryStore()))
    assert await has_begun(await checkpoint((offset(p0=5),), committed=0))


async def test_a_corrupt_spark_checkpoint_names_the_file() -> None:
    store = await checkpoint((offset(p0=1),), committed=1)
    await store.put("offsets/0", b"v2\n{}")
    with pytest.raises(CorruptObject, match="offsets/0: has version 'v2'"):
        await committed_numbers(store, OF, IDENTITY)
    await store.delete("offsets/0")
    with pytest.raises(CorruptObject, match="offsets/0: is missing, although its micro-batch is committed"):
        await committed_numbers(store, OF, IDENTITY)

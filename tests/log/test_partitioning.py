"""The partition of a record."""

from __future__ import annotations

from collections import Counter
from enum import Enum
from random import Random

import anyio
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorproc.errors import UsageError
from actorproc.log.key_hash import murmur2, murmur2_many, partition_of_key, partitions_of_keys
from actorproc.produce.producer import Producer
from actorproc.produce.routes import Router
from actorproc.records import RECORD_SCHEMA, Batch
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from tests.log.reading import log_contents

KAFKAS_OWN = {  # org.apache.kafka.common.utils.UtilsTest, as Java ints
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


class Side(int, Enum):
    RIGHT = 1


def unkeyed(count: int) -> pa.RecordBatch:
    return Batch.of("0", [b"x"] * count, range(count)).data


@pytest.mark.parametrize(("key", "java"), KAFKAS_OWN.items())
def test_murmur2_passes_kafkas_own_tests(key: bytes, java: int) -> None:
    assert murmur2(key) == java & 0xFFFFFFFF
    assert murmur2_many(pa.array([key], pa.binary())).tolist() == [java & 0xFFFFFFFF]


@given(st.lists(st.binary(max_size=40)))
def test_hashes_of_many_keys_are_those_of_each_key(keys: list[bytes]) -> None:
    column = pa.array([b"before", *keys], pa.binary()).slice(1)  # an offset, as slices have
    assert murmur2_many(column).tolist() == [murmur2(key) for key in keys]
    assert partitions_of_keys(column, 7).tolist() == [partition_of_key(key, 7) for key in keys]


def test_hashing_many_keys_equals_hashing_each() -> None:
    keys = [b"long" * 300, b"x" * 1025, *(b"%05d" % n for n in range(9000)), b"y" * 1024]
    column = pa.array(keys, pa.binary())
    assert murmur2_many(column).tolist() == [murmur2(key) for key in keys]
    assert partitions_of_keys(column, 7).tolist() == [partition_of_key(key, 7) for key in keys]


def test_keys_spread_evenly() -> None:
    counts = np.bincount(partitions_of_keys(pa.array([b"N%d" % i for i in range(80_000)], pa.binary()), 8)).tolist()
    assert min(counts) > 9_500
    assert max(counts) < 10_500


def test_round_robin_takes_turns_over_calls() -> None:
    router = Router(3, "round-robin", Random(1))
    chosen = [router.choose(None, b"x") for _ in range(4)]
    chosen += router.choose_many(unkeyed(5)).tolist()
    chosen += [router.choose(None, b"x") for _ in range(3)]
    assert chosen == [(chosen[0] + i) % 3 for i in range(12)]


async def test_sticky_stays_with_a_partition_until_its_batch_leaves() -> None:
    router = Router(100, "sticky", Random(1))
    seen = Counter[int]()
    for _ in range(20):
        over = anyio.Event()
        index = router.choose(None, b"x")
        router.stick(index, over)
        assert {router.choose(None, b"x") for _ in range(10)} == {index}
        assert set(router.choose_many(unkeyed(10)).tolist()) == {index}
        seen[index] += 1
        over.set()
    assert len(seen) > 10


def test_keys_and_records_without_keys_mix() -> None:
    keys = [b"a", None, b"b", None]
    data = Batch.of("0", [b"x"] * 4, range(4), keys=keys).data.cast(RECORD_SCHEMA)
    chosen = Router(50, "sticky", Random(1)).choose_many(data).tolist()
    assert (chosen[0], chosen[2]) == (partition_of_key(b"a", 50), partition_of_key(b"b", 50))
    assert chosen[1] == chosen[3]


def test_a_callable_partitioner_must_return_a_valid_partition() -> None:
    router = Router(4, lambda key, value, n: len(value or b"") % n, Random(1))
    assert router.choose(b"key", b"xxx") == 3
    data = Batch.of("0", [b"", b"x", b"xxxxxx"], range(3)).data
    assert router.choose_many(data).tolist() == [0, 1, 2]
    with pytest.raises(UsageError, match="the partitioner returned 4: expected an int from 0 to 3"):
        Router(4, lambda key, value, n: 4, Random(1)).choose(None, b"x")


@pytest.mark.parametrize("said", [True, Side.RIGHT])
async def test_any_integer_type_from_a_callable_names_a_real_partition(said: int) -> None:
    store = Store(MemoryStore())
    async with Producer(store, partitions=2, partitioner=lambda key, value, n: said) as producer:
        assert await (await producer.send("x")) == ("1", 0)
    assert (await log_contents(store))["1"] == [b"x"]

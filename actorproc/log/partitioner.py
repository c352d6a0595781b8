"""Chooses the partition of a record. By key with Kafka's murmur2, so keys go where Kafka's own producers put them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from random import Random
from typing import Literal

import anyio
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from actorproc.errors import UsageError

Partitioner = Callable[[bytes | None, bytes | None, int], int]
"""(key, value, number of partitions) -> index of the partition, from 0."""

Unkeyed = Literal["sticky", "round-robin"]

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF

# Bytes of a key. Hashes of 65,536 short keys (64 MiB) are cached. `murmur2_many` hashes keys that are longer than long
# ones one by one; the others many of one length at once, which takes nine times their bytes of memory.
_SHORT, _LONG = 1024, 64 * 2**10
_BYTES = 4 * 2**20  # hashed at once


class Router:
    """Chooses partitions for one producer.

    Args:
        partitions: partition count.
        partitioner: for records without a key, 'sticky' or 'round-robin'; or a callable that decides for all.
        first: number of the first partition.
    """

    def __init__(self, partitions: int, partitioner: Unkeyed | Partitioner, random: Random, first: int = 0) -> None:
        self._count = partitions
        self._first = first
        self._partitioner = partitioner
        self._random = random
        self._turn = 0
        self._sticky = 0
        self._sticky_over: anyio.Event | None = None

    def stick(self, number: int, until: anyio.Event) -> None:
        """Send records without a key to partition `number` until the event is set."""
        self._sticky, self._sticky_over = number, until

    def choose(self, key: bytes | None, value: bytes | None) -> int:
        """Number of the partition for a record. Raises UsageError if a callable returns an invalid index."""
        if callable(self._partitioner):
            index = self._partitioner(key, value, self._count)
            # str() of True or an enum member is not the name of a partition.
            return self.number(int(index) if isinstance(index, int) else index, "the partitioner returned {}")
        if key is not None:
            return self._first + partition_of_key(key, self._count)
        if self._partitioner == "round-robin":
            self._turn = (self._turn + 1) % self._count
            return self._first + self._turn
        if self._sticky_over is None or self._sticky_over.is_set():
            return self._first + self._random.randrange(self._count)
        return self._sticky

    def choose_many(self, data: pa.RecordBatch) -> npt.NDArray[np.uint32]:
        """`choose` for each record."""
        keys = data.column("key")
        if callable(self._partitioner):
            pairs = zip(keys.to_pylist(), data.column("value").to_pylist(), strict=True)
            return np.array([self.choose(key, value) for key, value in pairs], np.uint32)
        if keys.null_count == 0:
            return self._numbers(partitions_of_keys(keys, self._count))
        chosen = np.empty(len(keys), np.uint32)
        unkeyed = keys.is_null().to_numpy(zero_copy_only=False)
        chosen[~unkeyed] = self._numbers(partitions_of_keys(keys.drop_null(), self._count))
        if self._partitioner == "round-robin":
            turns = self._turn + 1 + np.arange(keys.null_count)
            chosen[unkeyed] = self._first + turns % self._count
            self._turn = int(turns[-1]) % self._count
        else:
            chosen[unkeyed] = self.choose(None, None)
        return chosen

    def number(self, index: object, what: str = "partition = {}") -> int:
        """Number of the partition with this index. Raises UsageError, which names `what`, if it is not valid."""
        if type(index) is int and 0 <= index < self._count:
            return self._first + index
        raise UsageError(f"{what.format(repr(index))}: expected an int from 0 to {self._count - 1}")

    def _numbers(self, indices: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        return indices + np.uint32(self._first) if self._first else indices


def murmur2(key: bytes) -> int:
    """Kafka's hash of a key, unsigned, 32 bits.

    Source: MurmurHash2 by Austin Appleby, as org.apache.kafka.common.utils.Utils.murmur2 has it.
    """
    length = len(key)
    tail = length & ~3
    h = _SEED ^ length
    for i in range(0, tail, 4):
        k = int.from_bytes(key[i : i + 4], "little") * _M & _MASK
        h = h * _M & _MASK ^ (k ^ k >> 24) * _M & _MASK
    if length != tail:
        h = (h ^ int.from_bytes(key[tail:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


_cached = lru_cache(maxsize=65_536)(murmur2)


def partition_of_key(key: bytes, partitions: int) -> int:
    """Index of the partition for `key`."""
    number = _cached(key) if len(key) <= _SHORT else murmur2(key)
    return (number & 0x7FFFFFFF) % partitions


def partitions_of_keys(keys: pa.BinaryArray, partitions: int) -> npt.NDArray[np.uint32]:
    """Index of the partition for each key; keys are not null. Each distinct key is hashed once, many at a time."""
    encoded = keys.dictionary_encode()
    hashes = murmur2_many(encoded.dictionary)
    chosen = (hashes & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)
    return chosen[encoded.indices.to_numpy()]  # type: ignore[no-any-return]


def murmur2_many(keys: pa.BinaryArray) -> npt.NDArray[np.uint32]:
    """`murmur2` of each key. Keys of one length are hashed together, word by word."""
    _, offsets_buffer, data_buffer = keys.buffers()
    hashes = np.empty(len(keys), np.uint32)
    if not len(keys):
        return hashes
    offsets = np.frombuffer(offsets_buffer, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    data = np.frombuffer(data_buffer or b"", np.uint8)
    lengths = np.diff(offsets)
    for length in np.unique(lengths):
        same = np.flatnonzero(lengths == length)
        if length > _LONG:
            hashes[same] = [murmur2(data[at : at + length].tobytes()) for at in offsets[same].tolist()]
            continue
        at_once = _BYTES // max(1, int(length))
        for some in np.split(same, range(at_once, len(same), at_once)):
            hashes[some] = _hash_rows(data[offsets[some][:, None] + np.arange(length)])
    return hashes


def _hash_rows(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """`murmur2` of each row. NumPy's uint32 wraps around as Java's int does."""
    count, length = rows.shape
    m = np.uint32(_M)
    h = np.full(count, _SEED ^ length, np.uint32)
    words = length // 4
    for k in np.ascontiguousarray(rows[:, : words * 4]).view("<u4").T:
        k = k * m  # noqa: PLW2901  # the word, mixed
        h = h * m ^ (k ^ k >> np.uint32(24)) * m
    if length % 4:
        last = np.zeros((count, 4), np.uint8)
        last[:, : length % 4] = rows[:, words * 4 :]
        h = (h ^ last.view("<u4")[:, 0]) * m
    h = (h ^ h >> np.uint32(13)) * m
    return h ^ h >> np.uint32(15)

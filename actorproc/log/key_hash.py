"""The partition of a key: by Kafka's murmur2, so keys go where Kafka's own producers put them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF

# Bytes of a key. Hashes of 65,536 short keys (64 MiB) are cached. `murmur2_many` hashes keys that are longer than long
# ones one by one; the others many of one length at once, which takes nine times their bytes of memory.
_SHORT, _LONG = 1024, 64 * 2**10
_BYTES = 4 * 2**20  # hashed at once


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

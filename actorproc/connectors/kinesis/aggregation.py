"""Takes apart records into which the Kinesis Producer Library (KPL) has put several.

https://github.com/awslabs/amazon-kinesis-producer/blob/master/aggregation-format.md
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import md5
from typing import NamedTuple

_MAGIC = b"\xf3\x89\x9a\xc2"
_DIGEST = 16  # bytes of the MD5 at the end
_VARINT, _BYTES = 0, 2  # wire types of Protocol Buffers
_LONGEST = 10  # bytes of a number of 64 bits
_MOST_GROWTH = 64
"""Bytes of the records in one, with their keys, for each of its bytes: a key is stored once for all its records, so a
forged one could stand for gigabytes. Those of the KPL have some 50 at most: the longest keys, and no values."""


class TooLarge(Exception):
    """The records in an aggregated one are much larger than itself."""


class HashRange(NamedTuple):
    """Hashes of the partition keys of a shard, both ends included."""

    low: int
    high: int

    def has(self, key: bytes) -> bool:
        """Whether records of this partition key are in the shard, unless a producer gives an ExplicitHashKey."""
        return self.low <= _hash(key) <= self.high


class UserRecord(NamedTuple):
    """A record that a program gave to the KPL. `place`: its number within the aggregated one."""

    place: int
    key: bytes
    value: bytes


def user_records(data: bytes, hashes: HashRange) -> list[UserRecord] | None:
    """The records in an aggregated one; None if it is not aggregated.

    The KPL guesses the shard of each record. A guess that a split has made wrong puts a record of another shard among
    these; the KPL then sends it again. So records whose hash is not in `hashes` are left out, as the Kinesis Client
    Library does. One that is malformed counts as not aggregated, as it does there.

    Raises:
        TooLarge: a few bytes would take much memory.
    """
    if not data.startswith(_MAGIC):
        return None
    body, digest = data[len(_MAGIC) : -_DIGEST], data[-_DIGEST:]
    if md5(body, usedforsecurity=False).digest() != digest:
        return None
    try:
        return list(_records(body, hashes))
    except (ValueError, LookupError):
        return None


def _records(body: bytes, hashes: HashRange) -> Iterator[UserRecord]:
    keys, hash_keys, records = list[bytes](), list[bytes](), list[bytes]()
    tables = {1: keys, 2: hash_keys, 3: records}
    for field, value in _fields(body):
        if field in tables and isinstance(value, bytes):
            tables[field].append(value)
    hashed = [_hash(key) for key in keys]
    explicit = [int(key) for key in hash_keys]
    nbytes, most = 0, _MOST_GROWTH * len(body)
    for index, record in enumerate(records):
        found = dict(_fields(record))
        key, explicit_key, value = int(found[1]), found.get(2), found[3]
        nbytes += len(record) + len(keys[key])
        if nbytes > most:
            raise TooLarge(f"the records in it, with their keys, take more than {_MOST_GROWTH} times its bytes")
        if hashes.low <= (hashed[key] if explicit_key is None else explicit[int(explicit_key)]) <= hashes.high:
            yield UserRecord(index, keys[key], value if isinstance(value, bytes) else b"")


def _hash(key: bytes) -> int:
    return int.from_bytes(md5(key, usedforsecurity=False).digest())


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of a message's fields. Raises ValueError or IndexError: it is malformed."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        value, at = _varint(message, at)
        if tag & 7 == _VARINT:
            yield tag >> 3, value
        elif tag & 7 == _BYTES and at + value <= len(message):
            yield tag >> 3, message[at : at + value]
            at += value
        else:
            raise ValueError(f"wire type {tag & 7}")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends. Raises ValueError: it is too long, and would take ever more time."""
    byte = message[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while byte >= 0x80:
        if shift >= 7 * _LONGEST:
            raise ValueError("a number of more than 64 bits")
        at += 1
        byte = message[at]
        value |= (byte & 0x7F) << shift
        shift += 7
    return value, at + 1

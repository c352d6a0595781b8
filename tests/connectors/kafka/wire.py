"""Writes records to a Kafka broker as bytes of its protocol: records that no client would write."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from typing import NamedTuple

_PRODUCE, _VERSION = 0, 3
_NOT_YET = (3, 6)  # a new topic has no leader yet
_TABLE: list[int] = []


class WireRecord(NamedTuple):
    """A record as bytes. `headers`: names and values, both any bytes."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[bytes, bytes | None]] = ()
    timestamp: int = 0


def produce(address: str, topic: str, partition: int, records: Sequence[WireRecord]) -> None:
    """Append the records as one batch, and wait for the broker's answer."""
    batch = _batch(records)
    body = struct.pack(">hhi", -1, 1, 10_000)  # no transaction; the leader confirms; milliseconds
    body += struct.pack(">i", 1) + _text(topic) + struct.pack(">iii", 1, partition, len(batch)) + batch
    request = struct.pack(">hhi", _PRODUCE, _VERSION, 1) + _text("tests") + body
    end = time.monotonic() + 10
    while (error := _asked(address, request, len(topic))) in _NOT_YET and time.monotonic() < end:
        time.sleep(0.05)
    if error:
        raise RuntimeError(f"the broker refuses the records: error {error}")


def _asked(address: str, request: bytes, name: int) -> int:
    """The error of the broker's answer; 0: it has the records."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as stream:
            answer = stream.read(struct.unpack(">i", stream.read(4))[0])
    at = 4 + 4 + 2 + name + 4 + 4  # correlation, topics, its name, partitions, the number
    [error] = struct.unpack_from(">h", answer, at)
    return int(error)


def _batch(records: Sequence[WireRecord]) -> bytes:
    first, most = records[0].timestamp, max(record.timestamp for record in records)
    head = struct.pack(">hiqqqhii", 0, len(records) - 1, first, most, -1, -1, -1, len(records))
    body = head + b"".join(_record(n, record, first) for n, record in enumerate(records))
    return struct.pack(">qiibI", 0, 4 + 1 + 4 + len(body), -1, 2, _crc32c(body)) + body


def _record(number: int, record: WireRecord, first: int) -> bytes:
    body = b"\0" + _varint(record.timestamp - first) + _varint(number) + _bytes(record.key) + _bytes(record.value)
    body += _varint(len(record.headers)) + b"".join(_bytes(name) + _bytes(value) for name, value in record.headers)
    return _varint(len(body)) + body


def _bytes(value: bytes | None) -> bytes:
    return _varint(-1) if value is None else _varint(len(value)) + value


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def _varint(number: int) -> bytes:
    zigzag = (number << 1) ^ (number >> 63)
    zigzag &= 2**64 - 1
    found = bytearray()
    while zigzag > 0x7F:
        found.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*found, zigzag])


def _crc32c(data: bytes) -> int:
    if not _TABLE:
        for byte in range(256):
            code = byte
            for _ in range(8):
                code = code >> 1 ^ (0x82F63B78 if code & 1 else 0)
            _TABLE.append(code)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF

"""Cuts records into requests that PutRecords takes.

https://docs.aws.amazon.com/kinesis/latest/APIReference/API_PutRecords.html
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from actorproc.records import Batch

_RECORDS = 500
_KEY = 256  # characters of a key
_BYTES = 4 * 2**20
"""Of keys and values; AWS allows 5 MiB. A record that is larger alone gets a request of its own."""


class Put(NamedTuple):
    """A record to put.

    Attributes:
        number: of the record in its batch.
        key: the partition key.
    """

    number: int
    key: str
    value: bytes


def put_requests(records: Batch) -> Iterator[list[Put]]:
    """The records, in order, in lists of which each fits into one request."""
    request, size = list[Put](), 0
    for number, record in enumerate(records):
        key, value = record.key or b"", record.value or b""
        if request and (len(request) == _RECORDS or size + len(key) + len(value) > _BYTES):
            yield request
            request, size = [], 0
        request.append(Put(number, _partition_key(key), value))
        size += len(key) + len(value)
    if request:
        yield request


def _partition_key(key: bytes) -> str:
    """A text of 1 to 256 characters: bytes that are not UTF-8 are escaped, and no key becomes `-`."""
    return key.decode(errors="backslashreplace")[:_KEY] or "-"

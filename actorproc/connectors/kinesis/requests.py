"""Cuts records into requests that PutRecords takes.

https://docs.aws.amazon.com/kinesis/latest/APIReference/API_PutRecords.html
"""

from __future__ import annotations

from collections.abc import Iterator

from actorproc.records import Batch

_RECORDS = 500
_KEY = 256  # characters of a key
_BYTES = 4 * 2**20
"""Of keys and values; AWS allows 5 MiB. A record that is larger alone gets a request of its own."""


def put_requests(records: Batch) -> Iterator[list[tuple[str, bytes]]]:
    """Partition key and value of each record, in order, in lists of which each fits into one request."""
    request, size = list[tuple[str, bytes]](), 0
    for record in records:
        key, value = record.key or b"", record.value or b""
        if request and (len(request) == _RECORDS or size + len(key) + len(value) > _BYTES):
            yield request
            request, size = [], 0
        request.append((_partition_key(key), value))
        size += len(key) + len(value)
    if request:
        yield request


def _partition_key(key: bytes) -> str:
    """A text of 1 to 256 characters: bytes that are not UTF-8 are escaped, and no key becomes `-`."""
    return key.decode(errors="backslashreplace")[:_KEY] or "-"

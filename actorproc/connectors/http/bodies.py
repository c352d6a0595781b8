"""Rows of a commit as bodies of requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from actorproc.connectors.http.options import HttpOptions
from actorproc.rows.json_values import rows_to_json

CONTENT_TYPES = {"array": "application/json", "row": "application/json", "lines": "application/x-ndjson"}


class Part(NamedTuple):
    """Rows `first` to `stop` of a commit."""

    first: int
    stop: int
    body: bytes


def parts_of(rows: pa.Table, partition: str, options: HttpOptions) -> list[Part]:
    """The rows in as many requests as the limits ask for, in order. CPU-heavy.

    Nulls are left out: so a commit has the same bodies before and after a column was added to the output, and a request
    that is repeated by a host of a later version is the same under its key.
    """
    origin = pa.repeat(pa.scalar(partition, pa.string()), rows.num_rows)
    rows = rows.append_column("_partition", origin).combine_chunks()
    lines = [line for batch in rows.to_batches() for line in rows_to_json(batch, nulls=False).to_pylist()]
    return [
        Part(first, stop, _body(lines[first:stop], options.body))
        for first, stop in _cut([len(line) + 2 for line in lines], options)
    ]


def _cut(sizes: list[int], options: HttpOptions) -> Iterator[tuple[int, int]]:
    most = 1 if options.body == "row" else options.request_rows
    first, total = 0, 0
    for at, size in enumerate(sizes):
        if at > first and (at - first == most or total + size > options.request_bytes):
            yield first, at
            first, total = at, 0
        total += size
    if first < len(sizes):
        yield first, len(sizes)


def _body(lines: list[bytes], body: str) -> bytes:
    if body == "array":
        return b"[" + b",\n".join(lines) + b"]"
    return lines[0] if body == "row" else b"".join(line + b"\n" for line in lines)

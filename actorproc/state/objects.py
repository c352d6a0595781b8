"""State objects: changed keys with their values as a Parquet file."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from actorproc.errors import RESTORE, CorruptObject
from actorproc.storage.document import Document
from actorproc.storage.parquet import footer_from, open_parquet, write_parquet

_SCHEMA = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary()),
        pa.field("expires", pa.float64()),
    ]
)
"""`name`: of the state. `key` and `value`: msgpack; a null value says that the key was deleted. `expires`: seconds
since 1970; the key is gone once a commit of the partition has that time."""

_HEAD = "actorproc.state"


class _Head(Document, frozen=True):
    """The footer of a state object. The checksum covers the parts outside of pages; Parquet's own cover pages."""

    checksum: int | None = None


@dataclass(slots=True)
class Entries:
    """Keys of one named state, each once, with their values."""

    keys: list[bytes] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    """None: the key was deleted."""
    expires: dict[bytes, float] = field(default_factory=dict)
    """Of the keys that have a time to live: seconds since 1970."""

    @property
    def size(self) -> int:
        return sum(map(len, self.keys)) + sum(len(value) for value in self.values if value is not None)


StateEntries = Mapping[str, Entries]
"""By the name of the state."""


def encode_state(entries: StateEntries) -> bytes:
    """A state object. CPU-heavy: run it off the loop."""
    entries = {name: some for name, some in entries.items() if some.keys}
    tables = [_table(name, some) for name, some in entries.items()]
    table = pa.concat_tables(tables) if tables else _SCHEMA.empty_table()
    head = _Head(checksum=_checksum(entries)).to_json().decode()
    return write_parquet(table, {_HEAD: head}, use_dictionary=["name"], write_statistics=["name"])


def _table(name: str, entries: Entries) -> pa.Table:
    keys = entries.keys
    if (expires := entries.expires) and len(expires) > 0:
        times = pa.array([expires.get(key) for key in keys], pa.float64())
    else:
        times = pa.nulls(len(keys), pa.float64())
    columns = [pa.repeat(name, len(keys)), pa.array(keys, pa.binary()), pa.array(entries.values, pa.binary()), times]
    return pa.Table.from_arrays([_chunked(column) for column in columns], schema=_SCHEMA)


def _chunked(column: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])


def decode_state(key: str, body: bytes) -> StateEntries:
    """The entries of a state object. CPU-heavy: run it off the loop.

    Raises:
        CorruptObject: it is corrupt, or newer than this actorproc.
    """
    try:
        file = open_parquet(body)
        footer = footer_from(key, file.metadata)
        head = _Head.from_json(key, footer.metadata.get(_HEAD, ""))
        table = file.read().cast(_SCHEMA)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptObject.unreadable(key, error) from None
    entries = dict(_by_name(table))
    if head.checksum != _checksum(entries):
        raise CorruptObject(key, f"does not hold what was written: its checksum differs; {RESTORE}")
    return entries


def _checksum(entries: StateEntries) -> int:
    """CRC-32 of names, keys, values and times."""
    found = 0
    for name, some in sorted(entries.items()):
        sizes = [-1 if value is None else len(value) for value in some.values]
        times = [some.expires.get(key, 0.0) for key in some.keys] if some.expires else []
        for part in (
            name.encode(), np.array(list(map(len, some.keys)), np.int64).tobytes(), b"".join(some.keys),
            np.array(sizes, np.int64).tobytes(), b"".join(filter(None, some.values)), np.array(times).tobytes(),
        ):  # fmt: skip
            found = zlib.crc32(part, found)
    return found


def _by_name(table: pa.Table) -> Iterator[tuple[str, Entries]]:
    names = pc.unique(table["name"]).to_pylist()
    for name in names:
        some = table if len(names) == 1 else table.filter(pc.equal(table["name"], name))
        keys: list[bytes] = column_values(some["key"])
        values: list[bytes | None] = column_values(some["value"])
        yield name, Entries(keys, values, _times(keys, some["expires"]))


def _times(keys: list[bytes], column: pa.ChunkedArray) -> dict[bytes, float]:
    if column.null_count == len(column):
        return {}
    return {key: time for key, time in zip(keys, column.to_pylist(), strict=True) if time is not None}


def column_values(column: pa.ChunkedArray) -> list[Any]:
    """The items of a binary column. Through NumPy, which is about twice as fast as `to_pylist`."""
    return column.to_numpy().tolist()  # type: ignore[no-any-return]

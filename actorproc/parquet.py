"""Parquet files whose footer carries our own metadata, and reading that footer without the rest of the file."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from actorproc.errors import CorruptObject
from actorproc.store import Store

TAIL = 64 * 2**10
"""Bytes fetched at first for a footer: all of most small files, and the footer of nearly every other."""

_MAGIC = b"PAR1"


@dataclass(frozen=True, slots=True)
class Footer:
    """What a file says of itself. `metadata`: our keys as text; `rows`: how many it holds; `tag` and `size` of the object."""

    metadata: dict[str, str]
    rows: int
    tag: str
    size: int


def write_parquet(
    table: pa.Table, metadata: dict[str, str], *, row_group_rows: int | None = None, **options: Any
) -> bytes:
    """The file as bytes. `options` go to `pyarrow.parquet.ParquetWriter`."""
    sink = io.BytesIO()
    # store_schema would repeat the schema in Arrow's own format in each file; Parquet's types say all that ours need.
    with pq.ParquetWriter(sink, table.schema, **{"compression": "zstd", "store_schema": False, **options}) as writer:
        if table.num_rows:
            writer.write_table(table, row_group_size=row_group_rows)
        writer.add_key_value_metadata(metadata)
    return sink.getvalue()


def parse_footer(key: str, tail: bytes, *, tag: str, size: int) -> Footer | int:
    """The footer in the last bytes of a file, or how many last bytes it takes.

    Raises:
        CorruptObject: the file is no whole Parquet file.
    """
    if size < 12 or tail[-4:] != _MAGIC:
        raise CorruptObject(key, f"no whole Parquet file ({size} bytes, and it does not end as one)")
    needed = int.from_bytes(tail[-8:-4], "little") + 8
    if needed > size - 4:
        raise CorruptObject(key, f"its footer claims {needed} bytes of {size}")
    if needed > len(tail):
        return needed
    try:  # a file of nothing but the footer is enough to read the footer
        parsed = pq.ParquetFile(pa.BufferReader(_MAGIC + tail[-needed:]), thrift_string_size_limit=2**31 - 1).metadata
        metadata = {k.decode(): v.decode() for k, v in (parsed.metadata or {}).items()}
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorruptObject(key, f"its Parquet footer cannot be read: {error}") from None
    return Footer(metadata, parsed.num_rows, tag, size)


async def read_footer(store: Store, key: str) -> Footer | None:
    """The footer of the object, or None if there is no such object.

    Raises:
        CorruptObject: it is no whole Parquet file.
    """
    length = TAIL
    while True:
        stored = await store.get(key, tail=length)
        if stored is None:
            return None
        footer = parse_footer(key, stored.body, tag=stored.tag, size=stored.size)
        if isinstance(footer, Footer):
            return footer
        length = footer

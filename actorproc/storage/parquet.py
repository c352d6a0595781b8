"""Parquet files whose footer carries our own metadata, and reading that footer without the rest of the file."""

from __future__ import annotations

import io
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from actorproc.errors import RESTORE, CorruptObject
from actorproc.storage.store import Store

TAIL = 64 * 2**10
"""Bytes fetched at first for a footer: all of most small files, and the footer of nearly every other."""

_BLOCK = 4096
"""Tables up to so many bytes are not compressed: starting zstd costs more than it saves."""

_MAGIC = b"PAR1"

_OURS = "actorproc."
_CHECKSUM = f"{_OURS}crc32"

# store_schema would repeat the schema in Arrow's own format in each file; Parquet's types say all that ours need.
_ALWAYS = {"compression": "zstd", "store_schema": False, "write_page_checksum": True}


class Footer(NamedTuple):
    """The footer of a Parquet file. `metadata`: our entries. `rows`: row count. `tag` and `size` of the object."""

    metadata: dict[str, str]
    rows: int
    tag: str
    size: int


def write_parquet(
    table: pa.Table, metadata: dict[str, str], *, row_group_rows: int | None = None, **options: Any
) -> bytes:
    """Encode a file. `options` are for `pyarrow.parquet.ParquetWriter`; `use_dictionary` must be a list of columns."""
    if table.nbytes <= _BLOCK:
        options["compression"] = "none"
    sink = io.BytesIO()
    with open_writer(sink, table.schema, growing_columns(table), repeating_floats(table), **options) as writer:
        if table.num_rows:
            writer.write_table(table, row_group_size=row_group_rows)
        writer.add_key_value_metadata(sealed(metadata))
    return sink.getvalue()


def sealed(metadata: Mapping[str, str]) -> dict[str, str]:
    """Footer entries with a checksum, because Parquet has checksums for pages only."""
    return {**metadata, _CHECKSUM: _checksum(metadata)} if metadata else {}


def _checksum(metadata: Mapping[str, str]) -> str:
    """Checksum of our entries. Other tools that rewrite a file may add entries."""
    text = "\0".join(f"{name}\0{metadata[name]}" for name in sorted(metadata) if name.startswith(_OURS))
    return f"{zlib.crc32(text.encode()):08x}"


def encoding_cost(table: pa.Table) -> int:
    """The encoding time, as bytes of a single column: each column and each chunk adds to it."""
    pieces: int = sum(column.num_chunks for column in table.columns)
    rough = 512 * table.num_columns + 128 * pieces
    return int(rough + table.nbytes) if pieces < 256 else rough  # adding up the bytes of many chunks takes long, too


def open_writer(
    sink: io.BytesIO, schema: pa.Schema, growing: Sequence[str], floats: Sequence[str] = (), **options: Any
) -> pq.ParquetWriter:
    """A writer with our encodings: `growing` columns as differences, others with a dictionary, of floats only `floats`.

    `options`: as for `write_parquet`.
    """
    leaves = _leaves(schema)
    paths = [path for path, _ in leaves]
    # Spark skips row groups by bounds and dictionaries. Arrow's bounds omit NaN, which is the largest number to Spark,
    # and Spark does not find 0.0 in a dictionary with -0.0, although they are equal.
    bounded = [path for path, kind in leaves if kind not in ("FLOAT", "DOUBLE")]
    once = [path for path in paths if paths.count(path) == 1]  # `a.b` may be a column, and a field of the column a
    growing = [path for path in growing if path in once]
    repeating = options.pop("use_dictionary", bounded + [path for path in floats if path in once])
    encodings = {
        "use_dictionary": [path for path in repeating if path not in growing],
        "column_encoding": dict.fromkeys(growing, "DELTA_BINARY_PACKED"),
    }
    options.setdefault("write_statistics", bounded)
    return pq.ParquetWriter(sink, schema, **{**_ALWAYS, **options, **encodings})


def open_parquet(body: bytes, *, dictionaries: bool = False) -> pq.ParquetFile:
    """Open a whole file; page checksums are verified on reading. Raises pa.ArrowException or OSError.

    Args:
        dictionaries: read repeating texts as dictionary arrays, which takes a quarter of the time.
    """
    # Dead letters in a footer may exceed the default limit of Parquet readers.
    checked = {"thrift_string_size_limit": 2**31 - 1, "page_checksum_verification": True}
    try:
        file = pq.ParquetFile(pa.BufferReader(body), **checked)
    except UnicodeDecodeError as error:  # of a column's name
        raise pa.ArrowInvalid(str(error)) from None
    if not dictionaries or not (repeating := _repeating(file.metadata)):
        return file
    return pq.ParquetFile(pa.BufferReader(body), metadata=file.metadata, read_dictionary=repeating, **checked)


def rows_within(file: pq.ParquetFile, body: bytes, group: int, size: int) -> int:
    """How many rows of a row group of this file can be decoded at once in `size` bytes; at least one.

    A dictionary is stored once and decoded for each row that refers to it. So 66 KB can unpack to gigabytes.
    """
    row_group = file.metadata.row_group(group)
    columns = [row_group.column(index) for index in range(row_group.num_columns)]
    texts = [column for column in columns if column.physical_type == "BYTE_ARRAY" and column.has_dictionary_page]
    each = row_group.total_byte_size / max(1, row_group.num_rows)
    longest = sum(text.total_uncompressed_size for text in texts)  # a text may be as long as its whole dictionary
    if texts and (each + longest) * row_group.num_rows > size and all("." not in t.path_in_schema for t in texts):
        longest = _longest(file.metadata, body, group, [text.path_in_schema for text in texts])
    return max(1, min(int(row_group.num_rows), int(size / max(1.0, each + longest))))


def _longest(metadata: pq.FileMetaData, body: bytes, group: int, columns: list[str]) -> int:
    """Bytes of the longest text in the dictionary of each column, added up. Decodes the dictionaries and one row."""
    file = pq.ParquetFile(pa.BufferReader(body), metadata=metadata, read_dictionary=columns)
    row = next(file.iter_batches(1, row_groups=[group], columns=columns, use_threads=False))
    return sum(pc.max(pc.binary_length(column.dictionary)).as_py() or 0 for column in row.columns)


def _repeating(metadata: pq.FileMetaData) -> list[str]:
    """Text columns that are completely dictionary-encoded. If a dictionary grew too large, the rest is plain, with
    four bytes or more per value, and building a dictionary for it would take five times as long as reading it."""
    stored: dict[str, list[int]] = {}
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            column = metadata.row_group(group).column(index)
            if column.physical_type == "BYTE_ARRAY" and "." not in column.path_in_schema:  # not in a list or struct
                size, values = stored.setdefault(column.path_in_schema, [0, 0])
                stored[column.path_in_schema] = [size + column.total_uncompressed_size, values + column.num_values]
    return [path for path, (size, values) in stored.items() if size < 4 * values]


def growing_columns(table: pa.Table) -> list[str]:
    """Integer and time columns that never decrease. Their differences take a fraction of the space, and of the time
    that building a dictionary takes."""
    return [
        field.name
        for field, column in zip(table.schema, table.columns, strict=True)
        if (pt.is_integer(field.type) or pt.is_timestamp(field.type)) and not column.null_count and _never_falls(column)
    ]


def repeating_floats(table: pa.Table) -> list[str]:
    """Float columns without -0.0, which may have a dictionary."""
    return [
        field.name
        for field, column in zip(table.schema, table.columns, strict=True)
        if field.type in (pa.float32(), pa.float64()) and not any(map(_has_minus_zero, column.chunks))
    ]


def _has_minus_zero(array: pa.Array) -> bool:
    """-0.0 has only the sign bit set, as the least integer of that width."""
    whole = pa.int32() if pt.is_float32(array.type) else pa.int64()
    return bool(pc.min(array.view(whole)).as_py() == -(2 ** (whole.bit_width - 1)))


def _never_falls(column: pa.ChunkedArray) -> bool:
    values = column.cast(pa.int64()).to_numpy()
    return bool(np.all(values[1:] >= values[:-1]))


@lru_cache(maxsize=64)
def _leaves(schema: pa.Schema) -> tuple[tuple[str, str], ...]:
    """Path and physical type of each Parquet column of the schema."""
    sink = io.BytesIO()
    pq.write_table(schema.empty_table(), sink)
    leaves = pq.ParquetFile(sink).schema
    columns = (leaves.column(index) for index in range(len(leaves.names)))
    return tuple((column.path, column.physical_type) for column in columns)


def parse_footer(key: str, tail: bytes, *, tag: str, size: int) -> Footer | int:
    """Parse the footer in the last bytes of a file; or return the number of last bytes that the footer takes.

    Raises:
        CorruptObject: this is not a whole Parquet file, or its footer is damaged.
    """
    parsed = parse_metadata(key, tail, size=size)
    return parsed if isinstance(parsed, int) else footer_from(key, parsed, tag=tag, size=size)


def parse_metadata(key: str, tail: bytes, *, size: int) -> pq.FileMetaData | int:
    """As `parse_footer`, with what Parquet says of the columns. Our entries are not checked."""
    if size < 12 or tail[-4:] != _MAGIC:
        raise CorruptObject(key, f"no whole Parquet file ({size} bytes, and it does not end as one); {RESTORE}")
    needed = int.from_bytes(tail[-8:-4], "little") + 8
    if needed > size - 4:
        raise CorruptObject(key, f"its footer claims {needed} bytes of {size}; {RESTORE}")
    if needed > len(tail):
        return needed
    try:  # a file of nothing but the footer is enough to read the footer
        return pq.ParquetFile(pa.BufferReader(_MAGIC + tail[-needed:]), thrift_string_size_limit=2**31 - 1).metadata
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last of a column's name
        raise CorruptObject(key, f"its Parquet footer cannot be read ({error}); {RESTORE}") from None


def footer_from(key: str, parsed: pq.FileMetaData, *, tag: str = "", size: int = 0) -> Footer:
    """The footer from Parquet metadata, with the checksum of our entries verified.

    Raises:
        CorruptObject: the checksum is wrong.
    """
    try:
        metadata = {name.decode(): value.decode() for name, value in (parsed.metadata or {}).items()}
    except UnicodeDecodeError as error:
        raise CorruptObject(key, f"its Parquet footer cannot be read ({error}); {RESTORE}") from None
    checksum = metadata.pop(_CHECKSUM, None)
    if any(name.startswith(_OURS) for name in metadata) and checksum != _checksum(metadata):
        raise CorruptObject(key, f"its Parquet footer is damaged: the checksum of its entries is wrong; {RESTORE}")
    return Footer(metadata, parsed.num_rows, tag, size)


def footer_of(key: str, body: bytes) -> Footer:
    """The footer of a whole file. Raises CorruptObject if this is not one."""
    return cast(Footer, parse_footer(key, body, tag="", size=len(body)))  # no number, because all bytes are given


async def read_footer(store: Store, key: str) -> Footer | None:
    """The footer of the object; None if it does not exist.

    Raises:
        CorruptObject: it is not a whole Parquet file.
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

"""Reads the committed rows of a processor."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pyarrow as pa

from actorproc.errors import CorruptObject
from actorproc.output.row_reader import FileSlice, all_slices, newest_slices, read_rows
from actorproc.output.schema_document import read_schema
from actorproc.records import SEQUENCE
from actorproc.rows.json_values import plain_rows
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store


async def output_rows(
    store: Store, layout: ProcessorLayout, partitions: Sequence[str], limit: int | None = None
) -> tuple[list[str], AsyncIterator[dict[str, Any]]]:
    """Columns, and the rows of these partitions by sequence, which are read while they are iterated.

    Each row has all columns: a column added later is null in earlier rows.

    Args:
        limit: only so many rows, those committed last. Only the files that hold them are read.
    """
    schema = await read_schema(store, layout)
    columns = ["_partition", SEQUENCE.name, *(schema.names if schema is not None else ())]
    return columns, _rows(store, _pieces(store, layout, partitions, limit), columns)


async def _pieces(
    store: Store, layout: ProcessorLayout, partitions: Sequence[str], limit: int | None
) -> AsyncIterator[FileSlice]:
    if limit is None:
        async for piece in all_slices(store, layout, partitions):
            yield piece
    else:
        for piece in await newest_slices(store, layout, partitions, limit):
            yield piece


async def _rows(
    store: Store, pieces: AsyncIterator[FileSlice], columns: Sequence[str]
) -> AsyncIterator[dict[str, Any]]:
    missing = dict.fromkeys(columns)
    async for piece in pieces:
        async for batch in read_rows(store, piece):
            for row in _plain(piece, batch):
                yield missing | {"_partition": piece.partition} | row


def _plain(piece: FileSlice, batch: pa.RecordBatch) -> list[dict[str, Any]]:
    try:
        return plain_rows(batch)
    except ValueError as error:  # text that is not UTF-8
        raise CorruptObject.unreadable(piece.file.key, error) from None

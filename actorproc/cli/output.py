"""`actorproc output`: shows committed rows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from actorproc.cli.common import chosen_partitions, opened_processor, print_json, print_table, run_async
from actorproc.errors import CorruptObject
from actorproc.output.dataset import Piece, newest_pieces, output_pieces, read_rows
from actorproc.output.schema import read_schema
from actorproc.records import SEQUENCE
from actorproc.rows.json_values import plain_rows
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store


def run(
    name: str,
    container: str,
    tail: int | None,
    partition: str | None,
    as_json: bool,
    config: Path | None,
    given: Sequence[str] | None,
) -> None:
    """Print the rows."""

    async def work() -> None:
        async with opened_processor(name, container, config, given) as (store, layout, _):
            partitions = await chosen_partitions(store, layout, partition)
            schema = await read_schema(store, layout)
            columns = ["_partition", SEQUENCE.name, *(schema.names if schema is not None else ())]
            rows = _rows(store, _pieces(store, layout, partitions, tail), columns)
            if as_json:
                async for row in rows:
                    print_json(row)
                return
            await print_table(
                columns, ([row[column] for column in columns] async for row in rows), empty="no rows", cut=columns[2:]
            )

    run_async(work)


async def _pieces(
    store: Store, layout: ProcessorLayout, partitions: Sequence[str], tail: int | None
) -> AsyncIterator[Piece]:
    if tail is None:
        async for piece in output_pieces(store, layout, partitions):
            yield piece
    else:
        for piece in await newest_pieces(store, layout, partitions, tail):
            yield piece


async def _rows(store: Store, pieces: AsyncIterator[Piece], columns: Sequence[str]) -> AsyncIterator[dict[str, Any]]:
    """Each with all `columns`: files that were written before one was added do not have it."""
    missing = dict.fromkeys(columns)
    async for piece in pieces:
        async for batch in read_rows(store, piece):
            for row in _plain(piece, batch):
                yield missing | {"_partition": piece.partition} | row


def _plain(piece: Piece, batch: pa.RecordBatch) -> list[dict[str, Any]]:
    try:
        return plain_rows(batch)
    except ValueError as error:  # text that is none
        raise CorruptObject.unreadable(piece.file.key, error) from None

"""Reads the committed rows of a processor without Spark: all by partition and sequence, or the newest."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from actorproc.errors import CorruptObject
from actorproc.output.compacted_file import RowRange, batches_of, rows_of_commits
from actorproc.output.output_files import OutputFiles
from actorproc.storage.listing import DataFile, documents
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.parquet import footer_from, open_parquet, read_footer
from actorproc.storage.store import Store

_ROWS = 10_000
"""Maximal rows of a batch."""


class FileSlice(NamedTuple):
    """The rows of an output file after the first `skip`. `where` finds the file again if it was compacted meanwhile."""

    partition: str
    file: DataFile
    where: OutputFiles
    skip: int = 0


async def all_slices(store: Store, layout: ProcessorLayout, partitions: Sequence[str]) -> AsyncIterator[FileSlice]:
    """All files, by partition and number."""
    where = OutputFiles(layout)
    for partition in partitions:
        for file in (await where.files(store, {partition: 0}))[partition]:
            yield FileSlice(partition, file, where)


async def newest_slices(store: Store, layout: ProcessorLayout, partitions: Sequence[str], rows: int) -> list[FileSlice]:
    """The files with the last `rows` committed rows, by partition and number.

    Files are ordered by the store's own times. Files that are not needed are listed, but not read.
    """
    where = OutputFiles(layout)
    listed = await where.files(store, dict.fromkeys(partitions, 0))
    candidates = []
    for rank, partition in enumerate(partitions):
        # A store's clock may step back, but within a partition times follow the numbers.
        times = accumulate((file.time for file in listed[partition]), max)
        candidates += [(time, rank, file) for time, file in zip(times, listed[partition], strict=True)]
    pieces: list[FileSlice] = []
    for _, rank, file in sorted(candidates, key=lambda c: (c[0], c[2].number, c[1]), reverse=True):
        if rows <= 0:
            break
        footer = await read_footer(store, file.key)
        if footer is None or not footer.rows:
            continue
        part = rows_of_commits(file.key, footer, file.number, file.next)
        there = part.stop - part.skip
        pieces.append(FileSlice(partitions[rank], file, where, max(0, there - rows)))
        rows -= there
    order = {partition: rank for rank, partition in enumerate(partitions)}
    return sorted(pieces, key=lambda piece: (order[piece.partition], piece.file.number))


async def read_rows(store: Store, piece: FileSlice) -> AsyncIterator[pa.RecordBatch]:
    """The rows of a file, with `_sequence`, in small batches.

    Raises:
        CorruptObject: the file is corrupt.
    """
    number, key, body = piece.file.number, piece.file.key, await _body(store, piece.file)
    while number < piece.file.next:
        if body is None:  # deleted meanwhile, or it holds fewer commits than the slice
            found = await piece.where.fetch(store, piece.partition, number)
            if found is None:
                return  # trimmed
            key, body = found
        opened, part = await store.clock.run_in_thread(_opened, key, body, number, piece.file.next)
        skip = part.skip + (piece.skip if number == piece.file.number else 0)
        batches = _batches(key, opened, skip, part.stop)
        while (batch := await store.clock.run_in_thread(next, batches, None)) is not None:
            yield batch
        number, body = part.next, None


async def _body(store: Store, file: DataFile) -> bytes | None:
    """The content of the file as it was listed; None if it has changed."""
    stored = await store.get(file.key, size=file.size)
    return None if stored is None or (file.tag and stored.tag != file.tag) else stored.body


async def partitions_with_state(store: Store, layout: ProcessorLayout) -> list[str]:
    """Names of the partitions that were ever opened."""
    return list(await documents(store, layout.checkpoints))


def _opened(key: str, body: bytes, number: int, stop: int) -> tuple[pq.ParquetFile, RowRange]:
    try:
        file = open_parquet(body)
    except (pa.ArrowException, OSError) as error:
        raise CorruptObject.unreadable(key, error) from None
    return file, rows_of_commits(key, footer_from(key, file.metadata), number, stop)


def _batches(key: str, file: pq.ParquetFile, skip: int, stop: int) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches_of(file, skip, stop, _ROWS)
    except (pa.ArrowException, OSError) as error:
        raise CorruptObject.unreadable(key, error) from None

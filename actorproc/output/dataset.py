"""Reads the committed rows of a processor: the files above the boundary, by partition and sequence."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from actorproc.errors import CorruptObject
from actorproc.layout import ProcessorLayout, document_partition, number_of, numbered
from actorproc.output.chain import OutputChain
from actorproc.parquet import read_footer
from actorproc.store import Entry, Store

_ROWS = 10_000
"""Rows in a batch, at most."""


class Piece(NamedTuple):
    """An output file, and how many of its first rows to pass over."""

    partition: str
    key: str
    skip: int = 0


async def output_pieces(store: Store, layout: ProcessorLayout, partitions: Sequence[str]) -> AsyncIterator[Piece]:
    """Every committed file, by partition and number."""
    for partition in partitions:
        for entry in await _files(store, layout, partition):
            yield Piece(partition, entry.key)


async def newest_pieces(store: Store, layout: ProcessorLayout, partitions: Sequence[str], rows: int) -> list[Piece]:
    """The files with the `rows` rows that were committed last, by partition and number.

    What was committed last is told by the store's own times; of the files that are not needed only the name is read.
    """
    candidates = []
    for rank, partition in enumerate(partitions):
        entries = await _files(store, layout, partition)
        # A store's clock may step back; within a partition the numbers know better.
        times = accumulate((entry.modified for entry in entries), max)
        candidates += [(time, rank, entry.key) for time, entry in zip(times, entries, strict=True)]
    pieces: list[Piece] = []
    for _, rank, key in sorted(candidates, key=lambda c: (c[0], number_of(c[2]), c[1]), reverse=True):
        if rows <= 0:
            break
        footer = await read_footer(store, key)
        if footer is None or not footer.rows:
            continue
        pieces.append(Piece(partitions[rank], key, max(0, footer.rows - rows)))
        rows -= footer.rows
    order = {partition: rank for rank, partition in enumerate(partitions)}
    return sorted(pieces, key=lambda piece: (order[piece.partition], piece.key))


async def read_rows(store: Store, piece: Piece) -> AsyncIterator[pa.RecordBatch]:
    """The rows of a file, `_sequence` included, in batches that are small whatever its size.

    Raises:
        CorruptObject: it is not what was written there.
    """
    stored = await store.get(piece.key)
    if stored is None:
        return  # trimmed a moment ago
    batches = _batches(piece, stored.body)
    while (batch := await store.clock.offload(next, batches, None)) is not None:
        yield batch


async def partitions_with_state(store: Store, layout: ProcessorLayout) -> list[str]:
    """Names of the partitions that were ever opened: those that can have output."""
    entries = (await store.list(layout.checkpoints)).entries
    return [document_partition(entry.key) for entry in entries]


async def _files(store: Store, layout: ProcessorLayout, partition: str) -> list[Entry]:
    boundary = await OutputChain(store, layout, partition).boundary()
    folder = layout.output_dir(partition)
    after = folder + numbered(boundary - 1, ".parquet") if boundary else ""
    return (await store.list(folder, after=after)).entries


def _batches(piece: Piece, body: bytes) -> Iterator[pa.RecordBatch]:
    skip = piece.skip
    try:
        for batch in pq.ParquetFile(pa.BufferReader(body)).iter_batches(_ROWS, use_threads=False):
            if skip < batch.num_rows:
                yield batch.slice(skip)
            skip = max(0, skip - batch.num_rows)
    except (pa.ArrowException, OSError) as error:
        raise CorruptObject(piece.key, f"cannot be read ({error})") from None

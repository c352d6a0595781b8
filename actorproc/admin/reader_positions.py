"""Reads how far each registered reader is, from where that reader keeps its position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from actorproc.admin.retained import RetainedDataset
from actorproc.admin.spark_checkpoint import committed_numbers
from actorproc.config.settings import Settings
from actorproc.errors import ActorprocError, CorruptObject
from actorproc.output.chain import read_cursor
from actorproc.output.source_identity import check_source
from actorproc.retention.readers import Reader
from actorproc.runtime.tasks import gather
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store


@dataclass(frozen=True, slots=True)
class ReaderPosition:
    """The number that a reader reads next, by partition.

    A reader has not begun a partition that `next` lacks. With an `error` its position is unknown. Both hold everything.
    """

    reader: Reader
    next: Mapping[str, int] = field(default_factory=dict)
    error: str | None = None


async def reader_positions(
    dataset: RetainedDataset, readers: Sequence[Reader], partitions: Sequence[str], settings: Settings
) -> list[ReaderPosition]:
    """Positions of these readers of the dataset. A reader whose position cannot be read gets an `error`."""

    async def read(index: int) -> ReaderPosition:
        reader = readers[index]
        try:
            return ReaderPosition(reader, await position_of(dataset, reader, partitions, settings))
        except ActorprocError as error:
            return ReaderPosition(reader, error=str(error))

    return list((await gather(range(len(readers)), read)).values())


async def position_of(
    dataset: RetainedDataset, reader: Reader, partitions: Sequence[str], settings: Settings
) -> Mapping[str, int]:
    """The number that `reader` reads next, by partition.

    Raises:
        ActorprocError: its position cannot be read.
    """
    if reader.kind == "position":
        return reader.positions
    async with open_store(reader.url, settings, clock=dataset.store.clock) as store:
        if reader.kind == "spark":
            return await committed_numbers(store, str(dataset), await dataset.stream_identity())
        layout = ProcessorLayout(reader.processor)
        if (stream := reader.stream or await dataset.identity()) is not None:
            # A user's source without an identity may wrap this dataset, so only a known identity is compared.
            await check_source(store, layout, stream, str(dataset), if_known=not reader.stream)
        cursors = await gather(partitions, lambda partition: read_cursor(store, layout, partition))
        return {
            partition: _file_number(layout.checkpoint(partition), cursor.position)
            for partition, cursor in cursors.items()
            if cursor is not None
        }


def _file_number(key: str, position: str) -> int:
    """Positions are `<file number>`, or `<file number>+<records of that file already read>`."""
    number, _, _ = position.partition("+")
    try:
        return int(number)
    except ValueError:
        raise CorruptObject(key, f"{position!r} is not a position in numbered files") from None

"""How far each registered reader is: asked where it keeps its position itself."""

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
class Standing:
    """A reader and the number that it reads next, by partition; a partition that is missing it has not begun.

    With an `error` nobody knows, and it needs everything.
    """

    reader: Reader
    next: Mapping[str, int] = field(default_factory=dict)
    error: str | None = None


async def standings(
    kept: RetainedDataset, readers: Sequence[Reader], partitions: Sequence[str], settings: Settings
) -> list[Standing]:
    """Where the readers of `kept` stand. One that cannot be asked has its error, and does not stop the others."""

    async def ask(index: int) -> Standing:
        reader = readers[index]
        try:
            return Standing(reader, await position_of(kept, reader, partitions, settings))
        except ActorprocError as error:
            return Standing(reader, error=str(error))

    return list((await gather(range(len(readers)), ask)).values())


async def position_of(
    kept: RetainedDataset, reader: Reader, partitions: Sequence[str], settings: Settings
) -> Mapping[str, int]:
    """The number that `reader` reads next, by partition.

    Raises:
        ActorprocError: it cannot be asked; says why.
    """
    if reader.kind == "position":
        return reader.positions
    async with open_store(reader.url, settings, clock=kept.store.clock) as store:
        if reader.kind == "spark":
            return await committed_numbers(store, str(kept), await kept.stream_identity())
        layout = ProcessorLayout(reader.processor)
        if (stream := reader.stream or await kept.identity()) is not None:
            # A source of one's own without an identity may well wrap what is kept.
            await check_source(store, layout, stream, str(kept), if_known=not reader.stream)
        cursors = await gather(partitions, lambda partition: read_cursor(store, layout, partition))
        return {
            p: _number(layout.checkpoint(p), cursor.position) for p, cursor in cursors.items() if cursor is not None
        }


def _number(key: str, position: str) -> int:
    """Of the file to read next: positions are `<number>`, or `<number>+<records of it to pass over>`."""
    number, _, _ = position.partition("+")
    try:
        return int(number)
    except ValueError:
        raise CorruptObject(key, f"{position!r} is no position in numbered files") from None

"""Adds, lists and removes the readers of a log or an output, and reads their positions from where they keep them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from os import PathLike
from typing import NamedTuple

from actorproc.admin.audit import record_now
from actorproc.admin.retained import RetainedDataset, RetainedLog, RetainedOutput
from actorproc.admin.spark_checkpoint import WRITTEN_BY_QUERIES, committed_numbers
from actorproc.config.settings import Settings
from actorproc.errors import ActorprocError, CorruptObject, UsageError, locate
from actorproc.log.metadata import open_log
from actorproc.output.chain import read_cursor
from actorproc.output.source_identity import check_source
from actorproc.retention.readers import Reader, read_registry, register, remove
from actorproc.runtime.tasks import gather
from actorproc.storage.locations import missing_processor
from actorproc.storage.names import ProcessorLayout, natural
from actorproc.stores import open_store

StrPath = str | PathLike[str]


@dataclass(frozen=True, slots=True)
class ReaderPosition:
    """The number that a reader reads next, by partition.

    A reader has not begun a partition that `next` lacks. With an `error` its position is unknown. Both hold everything.
    """

    reader: Reader
    next: Mapping[str, int] = field(default_factory=dict)
    error: str | None = None
    expired_after: float | None = None
    """It has written nothing for so many seconds, more than `reader_expiration`: it holds nothing. None: it has not
    expired."""


class PartitionLag(NamedTuple):
    """How far a reader is in one partition; None where that is unknown. `behind` is `end - next`, 0 at least."""

    partition: str
    next: int | None
    end: int | None
    behind: int | None


@dataclass(frozen=True, slots=True)
class ReaderList:
    """The readers of a dataset, and the ends of its partitions. `errors`: by partition, why its end cannot be read."""

    lowest: Mapping[str, int]
    ends: Mapping[str, int | None]
    errors: Mapping[str, str]
    readers: Sequence[ReaderPosition]

    def lags(self, reader: ReaderPosition) -> list[PartitionLag]:
        """The lag in each partition; empty if the position of the reader cannot be read."""
        if reader.error is not None:
            return []
        lags = []
        for partition, end in self.ends.items():
            number = reader.next.get(partition)
            behind = None if number is None or end is None else max(0, end - number)
            lags.append(PartitionLag(partition, number, end, behind))
        return lags


@asynccontextmanager
async def open_dataset(
    settings: Settings, *, container: StrPath | None = None, name: str | None = None, log: StrPath | None = None
) -> AsyncIterator[RetainedDataset]:
    """Open the log, or else the output of processor `name` in the container.

    Raises:
        UsageError: it does not exist, or neither was given.
    """
    if log is not None:
        async with open_store(log, settings) as store:
            await open_log(store, instead="for a processor's output --name {processor} --container {container}")
            yield RetainedLog(store)
    elif container is not None and name is not None:
        async with open_store(container, settings) as store:
            if (problem := await missing_processor(store, name)) is not None:
                raise UsageError(problem)
            yield RetainedOutput(store, ProcessorLayout(name))
    else:
        raise UsageError("give the name and container of a processor for its output, or a log")


async def list_readers(dataset: RetainedDataset, settings: Settings) -> ReaderList:
    """All registered readers with their positions."""
    registry = await read_registry(dataset.store, dataset.readers)
    partitions = sorted(await dataset.partitions(), key=natural)
    ends, errors = await _ends(dataset, partitions)
    positions = await reader_positions(dataset, list(registry.readers.values()), partitions, settings)

    return ReaderList(registry.lowest, ends, errors, positions)


async def _ends(
    dataset: RetainedDataset, partitions: Sequence[str]
) -> tuple[Mapping[str, int | None], Mapping[str, str]]:
    """Ends and errors by partition: a corrupt partition does not hide the others."""
    errors: dict[str, str] = {}

    async def end(partition: str) -> int | None:
        try:
            return await dataset.end(partition)
        except CorruptObject as corrupt:
            locate(corrupt, dataset.store.url)
            errors[partition] = str(corrupt)
            return None

    return await gather(partitions, end), errors


async def reader_positions(
    dataset: RetainedDataset, readers: Sequence[Reader], partitions: Sequence[str], settings: Settings
) -> list[ReaderPosition]:
    """Positions of these readers of the dataset. A reader whose position cannot be read gets an `error`."""

    async def read(index: int) -> ReaderPosition:
        reader = readers[index]
        try:
            positions = await position_of(dataset, reader, partitions, settings)
            return ReaderPosition(reader, positions, expired_after=await _expired_after(dataset, reader, settings))
        except ActorprocError as error:
            return ReaderPosition(reader, error=str(error))

    return list((await gather(range(len(readers)), read)).values())


async def _expired_after(dataset: RetainedDataset, reader: Reader, settings: Settings) -> float | None:
    """For how long the reader has written nothing, if that is too long; None for one that never wrote.

    A host rewrites its heartbeat also if it is idle. A query without new data writes nothing; it is at the end then.
    """
    if settings.reader_expiration is None or reader.kind == "position":
        return None
    async with open_store(reader.url, settings, clock=dataset.store.clock) as store:
        layout = ProcessorLayout(reader.processor) if reader.kind == "processor" else None
        prefixes = (layout.group, layout.hosts, layout.checkpoints) if layout else WRITTEN_BY_QUERIES
        listings = await gather(prefixes, store.list)
    ages = (listing.now - entry.modified for listing in listings.values() for entry in listing.entries)
    silent = min(ages, default=0.0)
    return silent if silent > settings.reader_expiration else None


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


async def missing_reader(reader: Reader, settings: Settings) -> str | None:
    """Why nothing of this reader was found, such as a mistyped URL; None if it exists, or has no URL."""
    if reader.kind == "position":
        return None
    async with open_store(reader.url, settings) as store:
        if reader.kind == "processor":
            return await missing_processor(store, reader.processor)
        return None if (await store.list("", limit=1)).entries else f"nothing is at {reader.url}"


async def register_reader(dataset: RetainedDataset, reader: Reader, settings: Settings) -> Mapping[str, int]:
    """Register a reader at its present position.

    Returns:
        The numbers that it reads next, by partition; empty if it has not begun.

    Raises:
        UsageError: its next number was trimmed; a partition does not exist; or another reader has its name.
        ActorprocError: its position cannot be read.
    """
    partitions = await dataset.partitions()
    if unknown := sorted(reader.positions.keys() - set(partitions), key=natural):
        known = ", ".join(sorted(partitions, key=natural)) or "none yet"
        raise UsageError(f"reader {reader.name!r} of {dataset}: no partition {unknown[0]!r}; there are: {known}")
    positions = await position_of(dataset, reader, partitions, settings)
    await register(dataset.store, dataset.readers, reader, positions)
    return positions


async def ends_before(dataset: RetainedDataset, positions: Mapping[str, int]) -> Mapping[str, int]:
    """Ends of the partitions that end before these positions, which may be a typing error."""
    ends, _ = await _ends(dataset, sorted(positions, key=natural))
    return {partition: end for partition, end in ends.items() if end is not None and positions[partition] > end}


async def add_reader(
    reader: Reader,
    *,
    container: StrPath | None = None,
    name: str | None = None,
    log: StrPath | None = None,
    settings: Settings | None = None,
) -> None:
    """Register a reader: `actorproc trim` keeps the data that it has not read. Call it again to move a `Reader.at`.

    Args:
        container, name: of the processor whose output it reads; or
        log: URL or folder of the log that it reads.
        settings: how to reach the store; default: environment and `actorproc.toml`.

    Raises:
        UsageError: the output or log does not exist; the next number of the reader was trimmed; a partition
            does not exist; or another reader has its name.
        ActorprocError: its position cannot be read.
    """
    settings = settings or Settings.load()
    async with open_dataset(settings, container=container, name=name, log=log) as dataset:
        await register_reader(dataset, reader, settings)


async def remove_reader(
    reader: str,
    *,
    container: StrPath | None = None,
    name: str | None = None,
    log: StrPath | None = None,
    settings: Settings | None = None,
) -> None:
    """Remove the reader of this name: nothing is kept for it any more. Arguments as in `add_reader`.

    Raises:
        UsageError: no reader has this name; lists the registered ones.
    """
    async with open_dataset(settings or Settings.load(), container=container, name=name, log=log) as dataset:
        await unregister_reader(dataset, reader)


async def unregister_reader(dataset: RetainedDataset, name: str) -> Reader:
    """Remove a reader, and record it in the audit.

    Raises:
        UsageError: no reader has this name; lists the registered ones.
    """
    removed = await remove(dataset.store, dataset.readers, name)
    await record_now(dataset.store, dataset.audit, "remove", {"reader": name}, "nothing is kept for it any more")
    return removed

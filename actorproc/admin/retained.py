"""The datasets that have readers and can be trimmed: an output or a log, as numbered files in partitions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import ClassVar

from actorproc.admin.spark_checkpoint import dataset_title, stream_identity
from actorproc.config.settings import Settings
from actorproc.log.metadata import open_log
from actorproc.log.positions import end_base, last_base
from actorproc.output.attachments import list_attachments
from actorproc.output.chain import OutputChain
from actorproc.output.checkpoint import read_checkpoint
from actorproc.output.output_files import OutputFiles
from actorproc.output.row_reader import partitions_with_state
from actorproc.output.source_identity import dataset_identity
from actorproc.retention.boundary import read_boundary
from actorproc.retention.readers import Registry
from actorproc.sinks.entries import needed, progress_document
from actorproc.sinks.tables.open_tables import OpenTables, open_tables
from actorproc.storage.listing import DataFile
from actorproc.storage.names import (
    AUDIT,
    LARGE_LETTERS,
    LOG_BOUNDARIES,
    READERS,
    ProcessorLayout,
    log_dir,
    partition_key,
)
from actorproc.storage.store import Store


class RetainedDataset(ABC):
    """A dataset as a trim sees it: numbered files by partition. A reader that has passed a number does not need it."""

    kind: ClassVar[str]
    unit: ClassVar[str]
    """The unit of the file numbers, as a plural."""
    readers: str
    """Key of the registry of readers."""
    boundaries: str
    """Prefix of the boundary documents."""
    path: str = ""
    audit: str = AUDIT
    """Folder of its audit."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __str__(self) -> str:
        return dataset_title(self.kind, self.path, self.store.url)

    def boundary(self, partition: str) -> str:
        return partition_key(self.boundaries, partition)

    @abstractmethod
    def folder(self, partition: str) -> str:
        """Prefix of its files."""

    @abstractmethod
    async def identity(self) -> str | None:
        """Identity that a dataset made anew at the same URL does not share; None if it has none."""

    async def stream_identity(self) -> str:
        """Identity in the offsets of a Spark query."""
        return stream_identity(self.kind, await self.identity(), str(self))

    @abstractmethod
    async def partitions(self) -> Sequence[str]: ...

    @abstractmethod
    async def newest(self, partition: str) -> int:
        """Files from this number on are never trimmed."""

    @abstractmethod
    async def end(self, partition: str) -> int:
        """The number that a reader reads next after it has read everything."""

    async def compacted(self, partition: str) -> Sequence[tuple[DataFile, float]]:
        """Compacted files of the partition in order, each with the time, by the store's clock, of its switch."""
        return ()

    @asynccontextmanager
    async def tables(self, settings: Settings) -> AsyncIterator[OpenTables]:
        """The tables that name its files, opened.

        Raises:
            UsageError: one cannot be opened.
        """
        yield OpenTables()

    async def sinks_need(
        self, registry: Registry, partition: str, tables: Mapping[str, Mapping[str, int]]
    ) -> Sequence[tuple[str, int]]:
        """The sinks, each with the number of the first file that it may still need. `tables`: positions of tables."""
        return ()

    async def beside(self, partition: str) -> Sequence[tuple[int, str]]:
        """Other objects that are deleted with the file of their number: number and key."""
        return ()


class RetainedOutput(RetainedDataset):
    """The output of a processor: a number is a commit. Published dead letters stay."""

    kind = "output"
    unit = "commits"

    def __init__(self, store: Store, layout: ProcessorLayout) -> None:
        super().__init__(store)
        self.path = layout.processor
        self.readers = layout.readers
        self.audit = layout.audit
        self.boundaries = layout.boundaries
        self._layout = layout

    def folder(self, partition: str) -> str:
        return self._layout.output_dir(partition)

    async def identity(self) -> str | None:
        return await dataset_identity(self.store, self._layout)

    async def partitions(self) -> Sequence[str]:
        return await partitions_with_state(self.store, self._layout)

    async def newest(self, partition: str) -> int:
        """The next owner walks over the files from the checkpoint on. The file before it stays, so that a commit of a
        former owner is refused."""
        checkpoint = await read_checkpoint(self.store, self._layout, partition)
        return max(0, checkpoint.number - 1) if checkpoint else 0

    async def end(self, partition: str) -> int:
        tip = await OutputChain(self.store, self._layout, partition).tip()
        return tip.number if tip else 0

    async def compacted(self, partition: str) -> Sequence[tuple[DataFile, float]]:
        boundary = await read_boundary(self.store, self.boundary(partition))
        files = OutputFiles(self._layout).compacted(partition, 0, boundary)
        since = {r.next: r.since for r in boundary.ranges}
        return [(file, since[file.next]) for file in files]

    @asynccontextmanager
    async def tables(self, settings: Settings) -> AsyncIterator[OpenTables]:
        async with open_tables(self.store, self._layout, settings.sinks) as opened:
            yield opened

    async def sinks_need(
        self, registry: Registry, partition: str, tables: Mapping[str, Mapping[str, int]]
    ) -> Sequence[tuple[str, int]]:
        found = []
        for name, entry in registry.sinks.items():
            if entry.table:
                # One that was registered since the tables were opened has nothing yet.
                found.append((name, tables.get(name, {}).get(partition, entry.part(partition).start)))
                continue
            progress = await progress_document(self.store, self._layout, name, partition).read()
            found.append((name, needed(entry, partition, progress)))
        return found

    async def beside(self, partition: str) -> Sequence[tuple[int, str]]:
        _, letters = await list_attachments(self.store, self._layout, partition, LARGE_LETTERS)
        return [(number, entry.key) for number, entry in letters]


class RetainedLog(RetainedDataset):
    """A log: a number is the sequence of a file's first record."""

    kind = "log"
    unit = "records"
    readers = READERS
    boundaries = LOG_BOUNDARIES

    def folder(self, partition: str) -> str:
        return log_dir(partition)

    async def identity(self) -> str | None:
        return (await open_log(self.store)).identity

    async def partitions(self) -> Sequence[str]:
        return (await open_log(self.store)).names

    async def newest(self, partition: str) -> int:
        """The newest file stays: producers find the end by it."""
        return await last_base(self.store, partition) or 0

    async def end(self, partition: str) -> int:
        return await end_base(self.store, partition)

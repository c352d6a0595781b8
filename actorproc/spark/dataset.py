"""The interface through which Spark reads a dataset of numbered files, whatever its kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from actorproc.admin.spark_checkpoint import dataset_title
from actorproc.errors import RecordsLost, SourceError
from actorproc.retention.boundary import NOTHING_TRIMMED, Boundary
from actorproc.runtime.tasks import gather
from actorproc.storage.listing import DataFile, numbered_files
from actorproc.storage.store import Store


class Span(NamedTuple):
    """The part of one partition that a task reads: `files`, as far as a listing had them, before number `stop`."""

    partition: str
    files: Sequence[DataFile]
    stop: int


class FileRows(NamedTuple):
    """Rows of a file: `columns` by name, and the rows' `sequences`."""

    columns: Mapping[str, pa.Array]
    sequences: pa.Int64Array


class SparkDataset(ABC):
    """A kind of dataset: numbered files in partitions. A file is complete and final as soon as it exists.

    Instances are pickled to the tasks; each call is given the store. Every call may raise StoreError.
    """

    kind: ClassVar[str]
    dense: ClassVar[bool] = True
    """Whether `decode` returns the next file's number for sure. Otherwise numbers have gaps, and only a listing shows
    which exist."""
    path: str
    """Path of the dataset in the store, for messages; may be empty."""

    @abstractmethod
    async def schema(self, store: Store) -> pa.Schema:
        """All columns; NOT NULL where no value is ever null. Raises UsageError if there is no such dataset."""

    @abstractmethod
    async def identity(self, store: Store) -> str:
        """Distinguishes the dataset from others that were or will be at the same location. One request."""

    @abstractmethod
    async def partitions(self, store: Store) -> Sequence[str]:
        """Names of the partitions that exist now; more may be added."""

    async def lowest(self, store: Store, partitions: Sequence[str]) -> Mapping[str, int]:
        """The first readable number of each partition; 0 for a partition that is left out."""
        return {}

    @abstractmethod
    def key(self, partition: str, number: int) -> str:
        """Key of a file that was not listed."""

    async def files(
        self, store: Store, starts: Mapping[str, int], limit: int | None = None
    ) -> Mapping[str, Sequence[DataFile]]:
        """List the files of each partition in `starts` from that number on, at most `limit` of each.

        A file that is created meanwhile may be missing although a later one is listed.
        """

        async def of(partition: str) -> list[DataFile]:
            folder, slash, name = self.key(partition, 0).rpartition("/")
            suffix = "." + name.partition(".")[2]
            listed = await numbered_files(store, folder + slash, starts[partition], limit, suffix)
            return [DataFile(number, number + 1, found.key, found.size, found.modified) for number, found in listed]

        return await gather(list(starts), of)

    async def fetch(self, store: Store, partition: str, number: int) -> tuple[str, bytes] | None:
        """Key and body of the file that now holds number `number`; None if there is none."""
        key = self.key(partition, number)
        stored = await store.get(key)
        return None if stored is None else (key, stored.body)

    async def boundaries(self, store: Store) -> Mapping[str, Boundary]:
        """The boundary of each partition that was trimmed or compacted."""
        return {}

    async def check_not_trimmed(
        self, store: Store, first: Mapping[str, Sequence[DataFile]], starts: Mapping[str, int]
    ) -> None:
        """Check that nothing was trimmed between the start number and the first listed file of each partition.

        Raises:
            RecordsLost: names the partition and the numbers.
        """
        boundaries = await self.boundaries(store)
        for partition, files in first.items():
            start, lowest = starts.get(partition, 0), boundaries.get(partition, NOTHING_TRIMMED).lowest
            if start < lowest:
                raise self.lost_error(store, partition, start, lowest, f"{self.kind} below {lowest} was trimmed")
            gap = self.dense and files and files[0].number > start
            if gap and await self.fetch(store, partition, start) is None:
                why = "the files before it were deleted by hand"
                raise self.lost_error(store, partition, start, files[0].number, why)

    async def next_number(self, store: Store, partition: str, file: DataFile) -> int:
        """The number of the file after this one: the lowest that it can have."""
        return file.next

    async def split_compacted(
        self, store: Store, files: Sequence[DataFile], most_files: int, most_rows: int
    ) -> Sequence[DataFile]:
        """The files with compacted ones split by number, at least for the first `most_files` or `most_rows`."""
        return files

    async def rows(self, store: Store, partition: str, first: int, stop: int) -> int:
        """Count the rows of the files from `first` on and before `stop`."""
        raise NotImplementedError

    async def seek(self, store: Store, partition: str, files: Sequence[DataFile], sequence: int) -> int:
        """Index of the first file that may hold rows from `sequence` on."""
        return 0

    @abstractmethod
    def decode(
        self, partition: str, number: int, stop: int, key: str, body: bytes, columns: Sequence[str]
    ) -> tuple[Iterator[FileRows], int]:
        """Decode the rows of a file from number `number` on and before `stop`, with at least its `columns`.

        Returns:
            The rows, and the number of the next file.

        Raises:
            CorruptObject: the file was changed.
        """

    def title(self, url: str) -> str:
        """The dataset in the store at `url`, for messages."""
        return dataset_title(self.kind, self.path, url)

    def lost_error(self, store: Store, partition: str, first: int, found: int | None, why: str) -> SourceError:
        """The error for a position whose files are gone. `found`: the first number that still exists."""
        existing = "nothing from it on exists" if found is None else f"the first that can be read is {found}"
        kind = SourceError if found is None else RecordsLost  # a store with nothing left may be away, and come back
        return kind(
            f"partition {partition} of {self.title(store.url)}: number {first} is to be read next, but {existing}: "
            f"{why}. The numbers in between are lost to this reader. Use a new checkpointLocation, which begins with "
            "the first that exists; or restore the files"
        )


def repeat_string(text: str, rows: int) -> pa.Array:
    """Like `pa.repeat`, which imports pandas first: 0.25 s in each process that Spark starts."""
    value = text.encode()
    ends = np.arange(rows + 1, dtype=np.int32) * np.int32(len(value))
    return pa.StringArray.from_buffers(rows, pa.py_buffer(ends), pa.py_buffer(value * rows))

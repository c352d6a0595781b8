"""What Spark's side needs to know of a dataset of numbered files, whichever kind it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from actorproc.errors import RecordsLost, SourceError, UsageError
from actorproc.retention.spark_offsets import dataset_title
from actorproc.storage.listing import DataFile, numbered_files
from actorproc.storage.store import Store


class Span(NamedTuple):
    """What a task reads of one partition: `files`, as far as they were listed, up to number `stop`."""

    partition: str
    files: Sequence[DataFile]
    stop: int


class FileRows(NamedTuple):
    """Rows of a file, and where they are: `columns` by name, `sequences` to filter by."""

    columns: Mapping[str, pa.Array]
    sequences: pa.Int64Array


class Dataset(ABC):
    """A kind of dataset: numbered files in partitions, each whole and final from the moment it is there.

    Instances are pickled to the tasks; the store is handed to each call. Every call may raise StoreError.
    """

    kind: ClassVar[str]
    dense: ClassVar[bool] = True
    """Whether `decode` tells the next file's number for sure. Else numbers have gaps, and only a listing tells."""
    path: str
    """Of the dataset below the store's URL, for people; may be empty."""

    @abstractmethod
    async def schema(self, store: Store) -> pa.Schema:
        """Every column there is, NOT NULL where none of its values is ever null. Raises UsageError if there is no such dataset."""

    @abstractmethod
    async def identity(self, store: Store) -> str:
        """What tells the dataset from another at the same place. One request."""

    @abstractmethod
    async def partitions(self, store: Store) -> Sequence[str]:
        """Names of the partitions there are now; more may come."""

    @abstractmethod
    async def lowest(self, store: Store, partitions: Sequence[str]) -> Mapping[str, int]:
        """The first number that may be read of each partition; one that is left out begins at 0."""

    @abstractmethod
    def key(self, partition: str, number: int) -> str:
        """Of a file that no listing has told of."""

    @abstractmethod
    async def files(
        self, store: Store, starts: Mapping[str, int], limit: int | None = None
    ) -> Mapping[str, Sequence[DataFile]]:
        """The files of each partition in `starts` from that number on, at most `limit` of each. One that is made meanwhile
        may be missing although a later one is listed."""

    async def fetch(self, store: Store, partition: str, number: int) -> tuple[str, bytes] | None:
        """Key and body of the file that holds number `number` now; None: there is none."""
        key = self.key(partition, number)
        stored = await store.get(key)
        return None if stored is None else (key, stored.body)

    async def check(self, store: Store, first: Mapping[str, Sequence[DataFile]], starts: Mapping[str, int]) -> None:
        """See that nothing was trimmed between the number where reading goes on and the first file listed.

        Raises:
            RecordsLost: it was; names the partition and the numbers.
        """

    async def after(self, store: Store, partition: str, file: DataFile) -> int:
        """The number that the file after this one has, or will have, at least."""
        return file.next

    async def split_compacted(
        self, store: Store, files: Sequence[DataFile], most_files: int, most_rows: int
    ) -> Sequence[DataFile]:
        """Files that hold much divided by numbers, the first `most_files` or `most_rows` of them at least."""
        return files

    async def rows(self, store: Store, partition: str, first: int, stop: int) -> int:
        """How many rows the files from `first` on and before `stop` have."""
        raise NotImplementedError

    async def seek(self, store: Store, partition: str, files: Sequence[DataFile], sequence: int) -> int:
        """Index of the first file that may hold rows from `sequence` on."""
        return 0

    @abstractmethod
    def decode(
        self, partition: str, number: int, stop: int, key: str, body: bytes, columns: Sequence[str]
    ) -> tuple[Iterator[FileRows], int]:
        """The rows of a file, from number `number` on and before `stop`, with at least those of `columns` that it has; and
        the number that comes after them.

        Raises:
            CorruptObject: it is not what was written there.
        """

    def at(self, url: str) -> str:
        """What it is called in messages, in the store at `url`."""
        return dataset_title(self.kind, self.path, url)

    def lost(self, store: Store, partition: str, first: int, found: int | None, why: str) -> SourceError:
        """The error for a position whose files are gone."""
        there = "nothing is there from it on" if found is None else f"the first that can be read is {found}"
        kind = SourceError if found is None else RecordsLost  # with nothing there, all of it may be away, and come back
        return kind(
            f"partition {partition} of {self.at(store.url)}: number {first} is to be read "
            f"next, but {there}: {why}. What lies between is lost to this reader. Go on with a new checkpointLocation, "
            "which begins with what is there; or restore the files"
        )


async def list_files(store: Store, folder: str, first: int, limit: int | None, suffix: str) -> list[DataFile]:
    """The numbered files of a folder from number `first` on."""
    return [
        DataFile(number, number + 1, entry.key, entry.size, entry.modified)
        for number, entry in await numbered_files(store, folder, first, limit, suffix)
    ]


def repeat_string(text: str, rows: int) -> pa.Array:
    """What `pa.repeat` gives, which first imports pandas: a quarter of a second in each process that Spark starts."""
    value = text.encode()
    ends = np.arange(rows + 1, dtype=np.int32) * np.int32(len(value))
    return pa.StringArray.from_buffers(rows, pa.py_buffer(ends), pa.py_buffer(value * rows))


def check_columns(schema: pa.Schema, wanted: pa.Schema, what: str) -> None:
    """Check that the wanted columns are there, with the types that they have, and NOT NULL only where they are.

    Raises:
        UsageError: names each that is not, its type, and what is there.
    """
    wrong = []
    for field in wanted:
        if field.name not in schema.names:
            wrong.append(f"there is no column {field.name!r}")
            continue
        there = schema.field(field.name)
        if same_type(there.type, field.type):
            # Spark believes it: it would count no nulls where there are some, or fail in Java.
            wrong += [
                f"column {part!r} may be null, and is called NOT NULL" for part in _believed(field.name, there, field)
            ]
        else:
            wrong.append(f"column {field.name!r} is {there.type}, not {field.type}")
    if wrong:
        raise UsageError(
            f"the schema does not fit {what}: {'; '.join(wrong)}. There are: {', '.join(schema.names)}. "
            "Name columns as they are, with their types (NOT NULL may be left out), and cast in Spark"
        )


def _believed(path: str, there: pa.Field, wanted: pa.Field) -> Iterator[str]:
    """What only `wanted` calls NOT NULL: the column, or a part, as Spark names it. Their types are alike."""
    if there.nullable and not wanted.nullable:
        yield path
    for part, wanted_part in zip(_parts(there.type), _parts(wanted.type), strict=True):
        yield from _believed(f"{path}.{part[0]}", part[1], wanted_part[1])


def _parts(kind: pa.DataType) -> list[tuple[str, pa.Field]]:
    if pa.types.is_struct(kind):
        return [(field.name, field) for field in kind]
    if pa.types.is_list(kind):
        return [("element", kind.value_field)]
    if pa.types.is_map(kind):
        return [("key", kind.key_field), ("value", kind.item_field)]
    return []


def nullable(field: pa.Field) -> pa.Field:
    """The field, and all in it, nullable: as Spark's own reader of Parquet has it."""
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([nullable(part) for part in kind])
    elif pa.types.is_list(kind):
        kind = pa.list_(nullable(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(nullable(kind.key_field).type, nullable(kind.item_field).type)
    return pa.field(field.name, kind, True, field.metadata)


def same_type(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether the types are the same but for nullability and names that Arrow gives to elements."""
    if pa.types.is_struct(left) and pa.types.is_struct(right):
        return [f.name for f in left] == [f.name for f in right] and all(
            same_type(a.type, b.type) for a, b in zip(left, right, strict=True)
        )
    if pa.types.is_list(left) and pa.types.is_list(right):
        return same_type(left.value_type, right.value_type)
    if pa.types.is_map(left) and pa.types.is_map(right):
        return same_type(left.key_type, right.key_type) and same_type(left.item_type, right.item_type)
    return bool(left.equals(right))

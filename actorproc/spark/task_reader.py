"""Reads files in a task: fetches them ahead, and yields Arrow batches with exactly the schema that Spark expects."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from actorproc.errors import CorruptObject, SourceError
from actorproc.spark.blocking_store import BlockingStore, open_blocking
from actorproc.spark.columns import same_type
from actorproc.spark.dataset import FileRows, Span
from actorproc.spark.options import ReadOptions
from actorproc.spark.python_worker import QuickAck, called_by_spark
from actorproc.storage.backend import Stored
from actorproc.storage.listing import DataFile

_AHEAD_FILES = 16
_AHEAD_BYTES = 64 * 2**20


class TaskReader(QuickAck):
    """The part of a reader that runs in the tasks, for batches and micro-batches."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    @called_by_spark
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_spans(self._options, partition.value, self._schema)


def read_spans(options: ReadOptions, spans: Sequence[Span], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of `spans` as record batches of `schema`.

    Raises:
        SourceError: a file was deleted after planning.
        CorruptObject, StoreError: a file cannot be read.
    """
    if not spans:
        return
    with open_blocking(options.url, options.settings) as store:
        for span in spans:
            start = options.start_of(span.partition)
            for key, rows in _read(options, store, span, schema):
                wanted = rows if start <= 0 else _from_sequence(rows, start)
                if len(wanted.sequences):
                    yield _fitted(key, wanted, schema)


def _read(
    options: ReadOptions, blocking: BlockingStore, span: Span, schema: pa.Schema
) -> Iterator[tuple[str, FileRows]]:
    """Each batch of rows with the key of its file."""
    dataset, partition = options.dataset, span.partition
    ahead = _ReadAhead(blocking, span.files)
    number: int | None = span.files[0].number
    while number is not None and number < span.stop:
        found = ahead.take(number) or blocking.call(dataset.fetch, blocking.store, partition, number)
        if found is None:
            raise SourceError(
                f"{dataset.key(partition, number)} in {blocking.store.url} was deleted before it was read. A batch "
                "query: call read_output (or load) again, since a DataFrame keeps the list of files that it began "
                "with. A stream: output is trimmed faster than this query reads it"
            )
        key, body = found
        batches, following = dataset.decode(partition, number, span.stop, key, body, schema.names)
        for batch in batches:
            yield key, batch
        number = following if dataset.dense else ahead.following(number)


class _ReadAhead:
    """Fetches the listed files in order, some before they are taken."""

    def __init__(self, store: BlockingStore, listed: Sequence[DataFile]) -> None:
        self._store = store
        self._listed = deque(listed)
        self._fetching: deque[tuple[DataFile, Future[Stored | None]]] = deque()
        self._bytes = 0

    def take(self, number: int) -> tuple[str, bytes] | None:
        """Key and body of the file that was listed with this number; None if it was replaced or deleted."""
        while self._fetching and self._fetching[0][0].number < number:
            self._pop()  # listed, and then found within another file
        while self._listed and self._listed[0].number < number:
            self._listed.popleft()
        self._fetch()
        if not self._fetching or self._fetching[0][0].number != number:
            return None
        file, body = self._pop()
        stored = body.result()
        self._fetch()
        if stored is None or (file.tag and stored.tag != file.tag):
            return None
        return file.key, stored.body

    def following(self, number: int) -> int | None:
        """The number that was listed after `number`."""
        files = [*(file for file, _ in self._fetching), *self._listed]
        return next((file.number for file in files if file.number > number), None)

    def _pop(self) -> tuple[DataFile, Future[Stored | None]]:
        file, body = self._fetching.popleft()
        self._bytes -= file.size
        return file, body

    def _fetch(self) -> None:
        while self._listed and len(self._fetching) < _AHEAD_FILES:
            file = self._listed[0]
            if self._fetching and self._bytes + file.size > _AHEAD_BYTES:
                return
            self._listed.popleft()
            self._bytes += file.size
            self._fetching.append((file, self._store.get(file.key, file.size)))


def _from_sequence(rows: FileRows, start: int) -> FileRows:
    """The rows from sequence `start` on."""
    mask = pc.greater_equal(rows.sequences, start)
    return FileRows({name: column.filter(mask) for name, column in rows.columns.items()}, rows.sequences.filter(mask))


def _fitted(key: str, rows: FileRows, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `schema`. A column that is newer than file `key` is null."""
    arrays = []
    for field in schema:
        column = rows.columns.get(field.name)
        if column is None:
            column = pa.nulls(len(rows.sequences), field.type)
        elif not column.type.equals(field.type):
            if not same_type(column.type, field.type):
                why = f"column {field.name!r} is {column.type}, not {field.type} as in the schema"
                raise CorruptObject(key, f"{why}: no host wrote this file")
            column = column.cast(field.type)
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)

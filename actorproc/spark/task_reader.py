"""What a task does: fetch files some ahead, and turn them into Arrow batches of exactly the schema that Spark expects."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import pyarrow as pa
import pyarrow.compute as pc

from actorproc.errors import CorruptObject, SourceError
from actorproc.spark.blocking_store import BlockingStore, open_blocking
from actorproc.spark.dataset import FileRows, Span, same_type
from actorproc.spark.options import ReadOptions
from actorproc.storage.backend import Stored
from actorproc.storage.listing import DataFile

_AHEAD_FILES = 16  # fetched before they are asked for
_AHEAD_BYTES = 64 * 2**20


def read_spans(request: ReadOptions, spans: Sequence[Span], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of `spans` as record batches of `schema`.

    Raises:
        SourceError: a file was deleted since it was planned to be read.
        CorruptObject, StoreError: it cannot be read.
    """
    if not spans:
        return
    with open_blocking(request.url, request.settings, patient=True) as place:
        for span in spans:
            start = request.start_of(span.partition)
            for key, batch in _read(request, place, span, schema):
                kept = batch if start <= 0 else _from(batch, start)
                if len(kept.sequences):
                    yield _fitted(key, kept, schema)


def _read(request: ReadOptions, place: BlockingStore, span: Span, schema: pa.Schema) -> Iterator[tuple[str, FileRows]]:
    """Each batch with the key of its file."""
    dataset, partition = request.dataset, span.partition
    ahead = _Ahead(place, span.files)
    number: int | None = span.files[0].number
    while number is not None and number < span.stop:
        found = ahead.take(number) or place.call(dataset.fetch, place.store, partition, number)
        if found is None:
            raise SourceError(
                f"{dataset.key(partition, number)} in {place.store.url} was deleted while it was to be read. A batch query: "
                "call read_output (or load) again, a DataFrame stays with the files that it found first. A stream: output is trimmed faster than this query reads it"
            )
        key, body = found
        batches, following = dataset.decode(partition, number, span.stop, key, body, schema.names)
        for batch in batches:
            yield key, batch
        number = following if dataset.dense else ahead.following(number)


class _Ahead:
    """Fetches the listed files in order, some before they are taken."""

    def __init__(self, place: BlockingStore, listed: Sequence[DataFile]) -> None:
        self._place = place
        self._listed = deque(listed)
        self._coming: deque[tuple[DataFile, Future[Stored | None]]] = deque()
        self._bytes = 0

    def take(self, number: int) -> tuple[str, bytes] | None:
        """Key and body of the file that was listed with this number, if it is still there as it was."""
        while self._coming and self._coming[0][0].number < number:
            self._pop()  # listed, and then found within another file
        while self._listed and self._listed[0].number < number:
            self._listed.popleft()
        self._fetch()
        if not self._coming or self._coming[0][0].number != number:
            return None
        file, body = self._pop()
        stored = body.result()
        self._fetch()
        if stored is None or (file.tag and stored.tag != file.tag):
            return None
        return file.key, stored.body

    def following(self, number: int) -> int | None:
        """The number that was listed after `number`."""
        files = [*(file for file, _ in self._coming), *self._listed]
        return next((file.number for file in files if file.number > number), None)

    def _pop(self) -> tuple[DataFile, Future[Stored | None]]:
        file, body = self._coming.popleft()
        self._bytes -= file.size
        return file, body

    def _fetch(self) -> None:
        while self._listed and len(self._coming) < _AHEAD_FILES:
            file = self._listed[0]
            if self._coming and self._bytes + file.size > _AHEAD_BYTES:
                return
            self._listed.popleft()
            self._bytes += file.size
            self._coming.append((file, self._place.get(file.key, file.size)))


def _from(batch: FileRows, start: int) -> FileRows:
    """The rows from sequence `start` on."""
    kept = pc.greater_equal(batch.sequences, start)
    return FileRows({name: column.filter(kept) for name, column in batch.columns.items()}, batch.sequences.filter(kept))


def _fitted(key: str, batch: FileRows, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `schema`; null where file `key` was written before a column came in."""
    arrays = []
    for field in schema:
        column = batch.columns.get(field.name)
        if column is None:
            column = pa.nulls(len(batch.sequences), field.type)
        elif not same_type(column.type, field.type):
            raise CorruptObject(
                key,
                f"column {field.name!r} is {column.type}, not {field.type} as the schema says: no host wrote this file",
            )
        elif not column.type.equals(field.type):
            column = column.cast(field.type)
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)

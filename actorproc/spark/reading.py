"""What a task does: fetch files some ahead, and turn them into Arrow batches of exactly the schema that Spark expects."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import pyarrow as pa
import pyarrow.compute as pc

from actorproc.errors import CorruptObject, SourceError
from actorproc.spark.dataset import Batch, Span, alike
from actorproc.spark.place import Place, opened
from actorproc.spark.request import Request

_AHEAD_FILES = 16  # fetched before they are asked for
_AHEAD_BYTES = 64 * 2**20


def read_spans(request: Request, spans: Sequence[Span], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of `spans` as record batches of `schema`.

    Raises:
        SourceError: a file was deleted since it was planned to be read.
        CorruptObject, StoreError: it cannot be read.
    """
    if not spans:
        return
    with opened(request.url, request.settings, patient=True) as place:
        for span in spans:
            start = request.start_of(span.partition)
            for key, batch in _read(request, place, span, schema):
                kept = batch if start <= 0 else _from(batch, start)
                if len(kept.sequences):
                    yield _fitted(key, kept, schema)


def _read(request: Request, place: Place, span: Span, schema: pa.Schema) -> Iterator[tuple[str, Batch]]:
    """Each batch with the key of its file."""
    dataset = request.dataset
    listed = iter([number for number, _ in span.files])
    ahead = _Ahead(place, [(dataset.key(span.partition, number), size) for number, size in span.files])
    number = next(listed, span.stop)
    while number < span.stop:
        key = dataset.key(span.partition, number)
        body = ahead.take(key)
        if body is None:
            raise SourceError(
                f"{key} in {place.store.url} was deleted while it was to be read. A batch query: run it again, it finds "
                "what is there now. A stream: output is trimmed faster than this query reads it"
            )
        batches, following = dataset.decode(span.partition, number, body, schema.names)
        for batch in batches:
            yield key, batch
        number = following if dataset.dense else next(listed, span.stop)


class _Ahead:
    """Fetches the listed files in order, some before they are taken; any other when it is."""

    def __init__(self, place: Place, listed: Sequence[tuple[str, int]]) -> None:
        self._place = place
        self._listed = deque(listed)
        self._coming: deque[tuple[str, int, Future[bytes | None]]] = deque()
        self._bytes = 0

    def take(self, key: str) -> bytes | None:
        """The body of the file, or None if there is none."""
        while self._coming and self._coming[0][0] < key:
            self._pop()  # listed, and not a file of the chain: cannot happen, and would only cost its bytes
        while self._listed and self._listed[0][0] < key:
            self._listed.popleft()
        self._fetch()
        if self._coming and self._coming[0][0] == key:
            body = self._pop().result()
            self._fetch()
            return body
        return self._place.get(key).result()

    def _pop(self) -> Future[bytes | None]:
        _, size, body = self._coming.popleft()
        self._bytes -= size
        return body

    def _fetch(self) -> None:
        while self._listed and len(self._coming) < _AHEAD_FILES:
            key, size = self._listed[0]
            if self._coming and self._bytes + size > _AHEAD_BYTES:
                return
            self._listed.popleft()
            self._bytes += size
            self._coming.append((key, size, self._place.get(key)))


def _from(batch: Batch, start: int) -> Batch:
    """The rows from sequence `start` on."""
    kept = pc.greater_equal(batch.sequences, start)
    return Batch({name: column.filter(kept) for name, column in batch.columns.items()}, batch.sequences.filter(kept))


def _fitted(key: str, batch: Batch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `schema`; null where file `key` was written before a column came in."""
    arrays = []
    for field in schema:
        column = batch.columns.get(field.name)
        if column is None:
            column = pa.nulls(len(batch.sequences), field.type)
        elif not alike(column.type, field.type):
            raise CorruptObject(
                key,
                f"column {field.name!r} is {column.type}, not {field.type} as the schema says: no host wrote this file",
            )
        elif not column.type.equals(field.type):
            column = column.cast(field.type)
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)

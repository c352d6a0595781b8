"""`PositionsInContainer`: the base of sinks whose target cannot change rows and position in one transaction.

The position is a document in the container, which moves by compare-and-swap after the target has acknowledged all rows.
So a row may be sent again: after a crash, a lost answer, or by an owner that has slept. Each commit is sent for itself,
under a key that says so. Rules (`acked`, `term`, `cut`, `key_...`): tests/protocol/sink_keyed_model.py.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256

import orjson
import pyarrow as pa

from actorproc.sinks.protocol import Delivery, Sink, SinkMoved, SinkRow
from actorproc.storage.document import Document, SharedDocument
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Conflict, Store


class StoredRow(Document, frozen=True):
    """The sink's row of one partition, in the container."""

    row: SinkRow


@dataclass(frozen=True, slots=True)
class SentCommit:
    """One commit of a delivery, which is sent for itself."""

    partition: str
    number: int
    put_id: str
    rows: pa.Table
    now: SinkRow

    def key(self, first: int = 0, stop: int | None = None) -> str:
        """Names rows `first` to `stop` of the commit, as they are delivered in this term: 32 hex digits.

        The same rows have the same key, whoever sends them. Rows that a redelivery, a new registration or a restored
        container sends have another one. The sequences are in the key, so that other rows never have it, whatever
        options cut or leave out.
        """
        rows = self.rows.slice(first, None if stop is None else stop - first)
        sequences = sha256(rows["_sequence"].to_numpy().tobytes())
        now = self.now
        parts = [now.home, now.life, now.term, self.partition, self.number, self.put_id, first, sequences.hexdigest()]
        return sha256(orjson.dumps(parts)).hexdigest()[:32]


def commits_of(delivery: Delivery) -> Iterator[SentCommit]:
    """The commits that have rows, in order."""
    first = 0
    put_ids = delivery.put_ids or [""] * len(delivery.counts)
    for number, (count, put_id) in enumerate(zip(delivery.counts, put_ids, strict=True), delivery.since):
        if count:
            rows = delivery.rows.slice(first, count)
            yield SentCommit(delivery.partition, number, put_id, rows, delivery.now)
        first += count


class PositionsInContainer(Sink):
    """A sink whose positions are in the container. A subclass says how to `send`.

    A pause stops its deliveries, but a request that an owner has under way may still land: the target has no row that
    could be fenced.
    """

    def keep_in(self, store: Store, layout: ProcessorLayout, name: str) -> None:
        """Called once, before `open`: where the rows are, and the name of the sink."""
        self._store, self._layout, self._name = store, layout, name

    async def check(self, schema: pa.Schema) -> None:
        """See `Sink.check`: the rows are in the container, which is tried for itself."""
        await self.open(schema)

    @abstractmethod
    async def send(self, delivery: Delivery) -> None:
        """Send the rows, commit by commit (`commits_of`), until the target has acknowledged all of them.

        Raises:
            SinkError: it has not acknowledged a request, which may have been applied.
            SinkRefused: it refuses rows.
        """

    async def read(self, partition: str) -> SinkRow | None:
        """See `Sink.read`."""
        found = await self._document(partition).read()
        return None if found is None else found.row

    async def write(self, delivery: Delivery) -> None:
        """See `Sink.write`. The row is compared first, so that an owner that has slept sends nothing."""
        document = self._document(delivery.partition)
        found = await document.read()
        if (None if found is None else found.row) != delivery.was:
            raise SinkMoved(f"partition {delivery.partition}: the sink's row is not {delivery.was}")
        if delivery.rows.num_rows:
            await self.send(delivery)
        try:
            await document.swap(StoredRow(row=delivery.now))
        except Conflict as conflict:
            raise SinkMoved(str(conflict)) from None

    def _document(self, partition: str) -> SharedDocument[StoredRow]:
        return SharedDocument(self._store, self._layout.sink_row(self._name, partition), StoredRow)

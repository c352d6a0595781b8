"""A segment: one Parquet file of a partition of the log. Encodes it, and decodes it in row groups.

A partition is a chain of segments. A segment is named by its base, the sequence of its first record; the base of the
next one is that plus the number of rows. The producer that creates a base decides its records, so producers need no
broker to agree on an order. Sequences are dense, but only this package may rely on that.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from actorproc.errors import RESTORE, CorruptObject
from actorproc.records import RECORD_SCHEMA, Batch
from actorproc.storage.document import Document
from actorproc.storage.names import log_file
from actorproc.storage.parquet import Footer, footer_from, footer_of, open_parquet, rows_within, write_parquet
from actorproc.storage.store import Conflict, Store

ROW_GROUP_BYTES = 4 * 2**20
"""Bytes of columns in a row group, about. A reader holds one row group at a time, whatever the size of the segment."""

DECODED_BYTES = 64 * 2**20
"""Bytes that are decoded at once. Row groups of our producers take less, unless a record alone is larger."""

_FOOTER = "actorproc.log"
_SEAL_FORMAT = 2


class SegmentFooter(Document, frozen=True):
    """Our own part of a segment's Parquet footer. Timestamps are in microseconds since 1970.

    `running` is the greatest timestamp of this segment and of all segments below base `covers`. A producer that lost
    the race for a base creates the same bytes at the next one. So `covers` may be lower than the segment's own base,
    and readers take the segments in between into account.

    Format version 2 is a seal, which ends its partition: it has no records, and no segment follows it.
    """

    newest_format_version: ClassVar[int] = 2

    producer: str
    newest: int
    """The greatest timestamp of this segment."""
    running: int
    covers: int

    @property
    def ended(self) -> bool:
        """Whether this is a seal."""
        return self.format_version == _SEAL_FORMAT

    @classmethod
    def parse(cls, key: str, footer: Footer) -> Self:
        """Raises CorruptObject if it is not the footer of a segment or a seal."""
        found = cls.from_json(key, footer.metadata.get(_FOOTER, ""))
        if (footer.rows < 1) != found.ended:
            raise CorruptObject(key, "has no records; no producer writes that" if footer.rows < 1 else "is a seal")
        return found


def newest_timestamp(records: pa.Table) -> int:
    """The greatest timestamp of records, in microseconds since 1970."""
    return int(pc.max(records.column("timestamp")).cast(pa.int64()).as_py())


def encode_segment(records: pa.Table, footer: SegmentFooter, compression: str) -> bytes:
    """A segment with these records, which have the columns of `RECORD_SCHEMA`. CPU-heavy: run it off the loop."""
    key = records.column("key")
    sample = key.slice(0, 1000)
    repeats = pc.count_distinct(sample).as_py() * 2 <= len(sample)
    return write_parquet(
        records,
        {_FOOTER: footer.to_json().decode()},
        row_group_rows=max(1, -(-records.num_rows // max(1, round(records.nbytes / ROW_GROUP_BYTES)))),
        compression=compression,
        # Values hardly ever repeat, so a dictionary costs time and saves nothing; nobody filters by their statistics.
        use_dictionary=["key", "timestamp"] if repeats else ["timestamp"],
        write_statistics=["timestamp"],
    )


def encode_seal(put_id: str, producer: str, running: int, covers: int) -> bytes:
    """The file that ends a partition. Arguments as in `SegmentFooter`."""
    footer = SegmentFooter(
        format_version=_SEAL_FORMAT, put_id=put_id, producer=producer, newest=running, running=running, covers=covers
    )
    return write_parquet(RECORD_SCHEMA.empty_table(), {_FOOTER: footer.to_json().decode()}, row_group_rows=1)


async def create_segment(store: Store, partition: str, base: int, body: bytes) -> tuple[SegmentFooter, int] | None:
    """Create a segment at `base`, once.

    Returns:
        None if `body` is there now. If another segment or a seal is there, its footer, and the base after it.

    Raises:
        StoreUnavailable: it may be there now, or later.
        CorruptObject: the other segment cannot be read, or was deleted meanwhile.
    """
    key = log_file(partition, base)
    try:
        await store.create(key, body)
    except Conflict as conflict:
        if conflict.stored is None:
            raise CorruptObject(
                key, "was refused and is gone: files of a log are deleted while it is appended to"
            ) from None
        footer = footer_of(key, conflict.stored.body)
        return SegmentFooter.parse(key, footer), base + footer.rows
    return None


class Segment:
    """A segment in memory.

    Raises (every method):
        CorruptObject: the bytes are not those that a producer wrote.
    """

    def __init__(self, partition: str, base: int, body: bytes) -> None:
        self.partition = partition
        self.base = base
        self.key = log_file(partition, base)
        self._body = body
        try:
            self._file = open_parquet(body)
        except (pa.ArrowException, OSError) as error:
            footer_of(self.key, body)  # raises a more precise error if it can
            raise self._corrupt(error) from None
        metadata = self._file.metadata
        footer = footer_from(self.key, metadata)
        self.footer = SegmentFooter.parse(self.key, footer)
        self.rows = footer.rows
        if sum(metadata.row_group(group).num_rows for group in range(self._file.num_row_groups)) != self.rows:
            raise CorruptObject(self.key, f"its row groups do not add up to its {self.rows} records")

    @property
    def next_base(self) -> int:
        """Base of the segment after this one."""
        return self.base + self.rows

    @property
    def group_bytes(self) -> int:
        """Bytes of memory that its largest row group takes, about: at most `DECODED_BYTES`, but for a huge record."""
        metadata = self._file.metadata
        groups = [metadata.row_group(group) for group in range(self._file.num_row_groups)]
        sizes = [(int(group.total_byte_size), int(group.num_rows)) for group in groups]
        return max(min(size, max(DECODED_BYTES, size // rows)) for size, rows in sizes)

    def batches(self, skip: int = 0) -> Generator[Batch, None, None]:
        """The records after the first `skip`, a row group at a time, or less of a group that unpacks to more than
        `DECODED_BYTES`. Each step is CPU-heavy: run it off the loop."""
        first = 0
        for group in range(self._file.num_row_groups):
            last = first + self._file.metadata.row_group(group).num_rows
            if last > skip:
                for data in self._pieces(group, last - first):
                    stop = first + data.num_rows
                    if stop > skip:
                        yield Batch(self.partition, data, self._sequences(first, stop))[max(skip - first, 0) :]
                    first = stop
            first = last

    def _pieces(self, group: int, rows: int) -> Iterator[pa.RecordBatch]:
        at_once = rows_within(self._file, self._body, group, DECODED_BYTES)
        if at_once >= rows:
            yield self._decode(group, RECORD_SCHEMA)
            return
        columns = RECORD_SCHEMA.names
        try:
            for piece in self._file.iter_batches(at_once, row_groups=[group], columns=columns, use_threads=False):
                yield piece.select(columns).cast(RECORD_SCHEMA)
        except (pa.ArrowException, OSError, KeyError) as error:
            raise self._corrupt(error) from None

    def columns(self, names: Sequence[str]) -> Generator[tuple[list[pa.Array], pa.Int64Array], None, None]:
        """The columns `names` of `RECORD_SCHEMA` and the sequences, a row group at a time. CPU-heavy, too."""
        schema = pa.schema([RECORD_SCHEMA.field(name) for name in names])
        first = 0
        for group in range(self._file.num_row_groups):
            last = first + self._file.metadata.row_group(group).num_rows
            yield (self._decode(group, schema).columns if names else []), self._sequences(first, last)
            first = last

    def first_at(self, time: int) -> int:
        """Number of records before the first one whose timestamp is at or after `time` (microseconds since 1970)."""
        for batch in self.batches():
            late = pc.greater_equal(batch.data.column("timestamp").cast(pa.int64()), time)
            if (index := pc.index(late, True).as_py()) >= 0:
                return batch.first - self.base + int(index)
        return self.rows

    def _sequences(self, first: int, last: int) -> pa.Int64Array:
        return pa.array(np.arange(self.base + first, self.base + last, dtype=np.int64))

    def _decode(self, group: int, schema: pa.Schema) -> pa.RecordBatch:
        try:
            table = self._file.read_row_group(group, columns=schema.names, use_threads=False)
            if not table.schema.equals(schema):
                table = table.select(schema.names).cast(schema)
            return table.combine_chunks().to_batches()[0]
        except (pa.ArrowException, OSError, KeyError) as error:
            raise self._corrupt(error) from None

    def _corrupt(self, error: Exception) -> CorruptObject:
        return CorruptObject(self.key, f"cannot be read ({error}); {RESTORE}: nothing beyond it is read before")

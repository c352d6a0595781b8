"""A segment: one Parquet file of a partition of the log. Encodes it, and decodes it in row groups.

A partition is a chain of segments. A segment is named by its base, the sequence of its first record; the base of the next
one is that plus the number of rows. The producer that creates a base decides what it holds, so producers need no broker to
agree on an order. Sequences are dense, but only this package may rely on that.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from actorproc.errors import RESTORE, CorruptObject
from actorproc.records import RECORD_SCHEMA, Batch
from actorproc.storage.document import document, to_document
from actorproc.storage.names import log_file
from actorproc.storage.parquet import Footer, footer_from, footer_of, open_parquet, write_parquet

ROW_GROUP_BYTES = 4 * 2**20
"""Bytes of columns in a row group, about: what a reader has to hold at once, whatever the size of the file."""

_NOTES = "actorproc.log"


@dataclass(frozen=True, slots=True)
class SegmentFooter:
    """What the footer of a log file says of it. Times: microseconds since 1970.

    `running` is the greatest timestamp of this file and of all files below base `covers`. A producer that has lost a
    race for a base sends the same bytes at the next one, so `covers` may be lower than the file's own base: the files
    in between speak for themselves.
    """

    put_id: str
    producer: str
    newest: int
    running: int
    covers: int

    @classmethod
    def from_footer(cls, key: str, footer: Footer) -> Self:
        with document(key, footer.metadata.get(_NOTES, ""), "file of a log") as fields:
            if footer.rows < 1:
                raise CorruptObject(key, "has no records; no producer writes that")
            return cls(**fields)


def encode_file(table: pa.Table, notes: SegmentFooter, compression: str) -> bytes:
    """A log file of `table`, which has the columns of `RECORD_SCHEMA`. CPU-heavy: run it off the loop."""
    key = table.column("key")
    sample = key.slice(0, 1000)
    repeats = pc.count_distinct(sample).as_py() * 2 <= len(sample)
    return write_parquet(
        table,
        {_NOTES: to_document(asdict(notes)).decode()},
        row_group_rows=max(1, -(-table.num_rows // max(1, round(table.nbytes / ROW_GROUP_BYTES)))),
        compression=compression,
        # Payloads hardly ever repeat, and trying a dictionary costs; statistics of them tell nothing.
        use_dictionary=["key", "timestamp"] if repeats else ["timestamp"],
        write_statistics=["timestamp"],
    )


class Segment:
    """A log file in memory.

    Raises (everywhere):
        CorruptObject: it is not what a producer wrote.
    """

    def __init__(self, partition: str, base: int, body: bytes) -> None:
        self.partition = partition
        self.base = base
        self.key = log_file(partition, base)
        try:
            self._file = open_parquet(body)
        except (pa.ArrowException, OSError) as error:
            footer_of(self.key, body)  # may know more of what is wrong
            raise self._corrupt(error) from None
        described = self._file.metadata
        footer = footer_from(self.key, described)
        self.notes = SegmentFooter.from_footer(self.key, footer)
        self.rows = footer.rows
        if sum(described.row_group(group).num_rows for group in range(self._file.num_row_groups)) != self.rows:
            raise CorruptObject(self.key, f"its row groups do not add up to its {self.rows} records")

    @property
    def next(self) -> int:
        """Base of the file after this one."""
        return self.base + self.rows

    @property
    def group_bytes(self) -> int:
        """About what its largest row group takes in memory."""
        described = self._file.metadata
        return max(int(described.row_group(group).total_byte_size) for group in range(self._file.num_row_groups))

    def batches(self, skip: int = 0) -> Generator[Batch, None, None]:
        """Its records but the first `skip`, a row group at a time. Each step is CPU-heavy: run it off the loop."""
        first = 0
        for group in range(self._file.num_row_groups):
            last = first + self._file.metadata.row_group(group).num_rows
            if last > skip:
                data = self._decode(group, RECORD_SCHEMA)
                start = max(skip - first, 0)
                yield Batch(self.partition, data, self._sequences(first, last))[start:]
            first = last

    def columns(self, names: Sequence[str]) -> Generator[tuple[list[pa.Array], pa.Int64Array], None, None]:
        """Of all its records the columns `names` of `RECORD_SCHEMA` alone, and the sequences; otherwise as `batches`."""
        schema = pa.schema([RECORD_SCHEMA.field(name) for name in names])
        first = 0
        for group in range(self._file.num_row_groups):
            last = first + self._file.metadata.row_group(group).num_rows
            yield (self._decode(group, schema).columns if names else []), self._sequences(first, last)
            first = last

    def first_at(self, time: int) -> int:
        """How many records come before the first one that is as late as `time`, in microseconds since 1970."""
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

"""Compacted files: the rows of consecutive commits in order, and a footer with the row count of each commit."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from actorproc.errors import CorruptObject
from actorproc.output.chain import Commit
from actorproc.output.checkpoint import Totals
from actorproc.records import Cursor
from actorproc.rows.casting import nulls
from actorproc.storage.document import Document
from actorproc.storage.parquet import (
    Footer,
    footer_from,
    growing_columns,
    open_parquet,
    open_writer,
    rows_within,
    sealed,
)

_COMPACTED = "actorproc.compacted"

_GROUP_BYTES = 64 * 2**20  # of rows in Arrow memory: the size of a row group, and of the writer's buffer
_GROUP_ROWS = 2**20


class RowRange(NamedTuple):
    """Rows `skip` to `stop` (exclusive) of a file. `next`: the number after the commits that they belong to."""

    skip: int
    stop: int
    next: int


_DECODED_BYTES = 64 * 2**20  # decoded at once


@dataclass(frozen=True, slots=True, eq=False)
class CompactedCommits:
    """The footer of a compacted file. Arrays have an entry for each commit, from number `first` on."""

    put_id: str
    first: int
    rows: np.ndarray
    """Row counts, as int64."""
    times: np.ndarray
    """Times of the commits: seconds since 1970 by their hosts' clocks."""
    last: Cursor
    """End of the last commit."""
    totals: Totals
    """Of the partition, with the last commit."""

    @property
    def next(self) -> int:
        """The number after the last commit."""
        return self.first + len(self.rows)

    @property
    def rows_before_file(self) -> int:
        """Number of rows of the partition before this file."""
        return self.totals.rows - int(self.rows.sum())

    def rows_before(self, number: int) -> int:
        """Number of rows in this file of the commits below `number`."""
        return int(self.rows[: max(0, number - self.first)].sum())

    def part(self, key: str, number: int, stop: int) -> RowRange:
        """See `rows_of_commits`."""
        if not self.first <= number < self.next:
            raise CorruptObject(key, f"holds the commits {self.first} to {self.next - 1}, and not {number}")
        stop = min(stop, self.next)
        return RowRange(self.rows_before(number), self.rows_before(stop), stop)

    def metadata(self) -> dict[str, str]:
        """The entry in the Parquet footer."""
        times = np.round(self.times * 1e6).astype(np.int64)
        footer = _StoredFooter(
            self.first, len(self.rows), _packed(self.rows), _packed(times), self.last, self.totals, put_id=self.put_id
        )
        return {_COMPACTED: footer.to_json().decode()}

    @classmethod
    def from_metadata(cls, key: str, metadata: Mapping[str, str]) -> Self:
        """Raises CorruptObject if this is not the footer of a compacted file."""
        stored = _StoredFooter.from_json(key, metadata.get(_COMPACTED, ""))
        return cls(
            put_id=stored.put_id,
            first=stored.first,
            rows=_unpacked(stored.rows, stored.count),
            times=_unpacked(stored.times, stored.count) / 1e6,
            last=stored.last,
            totals=stored.totals,
        )


class _StoredFooter(Document, frozen=True):
    """Arrays are stored as compressed differences: `times` in microseconds since 1970."""

    first: int
    count: int
    rows: bytes
    times: bytes
    last: Cursor
    totals: Totals


def _packed(numbers: np.ndarray) -> bytes:
    steps = np.diff(numbers, prepend=0)
    return bytes(pa.compress(steps.tobytes(), codec="zstd", asbytes=True))


def _unpacked(packed: bytes, count: int) -> np.ndarray:
    body = pa.decompress(packed, decompressed_size=8 * count, codec="zstd", asbytes=True)
    return np.cumsum(np.frombuffer(body, np.int64))


def rows_of_commits(key: str, footer: Footer, number: int, stop: int) -> RowRange:
    """The rows of the commits from `number` up to `stop` (exclusive) in an output file, compacted or not.

    Raises:
        CorruptObject: the file is corrupt, or does not hold commit `number`.
    """
    if _COMPACTED not in footer.metadata:
        return RowRange(0, footer.rows, number + 1)
    return CompactedCommits.from_metadata(key, footer.metadata).part(key, number, stop)


def batches_of(
    file: pq.ParquetFile,
    skip: int,
    stop: int,
    rows: int,
    columns: Sequence[str] | None = None,
    *,
    body: bytes | None = None,
) -> Iterator[pa.RecordBatch]:
    """Rows `skip` to `stop` in batches of at most `rows`. Row groups without any of these rows are not read.

    A batch never spans two row groups, because their size bounds the memory that a batch takes.

    Args:
        body: of the file, where a batch is to be smaller if its rows unpack to much.
    """
    begin, groups, first = 0, [], None
    for group in range(file.num_row_groups):
        end = begin + file.metadata.row_group(group).num_rows
        if begin < stop and end > skip:
            groups.append(group)
            first = begin if first is None else first
        begin = end
    at = first or 0
    for group in groups:
        most = rows if body is None else min(rows, rows_within(file, body, group, _DECODED_BYTES))
        for batch in file.iter_batches(most, row_groups=[group], columns=columns, use_threads=False):
            inside = batch.slice(max(0, skip - at), max(0, stop - max(at, skip)))
            at += batch.num_rows
            if inside.num_rows:
                yield inside


class FileMerger:
    """Merges consecutive output files, compacted or not, into one. Holds that file and one row group in memory.

    Args:
        schema: current schema of the dataset, with `_sequence`. Columns that a file does not have are null.
        first: number of the first commit.
    """

    def __init__(self, schema: pa.Schema, first: int, put_id: str) -> None:
        self._schema = schema
        self._first = first
        self._put_id = put_id
        self._sink = io.BytesIO()
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = self._waiting_rows = 0
        self._rows: list[int] = []
        self._times: list[float] = []
        self._last = Cursor("")
        self._totals = Totals()

    def add(self, key: str, body: bytes, *, compacted: bool) -> None:
        """Append the next file. CPU-heavy.

        Raises:
            CorruptObject: it is corrupt, or does not follow the file before.
        """
        try:
            file = open_parquet(body)
            footer = footer_from(key, file.metadata)
            if unknown := [name for name in file.schema_arrow.names if name not in self._schema.names]:
                raise CorruptObject(key, f"has columns that the dataset does not have: {', '.join(unknown)}")
            for batch in batches_of(file, 0, footer.rows, _GROUP_ROWS // 8):
                self._wait(self._fitted(batch))
        except (pa.ArrowException, OSError) as error:
            raise CorruptObject.unreadable(key, error) from None
        if compacted:
            contents = CompactedCommits.from_metadata(key, footer.metadata)
            follows = contents.first == self._first + len(self._rows)
            rows, times, last, totals = contents.rows.tolist(), contents.times.tolist(), contents.last, contents.totals
        else:
            commit = Commit.from_footer(key, footer)
            follows = not self._rows or commit.totals.rows - commit.rows == self._totals.rows
            rows, times, last, totals = [commit.rows], [commit.time], commit.next, commit.totals
        if not follows or sum(rows) != footer.rows:
            raise CorruptObject(
                key, "does not follow the file before it, or has another number of rows than its footer says"
            )
        self._rows += rows
        self._times += times
        self._last, self._totals = last, totals

    def finish(self) -> tuple[bytes, CompactedCommits]:
        """The merged file, and its footer."""
        self._write()
        rows, times = np.array(self._rows, np.int64), np.array(self._times)
        contents = CompactedCommits(self._put_id, self._first, rows, times, self._last, self._totals)
        writer = self._opened(self._schema.empty_table())
        writer.add_key_value_metadata(sealed(contents.metadata()))
        writer.close()
        return self._sink.getvalue(), contents

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        there = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns = []
        for field in self._schema:
            column = there.get(field.name)
            if column is None:
                column = nulls(batch.num_rows, field.type)
            elif not column.type.equals(field.type):
                column = column.cast(field.type)
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _wait(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        self._waiting_rows += batch.num_rows
        if self._waiting_bytes >= _GROUP_BYTES or self._waiting_rows >= _GROUP_ROWS:
            self._write()

    def _write(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, self._schema)
            self._waiting, self._waiting_bytes, self._waiting_rows = [], 0, 0
            self._opened(table).write_table(table, row_group_size=table.num_rows)

    def _opened(self, table: pa.Table) -> pq.ParquetWriter:
        """The writer, created with the first rows, from which encodings are chosen."""
        if self._writer is None:
            self._writer = open_writer(self._sink, self._schema, growing_columns(table))
        return self._writer

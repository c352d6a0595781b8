"""Merges consecutive output files into one compacted file."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from actorproc.counts import Counts
from actorproc.errors import CorruptObject
from actorproc.output.chain import Commit
from actorproc.output.checkpoint import Reset
from actorproc.output.compacted_file import CompactedCommits, batches_of
from actorproc.records import Cursor
from actorproc.rows.casting import fitted
from actorproc.storage.parquet import Footer, footer_from, growing_columns, open_parquet, open_writer, sealed

_GROUP_BYTES = 64 * 2**20  # of rows in Arrow memory: the size of a row group, and of the writer's buffer
_GROUP_ROWS = 2**20


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
        self._put_ids: list[str] = []
        self._reset: Reset | None = None
        self._last = Cursor("")
        self._totals = Counts()
        self._begin: int | None = None

    def add(self, key: str, body: bytes, *, compacted: bool) -> bool:
        """Append the next file, unless it begins with a reset and others are before it. CPU-heavy.

        Returns:
            Whether it was appended. If not, it is the first of the next merged file (rule `apart`).

        Raises:
            CorruptObject: it is corrupt, or does not follow the file before.
        """
        try:
            file = open_parquet(body)
            footer = footer_from(key, file.metadata)
            commits = _commits(key, footer, compacted=compacted)
            if commits.reset is not None and self._rows:
                return False
            if unknown := [name for name in file.schema_arrow.names if name not in self._schema.names]:
                raise CorruptObject(key, f"has columns that the dataset does not have: {', '.join(unknown)}")
            for batch in batches_of(file, 0, footer.rows, _GROUP_ROWS // 8):
                self._wait(fitted(batch, self._schema))
        except (pa.ArrowException, OSError) as error:
            raise CorruptObject.unreadable(key, error) from None
        follows = not self._rows or commits.rows_before_file == self._totals.rows
        if compacted:
            follows = commits.first == self._first + len(self._rows)
        if not follows or int(commits.rows.sum()) != footer.rows:
            raise CorruptObject(
                key, "does not follow the file before it, or has another number of rows than its footer says"
            )
        self._reset = self._reset or commits.reset
        self._begin = self._begin if self._rows else commits.begin
        self._rows += commits.rows.tolist()
        self._times += commits.times.tolist()
        self._put_ids += commits.put_ids
        self._last, self._totals = commits.last, commits.totals
        return True

    def finish(self) -> tuple[bytes, CompactedCommits]:
        """The merged file, and its footer."""
        self._write()
        rows, times = np.array(self._rows, np.int64), np.array(self._times)
        contents = CompactedCommits(
            self._put_id,
            self._first,
            rows,
            times,
            self._last,
            self._totals,
            tuple(self._put_ids),
            self._reset,
            self._begin,
        )
        writer = self._opened(self._schema.empty_table())
        writer.add_key_value_metadata(sealed(contents.metadata()))
        writer.close()
        return self._sink.getvalue(), contents

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


def _commits(key: str, footer: Footer, *, compacted: bool) -> CompactedCommits:
    """The commits of a file. `first` of an original is not known here."""
    if compacted:
        return CompactedCommits.from_metadata(key, footer.metadata)
    commit = Commit.from_footer(key, footer)
    return CompactedCommits(
        "", 0, np.array([commit.rows], np.int64), np.array([commit.time]), commit.next, commit.totals,
        (commit.put_id,), commit.reset, commit.first.sequence,
    )  # fmt: skip

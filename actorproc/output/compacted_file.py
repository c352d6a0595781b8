"""Compacted files: the rows of consecutive commits in order, and a footer with the row count of each commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from actorproc.counts import Counts
from actorproc.errors import CorruptObject
from actorproc.output.checkpoint import Reset
from actorproc.records import Cursor
from actorproc.storage.document import Document
from actorproc.storage.parquet import Footer, rows_within

_COMPACTED = "actorproc.compacted"


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
    totals: Counts
    """Of the partition, with the last commit."""
    put_ids: tuple[str, ...]
    """Of the commits. "": not known, because an earlier version of actorproc compacted this commit."""
    reset: Reset | None = None
    """The first commit is this reset. No other one is, unless its put-id is not known."""
    begin: int | None = None
    """The sequence after which the first commit begins. None: an earlier version of actorproc compacted it."""

    @property
    def are_known(self) -> bool:
        """Whether put-ids and resets of all commits are known."""
        return all(self.put_ids)

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
        put_ids = _joined(self.put_ids)
        footer = _StoredFooter(
            self.first, len(self.rows), _packed(self.rows), _packed(times), self.last, self.totals,
            pa.compress(put_ids, codec="zstd", asbytes=True), len(put_ids), self.reset, self.begin,
            put_id=self.put_id,
        )  # fmt: skip
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
            put_ids=stored.all_put_ids(),
            reset=stored.reset,
            begin=stored.begin,
        )


class _StoredFooter(Document, frozen=True):
    """Arrays are stored as compressed differences: `times` in microseconds since 1970."""

    first: int
    count: int
    rows: bytes
    times: bytes
    last: Cursor
    totals: Counts
    put_ids: bytes = b""
    """A line each, compressed. Earlier versions of actorproc stored neither them nor resets."""
    put_ids_size: int = 0
    reset: Reset | None = None
    begin: int | None = None

    def all_put_ids(self) -> tuple[str, ...]:
        if not self.put_ids_size:
            return ("",) * self.count
        text = pa.decompress(self.put_ids, decompressed_size=self.put_ids_size, codec="zstd", asbytes=True)
        return tuple(text.decode().split("\n"))


def _packed(numbers: np.ndarray) -> bytes:
    steps = np.diff(numbers, prepend=0)
    return bytes(pa.compress(steps.tobytes(), codec="zstd", asbytes=True))


def _unpacked(packed: bytes, count: int) -> np.ndarray:
    body = pa.decompress(packed, decompressed_size=8 * count, codec="zstd", asbytes=True)
    return np.cumsum(np.frombuffer(body, np.int64))


def _joined(put_ids: Sequence[str]) -> bytes:
    return "\n".join(put_ids).encode() if any(put_ids) else b""


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

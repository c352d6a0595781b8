"""The rows of committed commits, in the order of their numbers: as they were just committed, or read from the chain."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import anyio
import pyarrow as pa
import pyarrow.parquet as pq

from actorproc.errors import CorruptObject
from actorproc.output.compacted_file import CompactedCommits, batches_of
from actorproc.output.follower import ChainFollower, CommittedFile
from actorproc.output.output_files import key_of
from actorproc.records import SEQUENCE
from actorproc.retention.boundary import Boundary
from actorproc.rows.casting import fitted
from actorproc.runtime.budget import BufferShare, BufferTotal
from actorproc.runtime.clock import Clock
from actorproc.sinks.protocol import SinkError
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.parquet import open_parquet, read_footer
from actorproc.storage.store import Store


@dataclass(frozen=True, slots=True)
class CommitRows:
    """The rows of commits from number `first` on."""

    first: int
    rows: pa.Table
    counts: list[int]
    put_ids: list[str]
    """Of each commit; "": not known, as an earlier version of actorproc has compacted it."""
    begin: int | None = None
    """The sequence after which the first commit begins; None: not known, in a compacted file of an earlier version."""
    reset_to: int | None = None
    """The first commit is a reset back to this sequence."""
    place: tuple[int, float] | None = None
    """Rows of the partition before the first commit, and its time in seconds since 1970; None: not read."""

    @property
    def next(self) -> int:
        """The number after these commits."""
        return self.first + len(self.counts)

    @property
    def put_id(self) -> str:
        """Of the last commit."""
        return self.put_ids[-1]


class RecentCommits:
    """Commits that this owner has just made, for its deliveries. Older ones are read again.

    Args:
        total: bytes that all partitions of the host keep for one sink. Beyond its size, those that keep most drop some.
    """

    def __init__(self, total: BufferTotal) -> None:
        self._share = BufferShare(total)
        self._commits: deque[tuple[int, pa.Table, str, int]] = deque()

    def add(self, number: int, rows: pa.Table, put_id: str, begin: int) -> None:
        if self._commits and number != self._commits[-1][0] + 1:
            self.clear()
        self._commits.append((number, rows, put_id, begin))
        self._share.add(rows.nbytes)
        while self._commits and self._share.excessive():
            self._drop()

    def forget(self, below: int) -> None:
        """No delivery needs the commits below this number any more."""
        while self._commits and self._commits[0][0] < below:
            self._drop()

    def clear(self) -> None:
        """Keep nothing."""
        self._commits.clear()
        self._share.clear()

    def _drop(self) -> None:
        size = self._commits.popleft()[1].nbytes
        if self._commits:
            self._share.add(-size)
        else:
            self._share.clear()

    def since(self, number: int, most_rows: int) -> CommitRows | None:
        """The commits from `number` on, up to some `most_rows` rows; None if they are not here."""
        if not self._commits or not self._commits[0][0] <= number <= self._commits[-1][0]:
            return None
        tables, rows, put_ids, first = list[pa.Table](), 0, list[str](), 0
        for each, table, put_id, begin in self._commits:
            if each < number:
                continue
            if tables and rows + table.num_rows > most_rows:
                break
            first = first if tables else begin
            tables.append(table)
            put_ids.append(put_id)
            rows += table.num_rows
        return CommitRows(number, pa.concat_tables(tables), [table.num_rows for table in tables], put_ids, first)


class StoredCommits:
    """Reads commits from the chain. Keeps the file that it has fetched, since a compacted one holds many commits.

    Args:
        schema: of the rows, with `_sequence`. Columns that an older commit does not have are null.
        slots: so many files the host holds for one sink at once.
        every: whether the sink gets every column, also one that this host does not know (rule `wide`).
    """

    def __init__(
        self, follower: ChainFollower, schema: pa.Schema, clock: Clock, slots: anyio.CapacityLimiter, *, every: bool
    ) -> None:
        self._follower = follower
        self._slots = slots
        self._schema, self._every = schema, every
        self._clock = clock
        self._file: CommittedFile | None = None
        self._holds = False

    async def since(self, number: int, most_rows: int) -> CommitRows | None:
        """The commits from `number` on, up to some `most_rows` rows; None: there is none yet.

        A reset is the first one that is returned, since a delivery deletes before it adds (rule `order`): it begins
        a file.

        Raises:
            CorruptObject: a file is corrupt.
            SourceError: the commit was trimmed.
            SinkError: the commit has a column that this host does not know.
        """
        file = self._file
        if file is None or not file.next - len(file.counts) <= number < file.next:
            self.close()
            file = self._file = await self._follower.file(number, self._wait)
        if file is None:
            self.close()
            return None
        found = await self._clock.run_in_thread(_rows_of, file, self._schema, number, most_rows, self._every)
        if found.next == file.next:
            self.close()
        return found

    def close(self) -> None:
        """Hold no file."""
        self._file = None
        if self._holds:
            self._holds = False
            self._slots.release_on_behalf_of(self)

    async def _wait(self, size: int) -> None:
        """The follower asks for memory before it fetches."""
        if not self._holds:
            await self._slots.acquire_on_behalf_of(self)
            self._holds = True


def _rows_of(file: CommittedFile, schema: pa.Schema, number: int, most_rows: int, every: bool) -> CommitRows:
    counts = file.counts.tolist()
    at = number - (file.next - len(counts))
    skip, taken = sum(counts[:at]), list[int]()
    for count in counts[at:]:
        if taken and sum(taken) + count > most_rows:
            break
        taken.append(count)
    try:
        parquet = open_parquet(file.body)
        unknown = [name for name in parquet.schema_arrow.names if name not in schema.names]
        if every and unknown:
            raise SinkError(
                f"commit {number} has the column {unknown[0]}, which the handler of this host does not have. A host "
                "with the later version of the handler delivers it"
            )
        batches = list(batches_of(parquet, skip, skip + sum(taken), most_rows))
        begin = _begin(file, parquet, at, skip)
    except (pa.ArrowException, OSError) as error:
        raise CorruptObject.unreadable(file.key, error) from None
    rows = pa.Table.from_batches(batches) if batches else schema.empty_table()
    put_ids = list(file.put_ids[at : at + len(taken)])
    back, place = None if at else _goes_back_to(file), (file.before + skip, float(file.times[at]))
    return CommitRows(number, fitted(rows, schema), taken, put_ids, begin, back, place)


def _goes_back_to(file: CommittedFile) -> int | None:
    """A reset forward deletes nothing: the partition may have passed its target."""
    return file.reset.next.sequence if file.reset is not None and file.reset.back else None


def _begin(file: CommittedFile, parquet: pq.ParquetFile, at: int, skip: int) -> int | None:
    """The sequence after which a commit begins: number `at` of the file, with `skip` rows before it.

    A compacted file has no cursors of its commits: the last row before it counts.
    """
    if not all(file.put_ids):
        return None
    if skip:
        (last,) = batches_of(parquet, skip - 1, skip, 1, [SEQUENCE.name])
        return int(last.column(0)[0].as_py())
    back = _goes_back_to(file)
    return back if at and back is not None else file.begin


async def compacted_put_id(
    store: Store, layout: ProcessorLayout, partition: str, boundary: Boundary, number: int
) -> str | None:
    """The put-id of a commit that was compacted; None: nobody knows, since it was trimmed, or an earlier version of
    actorproc has compacted it. Reads a footer."""
    held = boundary.range_of(number)
    if held is None:
        return None
    key = key_of(layout, partition, held.first, held)
    footer = await read_footer(store, key)
    if footer is None:
        return None
    commits = CompactedCommits.from_metadata(key, footer.metadata)
    return commits.put_ids[number - commits.first] or None

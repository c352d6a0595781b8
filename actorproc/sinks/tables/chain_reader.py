"""Reads what the chain has that a table does not: commits behind its positions, and compacted files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from actorproc.output.chain import Commit
from actorproc.output.compacted_file import CompactedCommits
from actorproc.output.output_files import key_of
from actorproc.output.row_reader import partitions_with_state
from actorproc.retention.boundary import NOTHING_TRIMMED, Boundaries, Boundary, CompactedRange
from actorproc.retention.readers import SinkEntry
from actorproc.runtime.tasks import gather
from actorproc.sinks.tables.plan import ListedCommit, ListedRange, PartitionView
from actorproc.sinks.tables.protocol import AddedFile, TableSnapshot
from actorproc.storage.listing import numbered_files
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.parquet import TAIL, Footer, footer_from, parse_metadata
from actorproc.storage.store import Store

MOST_COMMITS = 1_000
"""Commits of a partition that one transaction takes: a table that begins late takes its files by and by."""

_AT_ONCE = 64  # footers, of 64 KiB mostly


def mark_of(put_id: str) -> int:
    """A number for a put-id: tables keep numbers. Never 0, which means that it is not known."""
    return int.from_bytes(hashlib.sha256(put_id.encode()).digest()[:7]) | 1


class _FoundFooter(NamedTuple):
    footer: Footer
    note: Any


class ChainReader:
    """The chain as committers of a table see it. Caches boundaries, and how far compacted files go.

    Args:
        describe: see `TableSink.describe`.
    """

    def __init__(self, store: Store, layout: ProcessorLayout, describe: Callable[[pq.FileMetaData], Any]) -> None:
        self._store, self._layout, self._describe = store, layout, describe
        self._boundaries = Boundaries(layout.boundaries)
        self._ends: dict[str, int] = {}  # by key of a compacted file

    async def views(self, table: TableSnapshot, entry: SinkEntry) -> list[PartitionView]:
        """What plans rest on. `table` was loaded before.

        Commits are listed before the boundaries are read: what these call originals was there.

        Raises:
            CorruptObject: a footer is corrupt.
        """
        partitions = await partitions_with_state(self._store, self._layout)
        anew = table.life != entry.life
        places = {} if anew else table.places
        starts = {p: places[p].position if p in places else entry.part(p).start for p in partitions}
        before = await self._boundaries.read(self._store)
        commits = await gather(
            partitions, lambda p: self._commits(p, starts[p], before.get(p, NOTHING_TRIMMED), everything=anew)
        )
        after = await self._boundaries.read(self._store)

        async def view(partition: str) -> PartitionView:
            boundary, place = after.get(partition, NOTHING_TRIMMED), places.get(partition)
            named = table.files.of(partition)
            found = PartitionView(
                partition, place, entry.part(partition).start, named, boundary, commits[partition],
                others=table.files.others_of(partition) if anew else {}, anew=anew,
            )  # fmt: skip
            if place is not None and place.seen == boundary.changes and place.position >= boundary.originals:
                return replace(found, settled=True)
            ranges = await self._ranges(partition, boundary, {} if anew else named)
            return replace(found, ranges=ranges, ends=await self._ends_of(partition, boundary, named))

        return list((await gather(partitions, view)).values())

    async def put_mark(self, partition: str, number: int) -> int | None:
        """The mark of a commit; None: there is no such commit. 0: nobody knows, since it was trimmed, or an earlier
        version of actorproc has compacted it."""
        boundary = (await self._boundaries.read(self._store)).get(partition, NOTHING_TRIMMED)
        if number < boundary.originals:
            return await self._compacted_mark(partition, number, boundary.range_of(number))
        key = self._layout.output_file(partition, number)
        found = await self._footer(key)
        return None if found is None else mark_of(Commit.from_footer(key, found.footer).put_id)

    async def _compacted_mark(self, partition: str, number: int, held: CompactedRange | None) -> int:
        if held is None:
            return 0
        key = key_of(self._layout, partition, held.first, held)
        if (found := await self._footer(key)) is None:
            return 0
        commits = CompactedCommits.from_metadata(key, found.footer.metadata)
        put_id = commits.put_ids[number - commits.first]
        return mark_of(put_id) if put_id else 0

    async def boundaries(self) -> Mapping[str, Boundary]:
        """The boundaries now."""
        return await self._boundaries.read(self._store)

    # Originals

    async def _commits(
        self, partition: str, start: int, boundary: Boundary, *, everything: bool
    ) -> dict[int, ListedCommit]:
        """The originals from `start` on that count, and those behind it of a range that begins before it."""
        straddling = boundary.range_of(start)
        numbers = []
        if straddling is not None and straddling.first < start:
            numbers += await self._numbers(partition, start, straddling.next - start)
            numbers = [number for number in numbers if number < straddling.next]
        first = max(start, boundary.originals)
        if (newest := await self._commit(partition, first)) is None:
            return await self._commits_of(partition, numbers)
        numbers += await self._numbers(partition, first + 1, None if everything else MOST_COMMITS)
        return {first: newest, **await self._commits_of(partition, numbers)}

    async def _numbers(self, partition: str, first: int, limit: int | None) -> list[int]:
        folder = self._layout.output_dir(partition)
        return [number for number, _ in await numbered_files(self._store, folder, first, limit)]

    async def _commits_of(self, partition: str, numbers: Sequence[int]) -> dict[int, ListedCommit]:
        found: dict[int, ListedCommit] = {}
        for start in range(0, len(numbers), _AT_ONCE):
            some = await gather(numbers[start : start + _AT_ONCE], lambda number: self._commit(partition, number))
            found |= {number: commit for number, commit in some.items() if commit is not None}
        return found

    async def _commit(self, partition: str, number: int) -> ListedCommit | None:
        key = self._layout.output_file(partition, number)
        if (found := await self._footer(key)) is None:
            return None
        commit = Commit.from_footer(key, found.footer)
        file = AddedFile(key, partition, found.footer.size, found.footer.rows, commit.time, found.note)
        back = commit.reset is not None and commit.reset.back
        return ListedCommit(file, mark_of(commit.put_id), commit.next.sequence if back else None)

    # Compacted files

    async def _ranges(self, partition: str, boundary: Boundary, named: Mapping[str, Any]) -> dict[int, ListedRange]:
        """The compacted files that the table does not name. One that is missing was replaced meanwhile."""
        keys = {r: key_of(self._layout, partition, r.first, r) for r in boundary.ranges}
        wanted = [r for r in boundary.ranges if keys[r] not in named]
        found = await gather(wanted, lambda r: self._range(partition, keys[r], r))
        return {r.first: listed for r, listed in found.items() if listed is not None}

    async def _range(self, partition: str, key: str, held: CompactedRange) -> ListedRange | None:
        if (found := await self._footer(key)) is None:
            return None
        commits = CompactedCommits.from_metadata(key, found.footer.metadata)
        self._ends[key] = commits.next
        file = AddedFile(key, partition, found.footer.size, found.footer.rows, held.time, found.note)
        back = commits.reset is not None and commits.reset.back
        return ListedRange(file, commits.rows.tolist(), commits.reset.next.sequence if back and commits.reset else None)

    async def _ends_of(self, partition: str, boundary: Boundary, named: Mapping[str, Any]) -> dict[str, int]:
        """The number after the last commit of each compacted file that the table names."""
        self._ends |= {key_of(self._layout, partition, r.first, r): r.next for r in boundary.ranges}
        compacted = [key for key, file in named.items() if file.compacted]

        async def end(key: str) -> int:
            found = await self._footer(key)
            # One that is gone was deleted by hand, or while the table was not registered: it has nothing that counts.
            return 0 if found is None else CompactedCommits.from_metadata(key, found.footer.metadata).next

        self._ends |= await gather([key for key in compacted if key not in self._ends], end)
        return {key: self._ends[key] for key in compacted}

    async def _footer(self, key: str) -> _FoundFooter | None:
        length = TAIL
        while (stored := await self._store.get(key, tail=length)) is not None:
            found = await self._store.clock.run_in_thread(self._parse, key, stored.body, stored.tag, stored.size)
            if not isinstance(found, int):
                return found
            length = found
        return None

    def _parse(self, key: str, tail: bytes, tag: str, size: int) -> _FoundFooter | int:
        parsed = parse_metadata(key, tail, size=size)
        if isinstance(parsed, int):
            return parsed
        return _FoundFooter(footer_from(key, parsed, tag=tag, size=size), self._describe(parsed))

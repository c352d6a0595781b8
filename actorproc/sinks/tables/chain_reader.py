"""Reads what the chain has that a table does not: commits behind its positions, and compacted files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from math import inf
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from actorproc.output.chain import Commit
from actorproc.output.compacted_file import CompactedCommits
from actorproc.output.output_files import key_of
from actorproc.retention.boundary import NOTHING_TRIMMED, Boundaries, Boundary, CompactedRange
from actorproc.retention.readers import SinkEntry
from actorproc.runtime.tasks import gather
from actorproc.sinks.tables.news import ChainNews
from actorproc.sinks.tables.ownership import Choice, leaving
from actorproc.sinks.tables.plan import ListedCommit, ListedRange, PartitionView
from actorproc.sinks.tables.protocol import AddedFile, Place, TableSnapshot
from actorproc.storage.backend import Stored
from actorproc.storage.listing import numbered_files
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.parquet import TAIL, Footer, footer_from, parse_metadata
from actorproc.storage.store import Store

_MOST_COMMITS = 10_000
"""Commits that one transaction takes: a table that begins late takes its files by and by."""

_AT_ONCE = 64  # footers, of 64 KiB mostly


def mark_of(put_id: str) -> int:
    """A number for a put-id: tables keep numbers. Never 0, which means that it is not known."""
    return int.from_bytes(hashlib.sha256(put_id.encode()).digest()[:7]) | 1


_COST = 16 * 2**10
"""Bytes that take as long as parsing a footer: two are worth a thread."""

_Numbered = tuple[str, int]
"""A partition, and the number of a commit."""


class _FoundFooter(NamedTuple):
    footer: Footer
    note: Any


class ChainViews(NamedTuple):
    """What plans rest on."""

    boundaries: Mapping[str, Boundary]
    due: Sequence[PartitionView]
    """Of the partitions that a transaction may have to change."""


class ChainReader:
    """The chain as committers of a table see it. Caches boundaries, ends, and how far compacted files go.

    Args:
        describe: see `TableSink.describe`.
        follow: see `ChainNews`.
    """

    def __init__(
        self,
        store: Store,
        layout: ProcessorLayout,
        describe: Callable[[pq.FileMetaData], Any],
        follow: Callable[[str], None] = lambda address: None,
    ) -> None:
        self._store, self._layout, self._describe = store, layout, describe
        self._boundaries = Boundaries(layout.boundaries)
        self._ends: dict[str, int] = {}  # by key of a compacted file
        self.news = ChainNews(store, layout, follow)

    async def views(self, table: TableSnapshot, entry: SinkEntry, others: Choice = "refuse") -> ChainViews:
        """What plans rest on. `table` was loaded before.

        Commits are listed before the boundaries are read: what these call originals was there.

        Args:
            others: of a table that is made anew.

        Raises:
            CorruptObject: a footer is corrupt.
            SinkRefused: see `leaving`.
        """
        partitions = await self.news.look()
        anew = table.life != entry.life
        places = {} if anew else table.places
        before = await self._boundaries.read(self._store)

        def is_done(partition: str, boundaries: Mapping[str, Boundary]) -> bool:
            place = places.get(partition)
            settled = place is not None and _is_settled(place, boundaries.get(partition, NOTHING_TRIMMED))
            return settled and place is not None and self.news.is_end(partition, place.position)

        asked = [partition for partition in partitions if not is_done(partition, before)]
        starts = {p: places[p].position if p in places else entry.part(p).start for p in asked}
        commits = await self._commits(starts, before, everything=anew)
        after = await self._boundaries.read(self._store) if asked else before

        async def view(partition: str) -> PartitionView:
            boundary, place = after.get(partition, NOTHING_TRIMMED), places.get(partition)
            named = table.files.of(partition)
            start = entry.part(partition).start
            found = PartitionView(
                partition, place, start, named, boundary, commits.get(partition, {}),
                others=leaving(table.files, partition, first=not table.life, choice=others) if anew else {}, anew=anew,
            )  # fmt: skip
            if place is not None and _is_settled(place, boundary):
                return replace(found, settled=True)
            ranges = await self._ranges(partition, boundary, {} if anew else named)
            return replace(found, ranges=ranges, ends=await self._ends_of(partition, boundary, named))

        due = [partition for partition in partitions if commits.get(partition) or not is_done(partition, after)]
        return ChainViews(after, list((await gather(due, view)).values()))

    def is_taken(self, view: PartitionView, place: Place) -> bool:
        """Whether a table at this place has all of the partition that was there when it was viewed."""
        return _is_settled(place, view.boundary) and self.news.is_end(view.partition, place.position)

    async def put_mark(self, partition: str, number: int, boundary: Boundary) -> int | None:
        """The mark of a commit; None: there is no such commit. 0: nobody knows, since it was trimmed, or an earlier
        version of actorproc has compacted it."""
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
        self, starts: Mapping[str, int], boundaries: Mapping[str, Boundary], *, everything: bool
    ) -> dict[str, dict[int, ListedCommit]]:
        """By partition: the originals from its start on that count, up to one that is missing, and those behind the
        start of a range that begins before it."""
        most = inf if everything else max(1, _MOST_COMMITS // max(1, len(starts)))
        straddling = list[_Numbered]()
        following = dict[str, range]()  # numbers to ask for next
        for partition, start in starts.items():
            boundary = boundaries.get(partition, NOTHING_TRIMMED)
            held = boundary.range_of(start)
            if held is not None and held.first < start:
                behind = await self._numbers(partition, start, held.next - start)
                straddling += [(partition, number) for number in behind if number < held.next]
            first = max(start, boundary.originals)
            following[partition] = range(first, first + 1)
        firsts = {partition: numbers.start for partition, numbers in following.items()}
        found: dict[str, dict[int, ListedCommit]] = {partition: {} for partition in starts}
        for (partition, number), commit in (await self._listed(straddling)).items():
            found[partition][number] = commit
        while following:
            listed = await self._listed([(p, number) for p, numbers in following.items() for number in numbers])
            asked, following = following, {}
            for partition, numbers in asked.items():
                there = list(takewhile(lambda number: (partition, number) in listed, numbers))  # noqa: B023
                found[partition] |= {number: listed[partition, number] for number in there}
                if len(there) < len(numbers):
                    self.news.found_end(partition, numbers.start + len(there))
                elif (so_far := numbers.stop - firsts[partition]) < most:  # there may be as many again
                    following[partition] = range(numbers.stop, numbers.stop + min(_AT_ONCE, so_far))
        return found

    async def _numbers(self, partition: str, first: int, limit: int) -> list[int]:
        folder = self._layout.output_dir(partition)
        return [number for number, _ in await numbered_files(self._store, folder, first, limit)]

    async def _listed(self, wanted: Sequence[_Numbered]) -> dict[_Numbered, ListedCommit]:
        """Those that exist."""
        keys = {self._layout.output_file(*numbered): numbered for numbered in wanted}
        found: dict[_Numbered, ListedCommit] = {}
        order = list(keys)
        for start in range(0, len(order), _AT_ONCE):
            for key, footer in (await self._footers(order[start : start + _AT_ONCE])).items():
                partition, number = keys[key]
                found[partition, number] = self._listed_commit(key, partition, footer)
        return found

    def _listed_commit(self, key: str, partition: str, found: _FoundFooter) -> ListedCommit:
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

    # Footers

    async def _footer(self, key: str) -> _FoundFooter | None:
        return (await self._footers([key])).get(key)

    async def _footers(self, keys: Sequence[str]) -> dict[str, _FoundFooter]:
        """Of those that exist. All are parsed at once: a thread for each would cost as much as parsing."""
        found: dict[str, _FoundFooter] = {}
        lengths = dict.fromkeys(keys, TAIL)
        while lengths:
            stored = await gather(list(lengths), partial(self._tail, lengths))
            tails = {key: tail for key, tail in stored.items() if tail is not None}
            parsed = await self._store.clock.run_cpu_work(_COST * len(tails), self._parse, tails)
            found |= {key: footer for key, footer in parsed.items() if not isinstance(footer, int)}
            lengths = {key: length for key, length in parsed.items() if isinstance(length, int)}
        return found

    async def _tail(self, lengths: Mapping[str, int], key: str) -> Stored | None:
        return await self._store.get(key, tail=lengths[key])

    def _parse(self, tails: Mapping[str, Stored]) -> dict[str, _FoundFooter | int]:
        """Footers, or how many bytes one takes."""
        found: dict[str, _FoundFooter | int] = {}
        for key, tail in tails.items():
            parsed = parse_metadata(key, tail.body, size=tail.size)
            if isinstance(parsed, int):
                found[key] = parsed
            else:
                footer = footer_from(key, parsed, tag=tail.tag, size=tail.size)
                found[key] = _FoundFooter(footer, self._describe(parsed))
        return found


def _is_settled(place: Place, boundary: Boundary) -> bool:
    """Whether an earlier transaction has taken in the boundary."""
    return place.seen == boundary.changes and place.position >= boundary.originals

"""A partition's committed files, one after the other, as those see them who follow: where they are, and where they end."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np

from actorproc.errors import SourceError
from actorproc.output.chain import Commit, OutputChain
from actorproc.output.compacted_file import CompactedCommits
from actorproc.output.output_files import key_of
from actorproc.retention.boundary import NOTHING_TRIMMED, Boundary, CompactedRange, read_boundary
from actorproc.storage.backend import Stored
from actorproc.storage.listing import numbered_files
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.parquet import footer_of, read_footer
from actorproc.storage.store import Store

_SMALL = 2**20  # bytes: originals up to that, nearly all, come with the answer that they are there

_CHECK_AGAIN = 300.0
"""Seconds for which a partition is believed to end where there was no file. Files go an hour after the boundary says so."""


@dataclass(frozen=True, slots=True)
class CommittedFile:
    """A file with the rows of some commits. `before`: rows of the partition before its first; `next`: the number of the
    commit after them. `counts` and `times`: of each commit, its rows, and when its host made it, in seconds since 1970."""

    key: str
    body: bytes
    next: int
    before: int
    counts: np.ndarray
    times: np.ndarray

    @property
    def end(self) -> int:
        """Rows of the partition up to its last."""
        return self.before + int(self.counts.sum())


@dataclass(frozen=True, slots=True)
class ChainPosition:
    """Between two rows of a partition: the `number` of the commit to read next, and how many rows come before it."""

    number: int
    rows: int


class ChainFollower:
    """Reads the committed files of one partition, originals and compacted ones.

    Args:
        lowest: number below which a trim was decided, done or not: who comes late must not begin in what is about to go.

    Raises (everywhere):
        CorruptObject: a file is not what was written there.
        SourceError: files that were to be read were trimmed, or deleted.
    """

    def __init__(self, store: Store, layout: ProcessorLayout, partition: str, lowest: int = 0) -> None:
        self._lowest = lowest
        self._store = store
        self._layout = layout
        self._partition = partition
        self._chain = OutputChain(store, layout, partition)
        self._boundary: Boundary = NOTHING_TRIMMED
        self._checked_at = -math.inf

    async def file(self, number: int, make_room: Callable[[int], Awaitable[None]]) -> CommittedFile | None:
        """The file that has commit `number`; None: the partition ends there. `make_room`: for so many bytes, before they are
        fetched. Beside the one that asks for the file this takes a request if it is there, two if it is a large original; and
        if it is not, two every five minutes.
        """
        while True:
            self._check_kept(number)
            holder = self._boundary.range_of(number)
            key = key_of(self._layout, self._partition, number, holder)
            stored = await self._fetch(key, holder, make_room)
            if stored is None and holder is None:
                if self._store.clock.monotonic() - self._checked_at > _CHECK_AGAIN:
                    await self._look()
                    if number < self._boundary.originals:
                        continue
                    await self._check_end(number)
                return None
            await self._look()  # only now: what was read before counts if it still counts
            self._check_kept(number)
            if self._boundary.range_of(number) != holder:
                continue
            if stored is None:
                raise self._lost(number, None, f"{key} was deleted by hand")
            footer = footer_of(key, stored.body)
            if holder is not None:
                found = CompactedCommits.from_metadata(key, footer.metadata)
                before = found.totals.rows - int(found.rows.sum())
                return CommittedFile(key, stored.body, found.next, before, found.rows, found.times)
            commit = Commit.from_footer(key, footer)
            counts, times = np.array([commit.rows], np.int64), np.array([commit.time])
            return CommittedFile(key, stored.body, number + 1, commit.totals.rows - commit.rows, counts, times)

    async def first(self) -> ChainPosition:
        """Where the partition begins: after what was trimmed."""
        await self._look()
        return await self._before(self._first)

    @property
    def _first(self) -> int:
        return max(self._lowest, self._boundary.lowest)

    async def end(self) -> ChainPosition:
        """Where the partition ends now."""
        tip = await self._chain.tip()
        return ChainPosition(tip.number, tip.totals.rows) if tip else ChainPosition(0, 0)

    async def at(self, time: float) -> ChainPosition:
        """Before the first commit that was made at `time` (seconds since 1970) or later, to the microsecond, as its records
        say it; the end if there is none."""
        low, end = (await self.first()).number, await self.end()
        high = end.number
        while low < high:
            middle = (low + high) // 2
            if round(await self._time(middle) * 1e6) >= round(time * 1e6):
                high = middle
            else:
                low = middle + 1
        return end if low >= end.number else await self._before(low)

    async def _fetch(
        self, key: str, holder: CompactedRange | None, make_room: Callable[[int], Awaitable[None]]
    ) -> Stored | None:
        size = _SMALL if holder is None else holder.size
        await make_room(size)
        if holder is None:
            stored = await self._store.get(key, tail=_SMALL)
            if stored is None or stored.size <= _SMALL:
                return stored
            size = stored.size
            del stored  # nothing is held while waiting for room
            await make_room(size)
        return await self._store.get(key, size=size)

    async def _look(self) -> None:
        self._boundary = await read_boundary(self._store, self._layout.boundary(self._partition))

    async def _before(self, number: int) -> ChainPosition:
        if number == 0:
            return ChainPosition(0, 0)
        if (holder := self._boundary.range_of(number)) is not None:
            contents = await self._contents(number, holder)
            return ChainPosition(number, contents.totals.rows - int(contents.rows.sum()) + contents.rows_before(number))
        commit = await self._commit(number)
        return ChainPosition(number, commit.totals.rows - commit.rows)

    async def _time(self, number: int) -> float:
        if (holder := self._boundary.range_of(number)) is not None:
            contents = await self._contents(number, holder)
            return float(contents.times[number - contents.first])
        return (await self._commit(number)).time

    async def _contents(self, number: int, holder: CompactedRange) -> CompactedCommits:
        key = key_of(self._layout, self._partition, number, holder)
        footer = await read_footer(self._store, key)
        if footer is None:
            raise self._lost(number, None, f"{key} was deleted meanwhile")
        return CompactedCommits.from_metadata(key, footer.metadata)

    async def _commit(self, number: int) -> Commit:
        commit = await self._chain.read(number)
        if commit is None:
            raise self._lost(number, None, "it was trimmed or deleted meanwhile")
        return commit

    def _check_kept(self, number: int) -> None:
        if number < (lowest := self._first):
            raise self._lost(number, lowest, f"output below {lowest} was trimmed")

    async def _check_end(self, number: int) -> None:
        """See that where there is no file `number` the partition ends."""
        later = await numbered_files(self._store, self._layout.output_dir(self._partition), number, 1)
        if later and later[0].number > number and await self._chain.read(number) is None:
            raise self._lost(number, later[0].number, "the files before it were deleted by hand")
        self._checked_at = self._store.clock.monotonic()

    def _lost(self, number: int, found: int | None, why: str) -> SourceError:
        there = "" if found is None else f"the first that can be read is {found}: "
        return SourceError(
            f"partition {self._partition} of {self._layout.processor} in {self._store.url} has lost output from commit "
            f"{number} on, which was to be read next ({there}{why}). Restore the files, or start anew under another "
            "processor name"
        )

"""Follows the committed files of one partition, original and compacted ones, from commit to commit."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np

from actorproc.errors import RecordsLost, SourceError
from actorproc.output.chain import Commit, OutputChain
from actorproc.output.checkpoint import Reset
from actorproc.output.compacted_file import CompactedCommits
from actorproc.output.output_files import key_of
from actorproc.retention.boundary import NOTHING_TRIMMED, Boundary, CompactedRange, read_boundary
from actorproc.storage.backend import Stored
from actorproc.storage.listing import numbered_files
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.parquet import footer_of, read_footer
from actorproc.storage.store import Store

_SMALL = 2**20  # bytes: nearly all originals are smaller, and arrive with the first request

_CHECK_AGAIN = 300.0
"""Seconds between two checks whether a missing file is the end. Files are deleted an hour after the boundary passed."""


@dataclass(frozen=True, slots=True)
class CommittedFile:
    """A fetched file with the rows of some commits.

    `before`: rows of the partition before this file. `next`: the number after its commits. `counts`, `times` and
    `put_ids`: row count, time and put-id of each commit. Times are seconds since 1970 by the host's clock; a put-id
    is "" where an earlier version of actorproc has compacted the commit. `reset`: of the first commit; no other one
    is a reset, unless its put-id is "". `begin`: the sequence after which the first commit begins; None where an
    earlier version has compacted it. `oldest`: see `Commit.oldest`; None also of compacted commits.
    """

    key: str
    body: bytes
    next: int
    before: int
    counts: np.ndarray
    times: np.ndarray
    put_ids: tuple[str, ...]
    reset: Reset | None = None
    begin: int | None = None
    oldest: float | None = None

    @property
    def end(self) -> int:
        """Rows of the partition up to the end of this file."""
        return self.before + int(self.counts.sum())


@dataclass(frozen=True, slots=True)
class ChainPosition:
    """A position between two commits: the `number` of the next one, and the number of rows before it."""

    number: int
    rows: int


class ChainFollower:
    """Reads the committed files of one partition, originals and compacted ones.

    Args:
        lowest: number below which a trim is decided, even if it is not finished.

    Raises (every method):
        CorruptObject: a file is corrupt.
        SourceError: the files to read were trimmed or deleted.
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
        """Fetch the file that holds commit `number`; None if the partition ends there.

        It takes two requests, three for a large original. At the end of the partition it takes one, and two more every
        five minutes.

        Args:
            make_room: waits for memory for so many bytes, before they are fetched.
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
            await self._look()  # after the read: the file counts if the boundary still refers to it
            self._check_kept(number)
            if self._boundary.range_of(number) != holder:
                continue
            if stored is None:
                raise self._lost(number, None, f"{key} was deleted by hand")
            footer = footer_of(key, stored.body)
            if holder is not None:
                found = CompactedCommits.from_metadata(key, footer.metadata)
                return CommittedFile(
                    key, stored.body, found.next, found.rows_before_file, found.rows, found.times, found.put_ids,
                    found.reset, found.begin,
                )  # fmt: skip
            commit = Commit.from_footer(key, footer)
            counts, times = np.array([commit.rows], np.int64), np.array([commit.time])
            before = commit.totals.rows - commit.rows
            return CommittedFile(
                key, stored.body, number + 1, before, counts, times, (commit.put_id,), commit.reset,
                commit.first.sequence, commit.oldest,
            )  # fmt: skip

    async def first(self) -> ChainPosition:
        """The first commit that was not trimmed."""
        await self._look()
        return await self._position(self._first)

    @property
    def _first(self) -> int:
        return max(self._lowest, self._boundary.lowest)

    async def end(self) -> ChainPosition:
        """The current end of the partition."""
        tip = await self._chain.tip()
        return ChainPosition(tip.number, tip.totals.rows) if tip else ChainPosition(0, 0)

    async def at(self, time: float) -> ChainPosition:
        """The first commit at or after `time`, in seconds since 1970 with microseconds; the end if there is none."""
        low, end = (await self.first()).number, await self.end()
        high = end.number
        while low < high:
            middle = (low + high) // 2
            if round((await self._commit(middle))[1] * 1e6) >= round(time * 1e6):
                high = middle
            else:
                low = middle + 1
        return end if low >= end.number else await self._position(low)

    async def place(self, number: int) -> tuple[int, float]:
        """The rows of the partition before commit `number`, and its time in seconds since 1970."""
        await self._look()
        self._check_kept(number)
        return await self._commit(number)

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
            del stored  # hold nothing while waiting for memory
            await make_room(size)
        return await self._store.get(key, size=size)

    async def _look(self) -> None:
        self._boundary = await read_boundary(self._store, self._layout.boundary(self._partition))

    async def _position(self, number: int) -> ChainPosition:
        return ChainPosition(number, (await self._commit(number))[0] if number else 0)

    async def _commit(self, number: int) -> tuple[int, float]:
        """The rows of the partition before commit `number`, and its time."""
        holder = self._boundary.range_of(number)
        key = key_of(self._layout, self._partition, number, holder)
        footer = await read_footer(self._store, key)
        if footer is None:
            raise self._lost(number, None, f"{key} was trimmed or deleted meanwhile")
        if holder is None:
            commit = Commit.from_footer(key, footer)
            return commit.totals.rows - commit.rows, commit.time
        found = CompactedCommits.from_metadata(key, footer.metadata)
        return found.rows_before_file + found.rows_before(number), float(found.times[number - found.first])

    def _check_kept(self, number: int) -> None:
        if number < (lowest := self._first):
            raise self._lost(number, lowest, f"output below {lowest} was trimmed")

    async def _check_end(self, number: int) -> None:
        """Check that no file exists beyond the missing `number`."""
        later = await numbered_files(self._store, self._layout.output_dir(self._partition), number, 1)
        if later and later[0].number > number and await self._chain.read(number) is None:
            raise self._lost(number, later[0].number, "the files before it were deleted by hand")
        self._checked_at = self._store.clock.monotonic()

    def _lost(self, number: int, found: int | None, why: str) -> SourceError:
        there = "" if found is None else f"the first that can be read is {found}: "
        kind = SourceError if found is None else RecordsLost  # an empty store may be away, and come back
        return kind(
            f"partition {self._partition} of {self._layout.processor} in {self._store.url} has lost output from commit "
            f"{number} on, which was to be read next ({there}{why}). Restore the files, or start under another "
            "processor name"
        )

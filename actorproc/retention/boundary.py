"""Boundaries: the lowest file number of a partition that belongs to the dataset or log, and its compacted ranges.

A boundary only grows, by compare-and-swap, before any file is deleted. A file in `output/` below `originals` is void,
whether it waits for deletion or was created late by a writer that slept.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping

import msgspec
from msgspec.structs import replace

from actorproc.runtime.tasks import gather
from actorproc.storage.document import Document, SharedDocument
from actorproc.storage.listing import documents
from actorproc.storage.store import Store

RETENTION = 3600.0
"""Minimal age of trimmed files, in seconds. S3 refuses requests 15 minutes after they were signed, readers of a log
search up to 32 minutes for files that a lost hint hid, and readers still have to read the files that they listed."""


class CompactedRange(msgspec.Struct, frozen=True):
    """The commits from `first` up to `next` (exclusive), whose rows are read from one compacted file."""

    first: int
    next: int
    put_id: str
    """In the key of the compacted file."""
    rows: int
    size: int
    """Of the compacted file, in bytes."""
    sequence: int
    """Of the last record that these commits processed."""
    time: float
    """When the newest of these commits was created: seconds since 1970 by the store's clock."""
    since: float
    """When readers were switched to the compacted file: seconds since 1970 by the store's clock."""
    reset: bool = False
    """It begins with a reset, so it is not merged with the range before it."""
    within: bool = False
    """Whether the file lies in the folder of the output, where a table of the output can name it."""


WITHIN_OUTPUT = 2
"""Format version of a boundary with compacted files in the folder of the output: an earlier release does not find
them."""


class Boundary(Document, frozen=True):
    """The numbers of a partition that count."""

    newest_format_version = WITHIN_OUTPUT

    lowest: int
    """Lower numbers do not belong to the dataset."""
    ranges: tuple[CompactedRange, ...] = ()
    """Compacted ranges in order, without gaps, from `lowest` or below it up to `originals`."""
    sweeps: int = 0
    """How often unused compacted files were deleted. A file that was written before a sweep may be deleted."""
    changes: int = 0
    """How often the boundary was changed: a table notes which one it has seen."""

    def to_json(self) -> bytes:
        """See `Document.to_json`."""
        within = any(found.within for found in self.ranges)
        return Document.to_json(replace(self, format_version=WITHIN_OUTPUT if within else 1))

    @property
    def originals(self) -> int:
        """Files in `output/` count from this number on. Below it, rows are read from the compacted ranges."""
        return max(self.lowest, self.ranges[-1].next if self.ranges else 0)

    def range_of(self, number: int) -> CompactedRange | None:
        """The range that holds commit `number`."""
        index = bisect_right(self.ranges, number, key=lambda found: found.first) - 1
        return self.ranges[index] if index >= 0 and number < self.ranges[index].next else None

    def raised(self, lowest: int) -> Boundary:
        """The boundary with all numbers below `lowest` void, without the ranges below it."""
        lowest = max(lowest, self.lowest)
        return replace(self, lowest=lowest, ranges=tuple(found for found in self.ranges if found.next > lowest))


NOTHING_TRIMMED = Boundary(0)


async def read_boundary(store: Store, key: str) -> Boundary:
    """The boundary at `key`; `NOTHING_TRIMMED` if there is none.

    Raises:
        CorruptObject: it is corrupt.
    """
    return await SharedDocument(store, key, Boundary).read() or NOTHING_TRIMMED


async def change_boundary(store: Store, key: str, change: Callable[[Boundary], Boundary]) -> Boundary:
    """Replace the boundary by the result of `change`, also while others change it; write nothing if it is equal.

    Raises:
        CorruptObject: the stored boundary is corrupt.
    """

    def changed(found: Boundary | None) -> Boundary | None:
        before = found or NOTHING_TRIMMED
        after = change(before)
        return None if after == before else replace(after, changes=before.changes + 1)

    return await SharedDocument(store, key, Boundary).change(changed) or NOTHING_TRIMMED


async def raise_boundary(store: Store, key: str, lowest: int) -> Boundary:
    """Make files below number `lowest` void for good. Returns the boundary, which may be higher already."""
    return await change_boundary(store, key, lambda found: found.raised(lowest))


class Boundaries:
    """All boundaries below one prefix. Reading them costs one LIST, and a GET for each that has changed."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._known: dict[str, tuple[str, Boundary]] = {}  # by key, with its tag

    async def read(self, store: Store) -> Mapping[str, Boundary]:
        """The boundary of each partition that was ever trimmed or compacted."""
        listed = await documents(store, self._prefix)
        tags = {entry.key: entry.tag for entry in listed.values()}
        changed = [key for key, tag in tags.items() if key not in self._known or self._known[key][0] != tag]
        # Kept under the listed tag: a boundary that changed after the listing is read again next time.
        for key, boundary in (await gather(changed, lambda key: read_boundary(store, key))).items():
            self._known[key] = tags[key], boundary
        return {partition: self._known[entry.key][1] for partition, entry in listed.items()}

"""The boundary of a partition, of an output or a log: the lowest number that counts, and which numbers of an output count
in compacted files only.

It only grows, by compare-and-swap, before anything is deleted. A file of an output below `originals` is void, whether it
waits to be deleted or landed there late, from a writer that slept.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Self

from actorproc.runtime.tasks import gather
from actorproc.storage.document import document, to_document
from actorproc.storage.listing import documents
from actorproc.storage.store import Store, Stored

RETENTION = 3600.0
"""Seconds for which nothing is trimmed, at least. S3 refuses a request 15 minutes after it was signed, readers look for what
a lost hint hid for 32, and whoever listed files a moment ago is still to read them."""


@dataclass(frozen=True, slots=True)
class Range:
    """The commits `first` up to `next` (exclusive), whose rows are read from one compacted file."""

    first: int
    next: int
    put_id: str
    """In the key of the compacted file."""
    rows: int
    size: int
    """Of the file, in bytes."""
    sequence: int
    """Of the last record that these commits processed."""
    time: float
    """When the newest of them was made: seconds since 1970 by the store's clock."""
    since: float
    """When readers were first told to read this file. Likewise."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """`lowest`: lower numbers do not belong to the dataset. `put_id` makes each version of the object unique."""

    lowest: int = 0
    put_id: str = ""
    ranges: tuple[Range, ...] = ()
    """In order, without gaps from `lowest` (or from before it) up to `originals`."""
    sweeps: int = 0
    """How often compacted files were deleted that no range named. One that was made before a sweep may be gone."""

    @property
    def originals(self) -> int:
        """Files in `output/` count from this number on; below it, ranges tell where the rows are."""
        return max(self.lowest, self.ranges[-1].next if self.ranges else 0)

    def range_of(self, number: int) -> Range | None:
        """The range that holds commit `number`."""
        index = bisect_right(self.ranges, number, key=lambda found: found.first) - 1
        return self.ranges[index] if index >= 0 and number < self.ranges[index].next else None

    def raised(self, lowest: int) -> Boundary:
        """With everything below `lowest` void, and the ranges forgotten that lie there."""
        lowest = max(lowest, self.lowest)
        return replace(self, lowest=lowest, ranges=tuple(found for found in self.ranges if found.next > lowest))

    def to_json(self) -> bytes:
        return to_document(asdict(self))

    @classmethod
    def from_json(cls, key: str, body: bytes) -> Self:
        with document(key, body, "boundary") as fields:
            ranges = tuple(Range(**found) for found in fields.get("ranges", ()))
            return cls(**fields | {"lowest": int(fields["lowest"]), "ranges": ranges})


NOTHING_TRIMMED = Boundary()


async def read_boundary(store: Store, key: str) -> Boundary:
    """The boundary at `key`; `NOTHING_TRIMMED` if there is none.

    Raises:
        CorruptObject: it is not what was written there.
    """
    stored = await store.get(key)
    return Boundary.from_json(key, stored.body) if stored else NOTHING_TRIMMED


async def change_boundary(store: Store, key: str, change: Callable[[Boundary], Boundary]) -> Boundary:
    """Replace the boundary by what `change` makes of it, however many others do so, too; nothing if it changes nothing.

    Raises:
        CorruptObject: what is there is no boundary.
    """
    boundary = NOTHING_TRIMMED

    def changed(stored: Stored | None) -> bytes | None:
        nonlocal boundary
        found = Boundary.from_json(key, stored.body) if stored else NOTHING_TRIMMED
        boundary = change(found)
        if boundary == found:
            return None
        boundary = replace(boundary, put_id=store.clock.nonce())
        return boundary.to_json()

    await store.change(key, changed)
    return boundary


async def raise_boundary(store: Store, key: str, lowest: int) -> Boundary:
    """Make files below number `lowest` void for good; returns the boundary, which may be higher already."""
    return await change_boundary(store, key, lambda found: found.raised(lowest))


class Boundaries:
    """All boundaries below one prefix, each read again only when it has changed: one LIST, where nothing has."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._known: dict[str, tuple[str, Boundary]] = {}  # key -> its tag, and what it says

    async def read(self, store: Store) -> Mapping[str, Boundary]:
        """Boundary by partition; a partition of which nothing was trimmed is not among them."""
        listed = await documents(store, self._prefix)
        tags = {entry.key: entry.tag for entry in listed.values()}
        changed = [key for key, tag in tags.items() if key not in self._known or self._known[key][0] != tag]
        # Under the tag that was listed: if it has changed since, it is read again next time.
        for key, boundary in (await gather(changed, lambda key: read_boundary(store, key))).items():
            self._known[key] = tags[key], boundary
        return {partition: self._known[entry.key][1] for partition, entry in listed.items()}

"""Listings of our own objects. Foreign ones (`.DS_Store`, folder markers on S3, Hadoop checksums) are ignored."""

from __future__ import annotations

from typing import NamedTuple

from actorproc.storage.backend import Entry
from actorproc.storage.names import number_in, numbered, partition_in
from actorproc.storage.store import Store

_LARGER_PAGE = 1_000  # keys per request where foreign objects have filled a smaller page


class NumberedEntry(NamedTuple):
    number: int
    entry: Entry


class DataFile(NamedTuple):
    """A Parquet file of a partition of an output or log. It holds the numbers from `number` up to `next`, or more."""

    number: int
    next: int
    key: str
    size: int
    """Of the file, in bytes."""
    time: float
    """When its newest content was created: seconds since 1970 by the store's clock."""
    tag: str = ""
    """As listed, for an original output file; empty for a file that is never overwritten."""

    @property
    def compacted(self) -> bool:
        """Whether this file of an output is compacted."""
        return not self.tag


async def numbered_files(
    store: Store, folder: str, first: int = 0, limit: int | None = None, suffix: str = ".parquet"
) -> list[NumberedEntry]:
    """The numbered files of a folder from number `first` on, in order. Fewer than `limit` means that it has no more."""
    after, page = folder + numbered(first - 1, suffix) if first > 0 else "", limit
    found: list[NumberedEntry] = []
    while True:
        entries = (await store.list(folder, after, page)).entries
        numbers = ((number_in(folder, entry.key, suffix), entry) for entry in entries)
        found += [NumberedEntry(number, entry) for number, entry in numbers if number is not None]
        if limit is None or page is None or len(found) >= limit or len(entries) < page:
            return found[:limit]
        after, page = entries[-1].key, max(limit, _LARGER_PAGE)


async def documents(store: Store, prefix: str) -> dict[str, Entry]:
    """The per-partition documents below a prefix, by partition."""
    listed = ((partition_in(prefix, entry.key), entry) for entry in (await store.list(prefix)).entries)
    return {partition: entry for partition, entry in listed if partition is not None}

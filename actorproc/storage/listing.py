"""What is ours in a folder. Other things come to lie there (`.DS_Store`, the object that stands for a folder on S3, Hadoop's
checksums, copies made by hand), and are passed over: only names exactly as `actorproc.storage.names` makes them count."""

from __future__ import annotations

from typing import NamedTuple

from actorproc.storage.names import number_in, numbered, partition_in
from actorproc.storage.store import Entry, Store

_MORE = 1_000  # names asked for where foreign ones have taken the place of ours


class Numbered(NamedTuple):
    number: int
    entry: Entry


class NumberedFile(NamedTuple):
    """A file of a partition: what has numbers from `number` up to `next` (exclusive) is in it. It may hold more."""

    number: int
    next: int
    key: str
    size: int
    """Of the file, in bytes."""
    time: float
    """When the newest in it was made: seconds since 1970 by the store's clock."""
    tag: str = ""
    """As it was listed; empty for a file that is never written over, whose key says enough."""


async def numbered_files(
    store: Store, folder: str, first: int = 0, limit: int | None = None, suffix: str = ".parquet"
) -> list[Numbered]:
    """The numbered files of a folder from number `first` on, in order. Fewer than `limit`: there are no more."""
    after, ask = folder + numbered(first - 1, suffix) if first > 0 else "", limit
    found: list[Numbered] = []
    while True:
        entries = (await store.list(folder, after, ask)).entries
        numbers = ((number_in(folder, entry.key, suffix), entry) for entry in entries)
        found += [Numbered(number, entry) for number, entry in numbers if number is not None]
        if limit is None or ask is None or len(found) >= limit or len(entries) < ask:
            return found[:limit]
        after, ask = entries[-1].key, max(limit, _MORE)


async def documents(store: Store, prefix: str) -> dict[str, Entry]:
    """The documents of partitions below a prefix, by partition."""
    listed = ((partition_in(prefix, entry.key), entry) for entry in (await store.list(prefix)).entries)
    return {partition: entry for partition, entry in listed if partition is not None}

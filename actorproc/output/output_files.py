"""Lists the files of an output, original and compacted ones, for readers that plan first and read later.

A listed file that is missing or has another tag when it is read was compacted or trimmed meanwhile: `fetch` finds the
file that holds the commit now. (`follower`, which reads commit by commit, needs no listing.)
"""

from __future__ import annotations

from collections.abc import Mapping

from actorproc.retention.boundary import NOTHING_TRIMMED, Boundaries, Boundary, CompactedRange, read_boundary
from actorproc.runtime.tasks import gather
from actorproc.storage.listing import DataFile, numbered_files
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store


class OutputFiles:
    """The files of one processor's output. Caches the boundaries, and reads one again only if it has changed."""

    def __init__(self, layout: ProcessorLayout) -> None:
        self._layout = layout
        self.boundaries = Boundaries(layout.boundaries)
        self.known: Mapping[str, Boundary] | None = None
        """Boundaries of the last `look`; None before the first."""

    def __getstate__(self) -> dict[str, object]:
        return OutputFiles(self._layout).__dict__  # a Spark task needs no caches

    async def look(self, store: Store) -> Mapping[str, Boundary]:
        """The boundary of each partition that was ever trimmed or compacted."""
        self.known = await self.boundaries.read(store)
        return self.known

    async def files(
        self, store: Store, starts: Mapping[str, int], limit: int | None = None
    ) -> dict[str, list[DataFile]]:
        """The files of each partition in `starts` from that number on, at most `limit` of each.

        An original that is created meanwhile may be missing although a later one is listed.
        """
        return {partition: files for partition, (files, _) in (await self.listed(store, starts, limit)).items()}

    async def listed(
        self, store: Store, starts: Mapping[str, int], limit: int | None = None
    ) -> dict[str, tuple[list[DataFile], Boundary]]:
        """`files`, with the boundary of each partition. `known` may be newer than these boundaries."""
        known = await self.look(store) if self.known is None else self.known
        found: dict[str, tuple[list[DataFile], Boundary]] = {}

        async def listing(partition: str) -> list[DataFile]:
            first = max(starts[partition], known.get(partition, NOTHING_TRIMMED).originals)
            return await originals(store, self._layout, partition, first, limit)

        while stale := [partition for partition in starts if partition not in found]:
            listed = await gather(stale, listing)
            # Read after the listing: files from its `originals` on were not deleted when they were listed.
            now = await self.look(store)
            for partition, entries in listed.items():
                boundary = now.get(partition, NOTHING_TRIMMED)
                if boundary.originals == known.get(partition, NOTHING_TRIMMED).originals:
                    files = [*self.compacted(partition, starts[partition], boundary), *entries]
                    found[partition] = files if limit is None else files[:limit], boundary
            known = now
        return {partition: found[partition] for partition in starts}

    def compacted(self, partition: str, first: int, boundary: Boundary) -> list[DataFile]:
        """The compacted files that a boundary names, from number `first` on."""
        first = max(first, boundary.lowest)
        return [
            DataFile(max(first, r.first), r.next, key_of(self._layout, partition, r.first, r), r.size, r.time, "")
            for r in boundary.ranges
            if r.next > first
        ]

    async def fetch(self, store: Store, partition: str, number: int) -> tuple[str, bytes] | None:
        """Key and body of the file that holds commit `number` now; None if it was trimmed, or never existed."""
        boundary_key = self._layout.boundary(partition)
        boundary = await read_boundary(store, boundary_key)
        while number >= boundary.lowest:
            holder = boundary.range_of(number)
            key = key_of(self._layout, partition, number, holder)
            stored = await store.get(key, size=holder.size if holder else 0)
            # The file counts if the boundary still refers to it after the read.
            now = await read_boundary(store, boundary_key)
            if now.range_of(number) == holder and number >= now.lowest:
                return None if stored is None else (key, stored.body)
            boundary = now
        return None


async def originals(
    store: Store, layout: ProcessorLayout, partition: str, first: int, limit: int | None = None
) -> list[DataFile]:
    """The originals from number `first` on, at most `limit`."""
    return [
        DataFile(number, number + 1, entry.key, entry.size, entry.modified, entry.tag)
        for number, entry in await numbered_files(store, layout.output_dir(partition), first, limit)
    ]


def key_of(layout: ProcessorLayout, partition: str, number: int, holder: CompactedRange | None) -> str:
    """Key of the file that holds commit `number`: the compacted one if a range holds it, else the original."""
    if holder is None:
        return layout.output_file(partition, number)
    return layout.compacted_file(partition, holder.first, holder.put_id, within=holder.within)

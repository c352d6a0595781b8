"""Compacts an output: some partitions at a time, the groups of each in order, as a plan says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import anyio
import pyarrow as pa

from actorproc.errors import CorruptObject, SourceError
from actorproc.output.compaction import CompactionPlan, FileGroup, Merged, merge, sweep, switch
from actorproc.retention.kept_files import KeptFiles
from actorproc.runtime.tasks import gather
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store

TARGET_SIZE = 128 * 2**20
"""Bytes of a compacted file: Spark's default size of a task's input, and what Delta and Iceberg suggest at least."""

AT_ONCE = 2
"""Partitions that are compacted at a time. Each holds a new file in memory, and some 150 MiB more."""

_NAMED_FILES = 10  # in the error that ends a compaction


@dataclass(slots=True)
class Compaction:
    """The plan of a compaction, and its result. Sizes are in bytes of files in the store."""

    plans: Sequence[CompactionPlan] = field(repr=False)
    files_before: int = 0
    """Files that are to be rewritten, or were."""
    bytes_before: int = 0
    files_after: int = 0
    bytes_after: int = 0
    rows: int = 0
    swept: int = 0
    """Compacted files that were deleted: replaced ones, and those that a killed job left."""
    contested: set[str] = field(default_factory=set)
    """Partitions at which another job was working; run the compaction again."""
    failed: list[CorruptObject | SourceError] = field(default_factory=list)
    """One error for each file that could not be compacted."""

    @classmethod
    def of(cls, plans: Sequence[CompactionPlan]) -> Compaction:
        """A plan, of which nothing is done yet."""
        found = cls(plans, failed=[planned.lost for planned in plans if planned.lost is not None])
        found.files_before = sum(group.files for group in found.groups)
        found.bytes_before = sum(group.size for group in found.groups)
        return found

    @property
    def groups(self) -> list[FileGroup]:
        """Each group becomes one file, or several if it has resets."""
        return [group for found in self.plans for group in found.groups]

    @property
    def changed(self) -> bool:
        """Whether anything was rewritten or deleted."""
        return bool(self.files_after or self.swept)

    def raise_failed(self) -> None:
        """Raise an error that names the files that could not be compacted, if there are any."""
        if len(self.failed) == 1:
            raise self.failed[0]
        if self.failed:
            named = "; ".join(map(str, self.failed[:_NAMED_FILES]))
            raise SourceError(f"{len(self.failed)} files keep others from being compacted, for example {named}")


async def compact_output(
    store: Store,
    layout: ProcessorLayout,
    found: Compaction,
    schema: pa.Schema,
    *,
    keep: float,
    kept: Callable[[], Awaitable[KeptFiles]],
    at_once: int = AT_ONCE,
    done: Callable[[FileGroup], None] = lambda _: None,
) -> None:
    """Carry out a plan, and delete replaced files. Results and bad files are noted in `found`.

    Args:
        schema: of the dataset, with `_sequence`.
        keep: seconds for which replaced compacted files stay.
        kept: called before files are deleted: those that tables name.
        done: called with each group after readers were switched to its file.

    Raises:
        StoreError: the store could not be read or written. Finished groups stay compacted.
    """
    limit = anyio.CapacityLimiter(at_once)
    plans = {planned.partition: planned for planned in found.plans}

    async def compact(partition: str) -> None:
        async with limit:
            await _Partition(store, layout, plans[partition], schema, found, done).run()

    await gather([partition for partition, planned in plans.items() if planned.groups], compact)
    spared = await kept()
    swept = await gather(list(plans), lambda partition: sweep(store, layout, partition, keep, spared))
    found.swept = sum(len(deleted) for deleted in swept.values())


@dataclass(frozen=True, slots=True)
class _Partition:
    """Compacts one partition."""

    store: Store
    layout: ProcessorLayout
    planned: CompactionPlan
    schema: pa.Schema
    found: Compaction
    done: Callable[[FileGroup], None]

    async def run(self) -> None:
        for group in self.planned.groups:
            try:
                made = await merge(self.store, self.layout, group, self.schema)
            except (CorruptObject, pa.ArrowException) as error:
                self.found.failed.append(self._named(group, error))
                if group.originals:
                    return  # originals are compacted in order
                continue  # compacted before: readers stay where they are, and later groups can go on
            if made is None or not await self._switched(made):
                self.found.contested.add(self.planned.partition)
                return
            self.done(group)

    async def _switched(self, made: Sequence[Merged]) -> bool:
        ranges = await switch(self.store, self.layout, self.planned, made)
        self.found.files_after += len(ranges)
        self.found.bytes_after += sum(result.size for result in ranges)
        self.found.rows += sum(result.rows for result in ranges)
        return len(ranges) == len(made)

    def _named(self, group: FileGroup, error: CorruptObject | pa.ArrowException) -> CorruptObject:
        if isinstance(error, CorruptObject):
            return error
        first = self.layout.output_file(group.partition, group.first)
        return CorruptObject(first, f"cannot be merged with the files after it: {error}", self.store.url)

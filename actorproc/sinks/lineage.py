"""Which partitions follow which, as the checkpoints say, and whether the ones before a partition were delivered.

For ordered sinks. Rules: tests/protocol/sink_keyed_model.py (`wait`, `all`, `tree`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping

from actorproc.output.chain import OutputChain
from actorproc.output.checkpoint import read_checkpoint
from actorproc.output.row_reader import partitions_with_state
from actorproc.retention.readers import SinkEntry
from actorproc.runtime.tasks import gather
from actorproc.sinks.entries import SinkProgress, needed, progress_document
from actorproc.sinks.protocol import Sink, SinkRow
from actorproc.sinks.terms import next_commit
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store

Parents = Mapping[str, Collection[str]]
"""The partitions that each partition follows."""


def home_of(store: Store, layout: ProcessorLayout) -> str:
    """The `SinkRow.home` of a processor."""
    return f"{store.url.rstrip('/')}/{layout.processor}"


async def read_parents(store: Store, layout: ProcessorLayout) -> Parents:
    """Of all partitions that were begun."""
    found = await gather(await partitions_with_state(store, layout), lambda name: read_checkpoint(store, layout, name))
    return {name: () if kept is None else kept.parents for name, kept in found.items()}


def descendants(parents: Parents, of: Collection[str]) -> set[str]:
    """The partitions that follow some of these, those that follow them, and so on."""
    found = set[str]()
    while more := {name for name, before in parents.items() if not found.union(of).isdisjoint(before)} - found:
        found |= more
    return found


async def position_of(
    sink: Sink, entry: SinkEntry, partition: str, home: str, noted: Callable[[], Awaitable[SinkProgress | None]]
) -> tuple[SinkRow | None, int]:
    """The sink's row of a partition, and the number of the commit that it gets next.

    Args:
        noted: reads the progress, which counts where a sink that `forgets` has no row.

    Raises:
        SinkRefused: see `next_commit`.
    """
    row = await sink.read(partition)
    if row is None and sink.forgets:
        return None, needed(entry, partition, await noted())
    return row, next_commit(entry, partition, row, home)


class Ancestors:
    """The parents of a partition, whose ends an ordered sink must have before it gets anything of the partition."""

    def __init__(self, store: Store, layout: ProcessorLayout, name: str, partition: str, home: str) -> None:
        self._store, self._layout, self._name, self._home = store, layout, name, home
        self._partition = partition
        self._ends: dict[str, int] | None = None

    async def waited_for(self, sink: Sink, entry: SinkEntry) -> list[str]:
        """The parents that the sink does not have to their ends."""
        waiting = []
        for parent, end in (await self._find_ends()).items():
            noted = progress_document(self._store, self._layout, self._name, parent).read
            _, at = await position_of(sink, entry, parent, self._home, noted)
            if at < end:
                waiting.append(parent)
        return waiting

    async def _find_ends(self) -> dict[str, int]:
        """The number after the last commit of each parent. It has ended, so the number stays."""
        if self._ends is None:
            checkpoint = await read_checkpoint(self._store, self._layout, self._partition)
            parents = () if checkpoint is None else checkpoint.parents
            tips = await gather(parents, lambda parent: OutputChain(self._store, self._layout, parent).tip())
            self._ends = {parent: tip.number for parent, tip in tips.items() if tip is not None}
        return self._ends

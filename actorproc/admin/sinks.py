"""Operators and sinks: how far each sink is, and pause, resume, redeliver and delete, recorded in the audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from actorproc.admin.audit import record_now
from actorproc.errors import UsageError
from actorproc.output.chain import OutputChain
from actorproc.output.row_reader import partitions_with_state
from actorproc.output.schema_document import read_schema
from actorproc.retention.readers import SinkEntry, read_registry
from actorproc.rows.output_schema import output_schema
from actorproc.runtime.tasks import gather
from actorproc.sinks.entries import (
    SinkProgress,
    delete_sink,
    needed,
    pause_sink,
    progress_document,
    redeliver,
    register_anew,
)
from actorproc.sinks.lineage import descendants, read_parents
from actorproc.sinks.tables.open_tables import open_tables
from actorproc.sinks.tables.progress import table_progress
from actorproc.storage.names import ProcessorLayout, natural
from actorproc.storage.store import Store


@dataclass(frozen=True, slots=True)
class SinkPartitionStatus:
    """One partition of a sink: numbers of commits."""

    partition: str
    next: int | None
    """The next commit that the sink gets, as its owner has noted it; None: no delivery has begun."""
    end: int | None
    """The next commit of the partition; None: it was never opened."""
    held: int
    """A trim stays below it."""
    error: str | None
    fenced: bool

    @property
    def behind(self) -> int | None:
        """Commits that the sink does not have."""
        return None if self.end is None else max(0, self.end - (self.held if self.next is None else self.next))


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """A registered sink."""

    name: str
    url: str
    paused: bool
    partitions: Sequence[SinkPartitionStatus]

    @property
    def behind(self) -> int:
        """Commits that the sink does not have, of all partitions."""
        return sum(partition.behind or 0 for partition in self.partitions)

    @property
    def error(self) -> str | None:
        """Of one of the partitions."""
        return next((partition.error for partition in self.partitions if partition.error is not None), None)

    @property
    def state(self) -> str:
        """`paused`, `pausing` (owners have not fenced it yet), `failing`, `behind` or `up to date`."""
        if self.paused:
            begun = [partition for partition in self.partitions if partition.next is not None]
            return "paused" if all(partition.fenced for partition in begun) else "pausing"
        if self.error is not None:
            return "failing"
        return "behind" if self.behind else "up to date"


async def read_sinks(store: Store, layout: ProcessorLayout) -> list[SinkStatus]:
    """All registered sinks. Two small requests for each sink and partition, and those of the partitions' ends."""
    registry = await read_registry(store, layout.readers)
    if not registry.sinks:
        return []
    names = sorted(await partitions_with_state(store, layout), key=natural)
    tips = await gather(names, lambda name: OutputChain(store, layout, name).tip())
    ends = {name: None if tip is None else tip.number for name, tip in tips.items()}
    return [await _status(store, layout, name, entry, ends) for name, entry in sorted(registry.sinks.items())]


async def _status(
    store: Store, layout: ProcessorLayout, name: str, entry: SinkEntry, ends: Mapping[str, int | None]
) -> SinkStatus:
    found = await read_progress(store, layout, name, list(ends))

    def status(partition: str) -> SinkPartitionStatus:
        progress = found[partition]
        ours = progress if progress is not None and progress.term == entry.term else None
        held = needed(entry, partition, progress)
        return SinkPartitionStatus(
            partition, None if ours is None else ours.position, ends[partition], held,
            None if ours is None else ours.error, ours is not None and ours.fenced,
        )  # fmt: skip

    return SinkStatus(name, entry.url, entry.paused, [status(partition) for partition in ends])


async def read_progress(
    store: Store, layout: ProcessorLayout, name: str, partitions: Sequence[str]
) -> Mapping[str, SinkProgress | None]:
    """The noted progress of a sink, by partition."""
    if (table := await table_progress(store, layout, name).read()) is not None:
        # A trim asks the table itself: what is noted here is for people.
        noted = SinkProgress(term=table.term, fenced=table.fenced, error=table.error)
        numbers = table.positions
        return {p: replace(noted, position=numbers[p]) if p in numbers else None for p in partitions}
    return await gather(partitions, lambda partition: progress_document(store, layout, name, partition).read())


async def pause(store: Store, layout: ProcessorLayout, name: str) -> None:
    """Stop the deliveries to a sink. Commits are kept for it meanwhile."""
    await pause_sink(store, layout, name, paused=True)
    await record_now(store, layout.audit, "pause sink", {"sink": name}, "owners deliver nothing to it")


async def resume(store: Store, layout: ProcessorLayout, name: str) -> None:
    """Let a paused sink go on where it is."""
    await pause_sink(store, layout, name, paused=False)
    await record_now(store, layout.audit, "resume sink", {"sink": name}, "owners deliver to it again")


async def deliver_again(
    store: Store, layout: ProcessorLayout, name: str, start: int, partitions: Sequence[str] = ()
) -> Sequence[str]:
    """Let the owners deliver the commits from number `start` on once more.

    Args:
        partitions: only these; default: all.

    Returns:
        The partitions.

    Raises:
        UsageError: commits were trimmed, or there is no such sink or partition.
    """
    known = await partitions_with_state(store, layout)
    if unknown := sorted(set(partitions) - set(known), key=natural):
        raise UsageError(f"no partition {unknown[0]!r}; there are: {', '.join(sorted(known, key=natural)) or 'none'}")
    asked = sorted(partitions or known, key=natural)
    if not asked:
        return []
    done = await _deliver_tree_again(store, layout, name, start, asked)
    to = {"sink": name, "from": str(start)} | ({"partition": " ".join(partitions)} if partitions else {})
    await record_now(store, layout.audit, "redeliver", to, f"partitions that deliver again: {len(done)}")
    return done


async def _deliver_tree_again(
    store: Store, layout: ProcessorLayout, name: str, start: int, asked: Sequence[str]
) -> Sequence[str]:
    """Deliver partitions again; and into an ordered sink all that follow them, from their first commits."""
    following = await _following(store, layout, name, start, asked)
    found = await read_progress(store, layout, name, sorted({*asked, *following}, key=natural))
    again = {p: progress for p, progress in found.items() if p not in following}
    await redeliver(store, layout, name, start, again, {p: found[p] for p in following})
    while late := (await _following(store, layout, name, start, asked)) - found.keys():
        found = {**found, **await read_progress(store, layout, name, sorted(late))}  # they were begun meanwhile
        await redeliver(store, layout, name, start, {}, {p: found[p] for p in late})
    return list(found)


async def _following(store: Store, layout: ProcessorLayout, name: str, start: int, asked: Sequence[str]) -> set[str]:
    entry = (await read_registry(store, layout.readers)).sinks.get(name)
    if entry is None or not entry.ordered:
        return set()
    tips = await gather(asked, lambda partition: OutputChain(store, layout, partition).tip())
    repeated = [partition for partition, tip in tips.items() if tip is not None and start < tip.number]
    return descendants(await read_parents(store, layout), repeated)


async def repair(store: Store, layout: ProcessorLayout, name: str, configured: Mapping[str, Any]) -> int:
    """Make a table what the output has, whatever people or a restored backup have made of it.

    Args:
        configured: the sinks of the settings.

    Returns:
        The number of files that it names then.
    """
    declared = await read_schema(store, layout)
    schema = None if declared is None else output_schema(declared)
    async with open_tables(store, layout, configured, schema=schema, only=name) as tables:
        await register_anew(store, layout, name)
        await tables.catch_up()
        files = [len((await table.committer.sink.load()).files) for table in tables.each]
    await record_now(store, layout.audit, "repair table", {"sink": name}, f"files that it names: {sum(files)}")
    return sum(files)


async def delete(store: Store, layout: ProcessorLayout, name: str) -> SinkEntry:
    """Forget a sink: nothing is kept for it any more. Its target stays as it is."""
    gone = await delete_sink(store, layout, name)
    keys = [entry.key for entry in (await store.list(f"{layout.sinks}{name}/")).entries]
    keys += [table_progress(store, layout, name).key] * bool(gone.table)
    await gather(keys, store.delete)
    await record_now(store, layout.audit, "delete sink", {"sink": name}, "no commits are kept for it any more")
    return gone

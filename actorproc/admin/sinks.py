"""Operators and sinks: how far each sink is, and pause, resume, redeliver and delete, recorded in the audit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from typing import Any

from msgspec.structs import replace

from actorproc.admin.audit import record_now
from actorproc.errors import CorruptObject, SourceError, UsageError
from actorproc.output.chain import ChainEnd, OutputChain
from actorproc.output.follower import ChainFollower
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
from actorproc.sinks.tables.ownership import Choice
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
    """The next commit of the partition; None: it was never opened, or cannot be read."""
    held: int
    """A trim stays below it."""
    error: str | None
    fenced: bool
    rows: int | None = None
    """Output rows that the sink does not have; None: not known."""
    seconds: float | None = None
    """Age of the oldest commit that the sink does not have; 0: it has all; None: not known."""
    error_since: float | None = None
    """In seconds since 1970."""
    refuses: bool = False
    """It would refuse the rows again: somebody must mend it."""

    @property
    def at(self) -> int:
        """The first commit that the sink may not have."""
        return self.held if self.next is None else self.next

    @property
    def behind(self) -> int | None:
        """Commits that the sink does not have."""
        return None if self.end is None else max(0, self.end - self.at)


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
    def rows(self) -> int | None:
        """Output rows that the sink does not have, of the partitions that tell; None: none does."""
        known = [partition.rows for partition in self.partitions if partition.rows is not None]
        return sum(known) if known or not self.partitions else None

    @property
    def seconds(self) -> float | None:
        """Age of the oldest commit that the sink does not have; None: not known."""
        return max((p.seconds for p in self.partitions if p.seconds is not None), default=None)

    @property
    def error_since(self) -> float | None:
        """Of the partition that fails for longest, in seconds since 1970."""
        return min((p.error_since for p in self.partitions if p.error_since is not None), default=None)

    @property
    def error(self) -> str | None:
        """Of one of the partitions."""
        return next((partition.error for partition in self.partitions if partition.error is not None), None)

    @property
    def state(self) -> str:
        """`paused`, `pausing` (owners have not fenced it yet), `refusing`, `failing`, `behind` or `up to date`."""
        if self.paused:
            begun = [partition for partition in self.partitions if partition.next is not None]
            return "paused" if all(partition.fenced for partition in begun) else "pausing"
        if self.error is not None:
            return "refusing" if any(partition.refuses for partition in self.partitions) else "failing"
        return "behind" if self.behind else "up to date"


async def read_sinks(
    store: Store, layout: ProcessorLayout, partitions: Iterable[str] | None = None
) -> list[SinkStatus]:
    """All registered sinks, by what the container says; no host is asked.

    A small request for each sink and partition, those of the partitions' ends, and two for each partition of which the
    sink lacks commits.

    Args:
        partitions: only these; default: all.
    """
    registry = await read_registry(store, layout.readers)
    if not registry.sinks:
        return []
    names = sorted(await partitions_with_state(store, layout) if partitions is None else partitions, key=natural)

    async def tip(name: str) -> ChainEnd | None:
        try:
            return await OutputChain(store, layout, name).tip()
        except CorruptObject:  # `status` and `verify` name it
            return None

    tips = await gather(names, tip)
    return [await _status(store, layout, name, entry, tips) for name, entry in sorted(registry.sinks.items())]


async def _status(
    store: Store, layout: ProcessorLayout, name: str, entry: SinkEntry, tips: Mapping[str, ChainEnd | None]
) -> SinkStatus:
    found = await read_progress(store, layout, name, list(tips), entry)

    async def status(partition: str) -> SinkPartitionStatus:
        progress, tip = found[partition], tips[partition]
        ours = progress if progress is not None and progress.term == entry.term else None
        held, error = needed(entry, partition, progress), progress.error_of(entry) if progress else None
        known = SinkPartitionStatus(
            partition, None if ours is None else ours.position, None if tip is None else tip.number, held,
            error, ours is not None and ours.fenced,
            error_since=progress.error_since if progress and error else None,
            refuses=bool(progress and error and progress.refuses),
        )  # fmt: skip
        return known if tip is None else await _measured(store, layout, known, tip)

    return SinkStatus(name, entry.url, entry.paused, list((await gather(list(tips), status)).values()))


async def _measured(
    store: Store, layout: ProcessorLayout, known: SinkPartitionStatus, tip: ChainEnd
) -> SinkPartitionStatus:
    """With the rows that the sink lacks, and the age of their oldest commit."""
    if not known.behind:
        return replace_fields(known, rows=0, seconds=0.0)
    try:
        before, time = await ChainFollower(store, layout, known.partition).place(known.at)
    except (CorruptObject, SourceError):  # such as trimmed: the delivery says so
        return known
    return replace_fields(known, rows=tip.totals.rows - before, seconds=max(0.0, store.clock.wall() - time))


async def read_progress(
    store: Store, layout: ProcessorLayout, name: str, partitions: Sequence[str], entry: SinkEntry | None = None
) -> Mapping[str, SinkProgress | None]:
    """The noted progress of a sink, by partition. `entry`: of a table, which tells whether its pause is fenced."""
    if (table := await table_progress(store, layout, name).read()) is not None:
        # A trim asks the table itself: what is noted here is for people.
        noted = SinkProgress(
            term=table.term, fenced=entry is not None and table.is_fenced(entry), error=table.error,
            error_term=table.term, refuses=table.refuses,
        )  # fmt: skip
        begun = {p: replace(noted, position=number) for p, number in table.positions.items()}
        return {p: begun.get(p, None if table.error is None else replace(noted, term="")) for p in partitions}
    return await gather(partitions, lambda partition: progress_document(store, layout, name, partition).read())


async def pause(store: Store, layout: ProcessorLayout, name: str, reason: str = "") -> None:
    """Stop the deliveries to a sink. Commits are kept for it meanwhile. `reason`: for the audit."""
    await pause_sink(store, layout, name, paused=True)
    await record_now(store, layout.audit, "pause sink", {"sink": name}, "owners deliver nothing to it", reason)


async def resume(store: Store, layout: ProcessorLayout, name: str) -> bool:
    """Let a paused sink go on where it is. False: it was not paused, so nothing was done."""
    entry = (await read_registry(store, layout.readers)).sinks.get(name)
    if entry is not None and not entry.paused:
        return False
    await pause_sink(store, layout, name, paused=False)
    await record_now(store, layout.audit, "resume sink", {"sink": name}, "owners deliver to it again")
    return True


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


async def repair(
    store: Store, layout: ProcessorLayout, name: str, configured: Mapping[str, Any], *, others: Choice = "refuse"
) -> int:
    """Make a table what the output has, whatever people or a restored backup have made of it.

    Args:
        configured: the sinks of the settings.
        others: what becomes of files outside the folder of the processor that may have its rows, or rows of others.

    Returns:
        The number of files that it names then.

    Raises:
        UsageError: the output lacks files, or there are such files and `others` is "refuse". The table stays as it is.
    """
    declared = await read_schema(store, layout)
    schema = None if declared is None else output_schema(declared)
    async with open_tables(store, layout, configured, schema=schema, only=name, others=others) as tables:
        await tables.check_anew()
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

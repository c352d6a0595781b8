"""The registration of sinks: for each sink and partition, where it starts and which part of the chain it still needs.

Entries live in the registry of readers, so that a trim that is decided and a sink that is registered cannot miss each
other. Model: tests/protocol/sink_model.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from msgspec.structs import replace

from actorproc.errors import UsageError
from actorproc.retention.readers import Redo, Registry, SinkEntry, SinkPart, read_registry
from actorproc.storage.document import Document, SharedDocument
from actorproc.storage.names import ProcessorLayout, named_partitions
from actorproc.storage.store import Store


class SinkProgress(Document, frozen=True):
    """How far a sink is in one partition, written by the partition's owner after its deliveries. It never leads."""

    owner: str = ""
    """Of the opening that writes it."""
    term: str = ""
    """Of the registration."""
    gen: int = 0
    """It counts for trims only with the entry's term and generation."""
    position: int = 0
    fenced: bool = False
    """The sink is paused, and its row was fenced."""
    error: str | None = None
    """Why the sink does not take rows now."""
    error_since: float | None = None
    """In seconds since 1970."""
    error_term: str = ""
    """Of the registration that the error is about: a sink that is away is not opened yet, and `term` an earlier one."""
    refuses: bool = False
    """It would refuse the rows again."""

    def counts(self, entry: SinkEntry, part: SinkPart) -> bool:
        """Whether a trim may go by it."""
        return (self.term, self.gen) == (entry.term, part.gen)

    def error_of(self, entry: SinkEntry) -> str | None:
        """The error, unless an earlier registration had it."""
        return self.error if self.error_term in ("", entry.term) else None


def progress_document(store: Store, layout: ProcessorLayout, sink: str, partition: str) -> SharedDocument[SinkProgress]:
    return SharedDocument(store, layout.sink_progress(sink, partition), SinkProgress)


def needed(entry: SinkEntry, partition: str, progress: SinkProgress | None) -> int:
    """The number of the first commit that the sink may still need: a trim stays below it."""
    part = entry.part(partition)
    return progress.position if progress is not None and progress.counts(entry, part) else part.held


def check_alike(name: str, known: SinkEntry, url: str, fixed: str) -> None:
    """Check that a sink is set as it is registered.

    Args:
        url: of the target, without credentials.
        fixed: see `SinkTarget.fixed`.

    Raises:
        UsageError: it is registered for another target, or in another way.
    """
    if known.url != url:
        raise UsageError(
            f"sink {name!r} is registered for {known.url}, not for {url}: give the new target another name, or "
            f"run `actorproc sinks delete {name}` first"
        )
    if known.fixed not in ("", fixed):
        raise UsageError(
            f"sink {name!r} is registered with {known.fixed}, and here it has {fixed}: all hosts must have it "
            f"alike, and it cannot change. Give the new sink another name and target, or run `actorproc sinks "
            f"delete {name}` first"
        )


async def register_sink(
    store: Store,
    layout: ProcessorLayout,
    name: str,
    url: str,
    starts: Mapping[str, int],
    *,
    table: Literal["", "beside", "within"] = "",
    ordered: bool = False,
    replaces: bool = False,
    fixed: str = "",
) -> SinkEntry:
    """Register a sink, unless it is registered: then it goes on where it is.

    Args:
        url: of the target, without credentials. Another one under the same name is refused.
        starts: number of the first commit by partition; partitions that come later start with their first commit.
        table: see `SinkEntry.table`.
        ordered: see `Sink.ordered`.
        replaces: see `SinkEntry.replaces`. It may change.
        fixed: see `SinkTarget.fixed`.

    Raises:
        UsageError: the sink is registered for another target, or in another way.
    """

    def change(found: Registry | None) -> Registry:
        registry = found or Registry({}, {})
        if (known := registry.sinks.get(name)) is not None:
            check_alike(name, known, url, fixed)
            after = replace(known, replaces=replaces, fixed=fixed)
            return replace(registry, sinks={**registry.sinks, name: after})
        parts = {
            p: SinkPart(start=max(n, lowest), held=max(n, lowest)) for p, n, lowest in _with_lowest(registry, starts)
        }
        life = registry.sink_lives.get(name, 0) + 1
        entry = SinkEntry(
            url, life, store.clock.nonce(), parts, table=table, ordered=ordered, replaces=replaces, fixed=fixed
        )
        lives = {**registry.sink_lives, name: life}
        return replace(registry, sinks={**registry.sinks, name: entry}, sink_lives=lives)

    found = await _change(store, layout, change)
    return found.sinks[name]


def _with_lowest(registry: Registry, starts: Mapping[str, int]) -> list[tuple[str, int, int]]:
    names = {*starts, *registry.lowest}
    return [(name, starts.get(name, 0), registry.lowest.get(name, 0)) for name in names]


async def pause_sink(store: Store, layout: ProcessorLayout, name: str, *, paused: bool) -> SinkEntry:
    """Pause or resume the deliveries to a sink. A pause is done once the owner has fenced the sink's row."""

    def change(entry: SinkEntry) -> SinkEntry:
        if not paused or entry.paused:
            return replace(entry, paused=paused)
        return replace(entry, paused=True, pause=store.clock.nonce())

    return await _change_entry(store, layout, name, change)


async def redeliver(
    store: Store,
    layout: ProcessorLayout,
    name: str,
    start: int,
    partitions: Mapping[str, SinkProgress | None],
    following: Mapping[str, SinkProgress | None] | None = None,
) -> SinkEntry:
    """Let the owners deliver the commits from number `start` on once more. They begin with their next delivery.

    Args:
        partitions: with their progress.
        following: partitions that follow them, likewise. They are delivered again from the first commit that the sink
            got. Rule `tree` of tests/protocol/sink_keyed_model.py.

    Raises:
        UsageError: commits were trimmed.
    """

    def change(found: Registry | None) -> Registry:
        registry, entry = _known(found, name)
        if entry.table:
            raise UsageError(f"sink {name} is a table: `actorproc sinks repair {name}` makes it what the output has")
        following_ones = following or {}
        starts = {**dict.fromkeys(partitions, start), **{p: entry.part(p).start for p in following_ones}}
        if gone := sorted(p for p, first in starts.items() if first < registry.lowest.get(p, 0)):
            lowest = ", ".join(str(registry.lowest[p]) for p in gone)
            firsts = ", ".join(str(starts[p]) for p in gone)
            raise UsageError(
                f"{named_partitions(gone)}: nothing can be delivered again from commit {firsts} on: those below "
                f"{lowest} were trimmed"
            )
        parts = dict(entry.parts)
        for partition, progress in {**partitions, **following_ones}.items():
            part, held, first = entry.part(partition), needed(entry, partition, progress), starts[partition]
            redos = (*part.redos, Redo(store.clock.nonce(), first))
            parts[partition] = SinkPart(
                start=min(part.start, first), gen=part.gen + 1, held=min(first, held), redos=redos
            )
        return replace(registry, sinks={**registry.sinks, name: replace(entry, parts=parts)})

    return (await _change(store, layout, change)).sinks[name]


async def register_anew(store: Store, layout: ProcessorLayout, name: str) -> SinkEntry:
    """Begin a new life of a table: its next transaction makes it what the chain has, whatever it names now."""

    def change(found: Registry | None) -> Registry:
        registry, entry = _known(found, name)
        if not entry.table:
            raise UsageError(f"sink {name} is no table: `actorproc sinks redeliver` sends the rows of others again")
        if entry.paused:
            raise UsageError(f"sink {name} is paused: `actorproc sinks resume {name}` first")
        life = registry.sink_lives.get(name, entry.life) + 1
        after = replace(entry, life=life, term=store.clock.nonce())
        return replace(registry, sinks={**registry.sinks, name: after}, sink_lives={**registry.sink_lives, name: life})

    return (await _change(store, layout, change)).sinks[name]


async def delete_sink(store: Store, layout: ProcessorLayout, name: str) -> SinkEntry:
    """Forget a sink: it holds no commits any more. Its target stays as it is."""
    gone: list[SinkEntry] = []

    def change(found: Registry | None) -> Registry:
        registry, entry = _known(found, name)
        gone.append(entry)
        return replace(registry, sinks={other: e for other, e in registry.sinks.items() if other != name})

    await _change(store, layout, change)
    return gone[-1]


async def hold_back(
    store: Store, layout: ProcessorLayout, name: str, seen: SinkEntry, partition: str, position: int
) -> SinkEntry | None:
    """The sink is behind what a trim goes by, since its database went back: let trims go by `position`, if it can.

    Returns:
        The entry as it is now; None if it has changed since it was `seen`.
    """
    changed = False

    def change(found: Registry | None) -> Registry | None:
        nonlocal changed
        changed = found is None or found.sinks.get(name) != seen
        if found is None or changed:
            return None
        part = seen.part(partition)
        entry = replace(seen, parts={**seen.parts, partition: replace(part, gen=part.gen + 1, held=position)})
        return replace(found, sinks={**found.sinks, name: entry})

    registry = await _change(store, layout, change)
    return None if changed else registry.sinks[name]


async def _change_entry(
    store: Store, layout: ProcessorLayout, name: str, change: Callable[[SinkEntry], SinkEntry]
) -> SinkEntry:
    def changed(found: Registry | None) -> Registry:
        registry, entry = _known(found, name)
        return replace(registry, sinks={**registry.sinks, name: change(entry)})

    return (await _change(store, layout, changed)).sinks[name]


async def _change(
    store: Store, layout: ProcessorLayout, change: Callable[[Registry | None], Registry | None]
) -> Registry:
    document = SharedDocument(store, layout.readers, Registry)
    return await document.change(change) or await read_registry(store, layout.readers)


def _known(found: Registry | None, name: str) -> tuple[Registry, SinkEntry]:
    registry = found or Registry({}, {})
    if name not in registry.sinks:
        names = ", ".join(sorted(registry.sinks)) or "none"
        raise UsageError(f"there is no sink {name!r}; there are: {names}")
    return registry, registry.sinks[name]

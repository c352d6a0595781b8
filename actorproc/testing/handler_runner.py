"""Runs a handler over a few records in memory, for users' own tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.group.nudge import Nudges
from actorproc.handler.base import PartitionHandler
from actorproc.handler.state import Key
from actorproc.output.dead_letters import dead_letters
from actorproc.output.row_reader import all_slices, read_rows
from actorproc.processor import Processor
from actorproc.records import Record
from actorproc.runtime.error_text import safe_repr
from actorproc.state.reading import read_state
from actorproc.state.seeding import seed_state
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource

_PARTITION = "0"
_PAUSES = ("retry_backoff", "restart_backoff")


@dataclass(frozen=True, slots=True)
class HandlerResult:
    """Rows and dead letters of the records, in the order of the records."""

    rows: list[dict[str, Any]]
    """Output rows, each with `_sequence`, the index of its record."""
    dead_letters: list[dict[str, Any]]
    """With the fields of `dead-letters list --json` except `replayed`; `sequence` is the index of the record."""
    state: dict[Key, Any]
    """What `ctx.state` holds in the end. Values of a declared type are plain dicts here."""
    states: dict[str, dict[Key, Any]]
    """Likewise of `ctx.state("name")`, by name; with `state` under ""."""


async def run_handler(
    handler: type[PartitionHandler],
    records: Iterable[bytes | Record | None],
    *,
    options: Mapping[str, object] | None = None,
    settings: Settings | None = None,
    state: Mapping[Key, Any] | None = None,
    states: Mapping[str, Mapping[Key, Any]] | None = None,
) -> HandlerResult:
    """Run a handler as a host does, on a store in memory, until all records are committed.

    No configuration file and no environment variable is read. Retries wait one millisecond, unless `settings` says
    otherwise.

    Args:
        records: values, or `Record` objects where key, headers or timestamp matter. They are numbered from 0.
        options: the handler's options.
        state: what `ctx.state` holds in the beginning.
        states: likewise of `ctx.state("name")`, by name.

    Raises:
        EndNotReached: the handler does not reach the end. The message says why.
        UsageError, HandlerDefinitionError: handler, options or records are wrong; nothing was run.
    """
    if not isinstance(settings, Settings | None):
        raise UsageError(f"settings = {settings!r:.80}: Settings(...), such as Settings(max_attempts=1)")
    settings = settings or Settings()
    pauses = {name: 0.001 for name in _PAUSES if name not in settings.model_fields_set}
    store, source = Store(MemoryStore()), _source(records)
    processor = Processor(
        handler,
        source=source,
        container=store,
        options=options,
        settings=settings.model_copy(update=pauses),
        nudges=Nudges(),  # there is one host only
    )
    async with store:
        if seeds := {**({"": state} if state else {}), **(states or {})}:
            await seed_state(store, processor.layout, _PARTITION, await source.start(_PARTITION, "earliest"), seeds)
        await processor.run(until_end=True)
        rows: list[dict[str, Any]] = []
        async for piece in all_slices(store, processor.layout, [_PARTITION]):
            async for batch in read_rows(store, piece):
                rows += batch.to_pylist(maps_as_pydicts="lossy")
        letters = [letter async for letter in dead_letters(store, processor.layout)]
        held = await read_state(store, processor.layout, _PARTITION)
        found = {name: dict(held.items(name)) for name in held.names}
        return HandlerResult(rows, letters, found.get("", {}), found)


def _source(records: Iterable[bytes | Record | None]) -> MemorySource:
    source = MemorySource()
    for index, record in enumerate(records):
        if isinstance(record, Record):
            source.append(
                _PARTITION, [record.value], key=record.key, headers=record.headers, timestamp=record.timestamp
            )
        elif isinstance(record, bytes | None):
            source.append(_PARTITION, [record])
        else:
            raise UsageError(
                f"records[{index}] = {safe_repr(record):.80}: expected bytes (of JSON: json.dumps(...).encode()), a "
                "Record, or None for a tombstone"
            )
    return source

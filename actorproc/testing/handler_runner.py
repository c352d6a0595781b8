"""Runs a handler over a few records in memory, for users' own tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from msgspec import msgpack

from actorproc.config.settings import Settings
from actorproc.config.units import seconds
from actorproc.errors import UsageError
from actorproc.group.assignment import Lease
from actorproc.group.membership import GroupDocument
from actorproc.handler.base import Decision, PartitionHandler
from actorproc.handler.checks import checked_handler
from actorproc.handler.keyed_state import TIMERS, Key, pack_key
from actorproc.handler.timers import utc
from actorproc.output.checkpoint import Checkpoint, StateObject
from actorproc.output.letter import dead_letters
from actorproc.output.row_reader import all_slices, read_rows
from actorproc.processor import Processor
from actorproc.records import Batch, Cursor, Record
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.runtime.error_text import safe_repr
from actorproc.runtime.nudge import Nudges
from actorproc.sources.protocol import End
from actorproc.state.objects import Entries, encode_state
from actorproc.state.reading import read_state
from actorproc.storage.document import SharedDocument
from actorproc.storage.names import STATE, ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource

_NEVER = 1e12  # seconds
_PAUSES = ("retry_backoff", "restart_backoff")


@dataclass(frozen=True, slots=True)
class HandlerResult:
    """Rows and dead letters of the records, in the order of the records."""

    rows: list[dict[str, Any]]
    """Output rows, each with `_sequence`, the index of its record (of a `Batch`: its sequence)."""
    dead_letters: list[dict[str, Any]]
    """With the fields of `dead-letters list --json` except `replayed`; `sequence` is the index of the record."""
    state: dict[Key, Any]
    """The content of `ctx.state` in the end. Values of a declared type are plain dicts here."""
    states: dict[str, dict[Key, Any]]
    """Likewise of `ctx.state("name")`, by name; with `state` under ""."""
    timers: dict[Key, datetime]
    """The timers that are left, by key: when each is due."""


class _SetClock(Clock):
    """A wall clock that stands still, so that timers do not depend on how long a test takes."""

    def __init__(self, time: float) -> None:
        super().__init__()
        self.time = time

    def wall(self) -> float:
        return self.time


class _Records(MemorySource):
    """The records of a test. Those of a batch keep its partition and their sequences."""

    anew = False
    """Whether a run reads to the end once more, although everything is committed."""

    def __init__(self, records: Iterable[bytes | Record | None]) -> None:
        super().__init__(0)
        self._sequences = records.sequences if isinstance(records, Batch) else None
        self.partition = records.partition if isinstance(records, Batch) else "0"
        self.add_partition(self.partition)
        for index, record in enumerate(records):
            self._add(index, record)

    def _add(self, index: int, record: object) -> None:
        if isinstance(record, Record):
            key, headers, time = record.key, record.headers, record.timestamp
            self.append(self.partition, [record.value], key=key, headers=headers, timestamp=time)
        elif isinstance(record, bytes | None):
            self.append(self.partition, [record])
        else:
            raise UsageError(
                f"records[{index}] = {safe_repr(record):.80}: expected bytes (of JSON: json.dumps(...).encode()), a "
                "Record, or None for a tombstone"
            )

    def sequence_of(self, index: int) -> int:
        return index if self._sequences is None else self._sequences[index]

    async def end(self, partition: str) -> End:
        found = await super().end(partition)
        return End(found.position, None) if self.anew else found

    def reached(self, cursor: Cursor, end: End) -> bool:
        return not self.anew and super().reached(cursor, end)


async def run_handler(
    handler: type[PartitionHandler],
    records: Iterable[bytes | Record | None],
    *,
    options: Mapping[str, object] | None = None,
    settings: Settings | None = None,
    state: Mapping[Key, Any] | None = None,
    states: Mapping[str, Mapping[Key, Any]] | None = None,
    advance: float | timedelta | str | None = None,
    epoch: int = 1,
    raise_errors: bool = False,
) -> HandlerResult:
    """Run a handler as a host does, on a store in memory, until all records are committed.

    No configuration file and no environment variable is read. Retries wait one millisecond, unless `settings` says
    otherwise.

    Args:
        records: values, or `Record` objects where key, headers or timestamp matter. They are numbered from 0. Records
            of a `Batch` keep their sequences and its partition.
        options: the handler's options.
        state: the content of `ctx.state` in the beginning.
        states: likewise of `ctx.state("name")`, by name.
        advance: how far stream time and wall clock go on after the last record: a timedelta, seconds, or text such as
            "30m". Timers that are due by then fire. The wall clock stands at the latest timestamp of the records until
            then.
        epoch: of the partition: `ctx.epoch`.
        raise_errors: in the end, raise the first error of the handler, as it was raised. So pytest shows the line in
            the handler, and `pytest --pdb` stops there.

    Raises:
        EndNotReached: the handler does not reach the end. The message says why.
        UsageError, HandlerDefinitionError: handler, options or records are wrong; nothing was run.
    """
    if not isinstance(settings, Settings | None):
        raise UsageError(f"settings = {settings!r:.80}: Settings(...), such as Settings(max_attempts=1)")
    settings = settings or Settings()
    pauses = {name: 0.001 for name in _PAUSES if name not in settings.model_fields_set}
    source = _Records(records)
    errors: list[Exception] = []
    clock = SYSTEM if advance is None else _SetClock(source.latest_time() or SYSTEM.wall())
    store = Store(MemoryStore(clock=clock), clock=clock)

    def made(stream_idle_time: float) -> Processor:
        changed = pauses if advance is None else {**pauses, "stream_idle_time": stream_idle_time}
        return Processor(
            _noting(checked_handler(handler), errors) if raise_errors else handler,
            source=source,
            container=store,
            options=options,
            settings=settings.model_copy(update=changed),
            clock=clock,
            nudges=Nudges(),  # there is one host only
        )

    processor, partition = made(_NEVER), source.partition
    async with store:
        if epoch > 1:
            await _begin_epoch(store, processor.layout, partition, epoch)
        if seeds := {**({"": state} if state else {}), **(states or {})}:
            await _seed_state(store, processor.layout, partition, seeds)
        await processor.run(until_end=True)
        if isinstance(clock, _SetClock):
            clock.time += _seconds(advance)
            source.anew = True
            await made(0.0).run(until_end=True)
        if errors:
            raise errors[0]
        rows: list[dict[str, Any]] = []
        async for piece in all_slices(store, processor.layout, [partition]):
            async for batch in read_rows(store, piece):
                rows += batch.to_pylist(maps_as_pydicts="lossy")
        letters = [letter async for letter in dead_letters(store, processor.layout)]
        held = await read_state(store, processor.layout, partition)
        found = {name: dict(held.items(name)) for name in held.names}
        timers = {key: utc(at) for key, (at, _) in found.pop(TIMERS, {}).items()}
        return HandlerResult(rows, letters, found.get("", {}), found, timers)


def _seconds(advance: object) -> float:
    found = advance.total_seconds() if isinstance(advance, timedelta) else seconds(advance)
    if isinstance(found, int | float) and 0 <= found < float("inf"):
        return float(found)
    raise UsageError(f"advance = {advance!r}: a timedelta, seconds, or text such as '30m'")


async def _begin_epoch(store: Store, layout: ProcessorLayout, partition: str, epoch: int) -> None:
    """Let the next owner of the partition get this epoch."""
    leases = {partition: Lease(None, epoch - 1)}
    await SharedDocument(store, layout.group, GroupDocument).swap(GroupDocument.of(leases=leases))


async def _seed_state(
    store: Store, layout: ProcessorLayout, partition: str, states: Mapping[str, Mapping[Key, Any]]
) -> None:
    """Store a first checkpoint with these states, by name. Reading begins at the first record."""
    entries = {
        name: Entries([pack_key(key) for key in state], [msgpack.encode(value) for value in state.values()])
        for name, state in states.items()
    }
    first = StateObject(0, store.clock.nonce(), sum(some.size for some in entries.values()))
    await store.put(layout.attached(STATE, partition, 0, first.put_id), encode_state(entries))
    checkpoint = Checkpoint(0, 0, Cursor("0"), state=(first,), format_version=2)
    await store.create(layout.checkpoint(partition), checkpoint.to_json())


def _noting(handler: type[PartitionHandler], errors: list[Exception]) -> type[PartitionHandler]:
    """The handler, which also puts its exceptions into `errors`."""

    def on_error(self: PartitionHandler, error: Exception, failed: Batch, attempt: int) -> Decision | None:
        errors.append(error)
        return handler.on_error(self, error, failed, attempt)

    named = {"__module__": handler.__module__, "__qualname__": handler.__qualname__}
    return type(handler.__name__, (handler,), {**named, "on_error": on_error})

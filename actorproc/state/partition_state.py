"""The keyed state of one partition in the hands of its owner: restored, changed, committed, merged.

Protocol: docs/protocol.md. Model: tests/protocol/state_model.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import chain

from actorproc.errors import RESTORE, CorruptObject, HandlerError
from actorproc.handler.keyed_state import Changes, StateChanges
from actorproc.output.chain import Commit
from actorproc.output.checkpoint import StateObject
from actorproc.runtime.tasks import gather
from actorproc.state.merging import first_merged
from actorproc.state.objects import Entries, StateEntries, decode_state, encode_state
from actorproc.storage.names import STATE, ProcessorLayout
from actorproc.storage.store import Store


@dataclass(slots=True)
class Held:
    """One named state in memory: packed values by packed key, and when keys expire."""

    values: dict[bytes, bytes] = field(default_factory=dict)
    expires: dict[bytes, float] = field(default_factory=dict)

    def fold(self, entries: Entries) -> None:
        """Take in later entries."""
        self.values.update(zip(entries.keys, entries.values, strict=True))  # type: ignore[arg-type]  # the next lines
        for key in [key for key, value in zip(entries.keys, entries.values, strict=True) if value is None]:
            del self.values[key]
        if self.expires:
            for key in entries.keys:
                self.expires.pop(key, None)
        self.expires |= entries.expires

    @property
    def size(self) -> int:
        """Bytes of keys and values."""
        return sum(map(len, self.values)) + sum(map(len, self.values.values()))


@dataclass(slots=True)
class _Part:
    """A committed object, and the keys that it holds."""

    object: StateObject
    keys: Mapping[str, Sequence[bytes]]


@dataclass(slots=True)
class StateDelta:
    """The changes that a commit is about to make durable."""

    entries: StateEntries
    body: bytes
    size: int


class MissingState(Exception):
    """A state object is missing: another owner has gone on and swept it, or it was deleted by hand."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key

    def corrupt(self) -> CorruptObject:
        """The error if no owner has gone on."""
        return CorruptObject(self.key, f"is missing; it holds committed keyed state. {RESTORE}")


class PartitionState:
    """All named states of a partition as processed so far, and the changes that wait for a commit.

    Args:
        limit: bytes of keys and values that the partition may hold.
    """

    def __init__(self, store: Store, layout: ProcessorLayout, partition: str, limit: int) -> None:
        self._store = store
        self._layout = layout
        self._partition = partition
        self._limit = limit
        self._states: dict[str, Held] = {}
        self._parts: list[_Part] = []
        self._merged_parts = 0  # those that the last merge, or the restored manifest, has left
        self._pending: StateChanges = {}
        self._due: list[tuple[float, str, bytes]] = []  # heap of expiring keys; an entry may be outdated
        self.size = 0
        """Bytes of keys and values."""
        self.stream_time: float | None = None
        """Greatest timestamp of the processed records that moves stream time. None: unknown, or nothing has timers."""

    def held(self, name: str) -> Mapping[bytes, bytes]:
        """The packed values of one named state, as processed so far. It changes with each batch."""
        return self._held(name).values

    def _held(self, name: str) -> Held:
        return self._states.setdefault(name, Held())

    @property
    def manifest(self) -> tuple[StateObject, ...]:
        """The objects that hold all that is committed, oldest first."""
        return tuple(part.object for part in self._parts)

    @property
    def unmerged(self) -> int:
        """Number of objects since the last merge."""
        return len(self._parts) - self._merged_parts

    @property
    def pending(self) -> bool:
        """Whether changes wait for a commit."""
        return bool(self._pending)

    # Restoring

    async def load(self, manifest: Sequence[StateObject], stream_time: float | None = None) -> None:
        """Begin anew with the entries of these objects.

        Raises:
            MissingState: one is missing.
            CorruptObject: one is corrupt.
        """
        self.clear()
        self.stream_time = stream_time
        bodies = dict(await gather(manifest, self._fetch))
        for found in manifest:
            await self._fold(found, bodies.pop(found))

    def clear(self) -> None:
        """Drop everything: a reset to the first record follows."""
        self._states, self._parts, self._pending, self._due = {}, [], {}, []
        self._merged_parts = 0

    async def follow(self, number: int, commit: Commit) -> None:
        """Take in commit `number`, which follows: its delta, or the reset that clears everything, and stream time.

        Raises:
            MissingState: the delta is missing.
            CorruptObject: the delta is corrupt.
        """
        if commit.state_size:
            delta = StateObject(number, commit.put_id, commit.state_size)
            await self._fold(delta, await self._fetch(delta))
        if commit.reset and commit.reset.clears_state:
            self.clear()
        if commit.stream_time is not None or (commit.reset and commit.reset.back):
            self.stream_time = commit.stream_time

    def restored(self, time: float) -> None:
        """All commits are taken in; the last one had this time."""
        self._due = [
            (expires, name, key) for name, held in self._states.items() for key, expires in held.expires.items()
        ]
        self._due.sort()
        self.expire(time)
        self.size = sum(held.size for held in self._states.values())

    def snapshot(self) -> tuple[Mapping[str, Mapping[bytes, bytes]], Mapping[str, Mapping[bytes, float]]]:
        """Packed values, and when keys expire, of each named state that has keys."""
        names = {name: held for name, held in self._states.items() if held.values}
        return {name: held.values for name, held in names.items()}, {name: held.expires for name, held in names.items()}

    async def _fetch(self, wanted: StateObject) -> bytes:
        key = self._key(wanted)
        stored = await self._store.get(key, size=wanted.size)
        if stored is None:
            raise MissingState(key)
        return stored.body

    async def _fold(self, found: StateObject, body: bytes) -> None:
        entries = await self._store.clock.run_cpu_work(len(body), decode_state, self._key(found), body)
        for name, some in entries.items():
            self._held(name).fold(some)
        self._parts.append(_Part(found, _keys(entries)))

    def _key(self, found: StateObject) -> str:
        return self._layout.attached(STATE, self._partition, found.label, found.put_id)

    # Processed

    def add(self, changes: StateChanges) -> int:
        """Take over the changes of processed records. They wait for a commit. Returns their bytes.

        Raises:
            HandlerError: the state would be larger than the limit; nothing was taken over.
        """
        size = self.size + sum(self._growth(self._held(name).values, some) for name, some in changes.items())
        if size > self._limit:
            raise HandlerError(
                f"the keyed state of partition {self._partition} would be {size} bytes of keys and values, and "
                f"state_bytes = {self._limit} allows no more: delete keys, give them a time to live, or raise it"
            )
        for name, some in changes.items():
            self._apply(self._held(name), some)
            self._pending.setdefault(name, Changes()).add(some)
        self.size = size
        return sum(some.size for some in changes.values())

    def _growth(self, values: Mapping[bytes, bytes], changes: Changes) -> int:
        """Bytes of keys and values that the changes add."""
        there = [key for key in changes.values if key in values]
        before = sum(map(len, there)) + sum(map(len, map(values.__getitem__, there)))
        return changes.size - sum(map(len, changes.deleted())) - before

    def _apply(self, held: Held, changes: Changes) -> None:
        held.values.update(changes.values)  # type: ignore[arg-type]  # the next lines
        for key in changes.deleted():
            held.values.pop(key, None)
        if held.expires:
            for key in changes.values:
                held.expires.pop(key, None)

    # Committing

    def delta(self, time: float) -> StateDelta | None:
        """The pending changes as an object for a commit of this time; None if there are none. CPU-heavy."""
        if not self._pending:
            return None
        entries = {
            name: Entries(
                list(some.values),
                list(some.values.values()),
                {key: time + life for key, life in some.lives.items()},
            )
            for name, some in self._pending.items()
        }
        return StateDelta(entries, encode_state(entries), sum(some.size for some in entries.values()))

    def committed(self, number: int, put_id: str, delta: StateDelta) -> None:
        """The pending changes are commit `number`."""
        self._parts.append(_Part(StateObject(number, put_id, delta.size), _keys(delta.entries)))
        for name, some in delta.entries.items():
            self._held(name).expires |= some.expires
            for key, expires in some.expires.items():
                heappush(self._due, (expires, name, key))
        self._pending = {}

    def expire(self, time: float) -> None:
        """Drop the keys that have expired by this time, which is that of a commit."""
        while self._due and self._due[0][0] <= time:
            expires, name, key = heappop(self._due)
            held = self._states[name]
            if held.expires.get(key) == expires:
                del held.expires[key]
                self.size -= len(key) + len(held.values.pop(key))

    # Merging

    async def merge(self, number: int) -> None:
        """Put some of the newest objects together as one, if that pays, for the checkpoint that goes to `number` next.

        No change may wait for a commit.
        """
        first = first_merged([part.object.size for part in self._parts], self.size)
        if self._pending or first >= len(self._parts):
            return
        cost = sum(part.object.size for part in self._parts[first:])
        entries, body = await self._store.clock.run_cpu_work(cost, self._merged, first)
        size = sum(some.size for some in entries.values())
        run = StateObject(number - 1, self._store.clock.nonce(), size)
        if entries:
            await self._store.put(self._key(run), body)
        self._parts[first:] = [_Part(run, _keys(entries))] if entries else []
        self._merged_parts = len(self._parts)

    def _merged(self, first: int) -> tuple[StateEntries, bytes]:
        entries = {name: some for name in self._states if (some := self._merged_keys(name, first)).keys}
        return entries, encode_state(entries)

    def _merged_keys(self, name: str, first: int) -> Entries:
        """One named state by the objects from index `first` on: all of it, or also the deleted keys."""
        held = self._states[name]
        if not first:
            return Entries(list(held.values), list(held.values.values()), dict(held.expires))
        keys = list(dict.fromkeys(chain.from_iterable(part.keys.get(name, ()) for part in self._parts[first:])))
        expires = {key: held.expires[key] for key in keys if key in held.expires} if held.expires else {}
        return Entries(keys, list(map(held.values.get, keys)), expires)


def _keys(entries: StateEntries) -> Mapping[str, Sequence[bytes]]:
    return {name: some.keys for name, some in entries.items()}

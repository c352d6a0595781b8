"""The keyed state that a partition takes from the ones that it follows, when it is claimed for the first time.

Model: tests/protocol/inherit_model.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from actorproc.handler.keyed_state import TIMERS, Key, unpack_key
from actorproc.output.checkpoint import WITH_DEPTH, Checkpoint, StateObject
from actorproc.state.objects import Entries, StateEntries, decode_state, encode_state
from actorproc.state.partition_state import MissingState
from actorproc.state.reading import CommittedState, read_state
from actorproc.storage.names import STATE, ProcessorLayout
from actorproc.storage.store import Store

IsHere = Callable[[Key], bool | None]
"""Whether the records of a state key are in the partition. None: unknown."""

_Items = dict[bytes, tuple[bytes | None, float | None]]
"""Packed value and time of expiry by packed key, of one named state."""


async def first_checkpoint(
    store: Store,
    layout: ProcessorLayout,
    partition: str,
    beginning: Checkpoint,
    parents: Mapping[str, Checkpoint],
    is_here: IsHere | None,
) -> Checkpoint:
    """The first checkpoint of a partition, which names the state that it takes. The object is put before.

    If another owner creates the checkpoint first, nothing names this object, and a sweep deletes it.

    Args:
        beginning: the checkpoint without state.
        parents: checkpoints of the partitions that it follows, as far as they were processed. They have ended.
        is_here: chooses keys; unknown ones are taken, except timers, which must not fire twice. None: all are unknown.

    Raises:
        CorruptObject: an object of a parent is corrupt or missing.
    """
    depth = 1 + max(kept.depth for kept in parents.values())  # rules `depth`, `deepest` of sink_keyed_model.py
    beginning = replace(beginning, format_version=WITH_DEPTH, parents=tuple(parents), depth=depth)
    older = {name for kept in parents.values() for name in kept.parents}
    found = [await read_state(store, layout, name) for name in parents if name not in older]
    found.sort(key=lambda state: state.time)
    if not any(state.names for state in found):
        return beginning
    bases = [await _base(store, layout, state.partition, parents[state.partition]) for state in found]
    entries, body = await store.clock.run_cpu_work(sum(state.size for state in found), _chosen, found, bases, is_here)
    if not entries:
        return beginning
    taken = StateObject(0, store.clock.nonce(), sum(some.size for some in entries.values()))
    await store.put(layout.attached(STATE, partition, 0, taken.put_id), body)
    return replace(beginning, time=found[-1].time, state=(taken,), inherited=taken)


async def _base(store: Store, layout: ProcessorLayout, partition: str, checkpoint: Checkpoint) -> StateEntries:
    """The state that a partition once took itself."""
    if (taken := checkpoint.inherited) is None:
        return {}
    key = layout.attached(STATE, partition, taken.label, taken.put_id)
    if (stored := await store.get(key, size=taken.size)) is None:
        raise MissingState(key).corrupt()
    return await store.clock.run_cpu_work(taken.size, decode_state, key, stored.body)


def _chosen(
    found: Sequence[CommittedState], bases: Sequence[StateEntries], is_here: IsHere | None
) -> tuple[StateEntries, bytes]:
    entries = {}
    for name in {name for state in found for name in state.names}:
        parents = [
            (_items(state.names.get(name, {}), state.expires.get(name, {})), _entry_items(base.get(name)))
            for state, base in zip(found, bases, strict=True)
        ]
        kept = {key: item for key, item in merged(parents).items() if _is_taken(name, key, is_here)}
        if kept:
            expires = {key: time for key, (_, time) in kept.items() if time is not None}
            entries[name] = Entries(list(kept), [value for value, _ in kept.values()], expires)
    return entries, encode_state(entries)


def _is_taken(name: str, key: bytes, is_here: IsHere | None) -> bool:
    here = None if is_here is None else is_here(unpack_key(key))
    return bool(here) if here is not None else name != TIMERS


def merged(parents: Sequence[tuple[_Items, _Items]]) -> _Items:
    """One named state of several parents, each given with the state that it once took itself.

    Parents that came from one partition may have a key each. Only one of them got its records since, so the key that
    was changed wins. A key that several have changed is none of records' keys: a value wins over a deletion, and among
    values that of the last parent.
    """
    if len(parents) == 1:
        return parents[0][0]
    found: _Items = {}
    for held, _ in parents:
        found |= held
    for held, base in parents:
        for key in base.keys() - held.keys():
            found.pop(key, None)
    for held, base in parents:
        found |= {key: item for key, item in held.items() if base.get(key) != item}
    return found


def _items(values: Mapping[bytes, bytes | None], expires: Mapping[bytes, float]) -> _Items:
    return {key: (value, expires.get(key)) for key, value in values.items()}


def _entry_items(entries: Entries | None) -> _Items:
    return _items(dict(zip(entries.keys, entries.values, strict=True)), entries.expires) if entries else {}

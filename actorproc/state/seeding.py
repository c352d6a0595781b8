"""Gives a partition that never ran a state to begin with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import msgpack

from actorproc.handler.state import Key, pack_key
from actorproc.output.checkpoint import Checkpoint, StateObject
from actorproc.records import Cursor
from actorproc.state.objects import Entries, encode_state
from actorproc.storage.names import STATE, ProcessorLayout
from actorproc.storage.store import Store


async def seed_state(
    store: Store,
    layout: ProcessorLayout,
    partition: str,
    position: str,
    states: Mapping[str, Mapping[Key, Any]],
) -> None:
    """Store the first checkpoint of a partition, with these states.

    Args:
        position: where reading begins.
        states: keys and values by the name of the state.
    """
    entries = {
        name: Entries([pack_key(key) for key in state], [msgpack.encode(value) for value in state.values()])
        for name, state in states.items()
    }
    first = StateObject(0, store.clock.nonce(), sum(some.size for some in entries.values()))
    await store.put(layout.attached(STATE, partition, 0, first.put_id), encode_state(entries))
    checkpoint = Checkpoint(0, 0, Cursor(position), state=(first,), format=2)
    await store.create(layout.checkpoint(partition), checkpoint.to_json())

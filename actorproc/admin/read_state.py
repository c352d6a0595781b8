"""Reads the committed keyed state of a processor, while its hosts run or not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa

from actorproc.admin.state_table import state_batch
from actorproc.handler.keyed_state import Key
from actorproc.handler.timers import utc
from actorproc.state.reading import key_text, read_state, without_passed_on
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store


class StateEntry(NamedTuple):
    """One key of a state."""

    partition: str
    state: str
    """Its name; "" for `ctx.state` itself."""
    key: Key
    value: Any
    expires: datetime | None


async def state_entries(
    store: Store, layout: ProcessorLayout, partitions: Sequence[str], *, state: str | None = None
) -> AsyncIterator[StateEntry]:
    """The entries of each partition at one commit, by partition, state and key.

    Args:
        state: only the state of this name.

    Raises:
        CorruptObject: an object of the state is corrupt or missing.
    """
    for partition in await without_passed_on(store, layout, partitions):
        found = await read_state(store, layout, partition)
        for name in sorted(found.names if state is None else {state} & found.names.keys()):
            expires = found.expiring(name)
            for key, value in sorted(found.items(name), key=lambda item: key_text(item[0])):
                until = expires.get(key)
                yield StateEntry(partition, name, key, value, None if until is None else utc(until))


async def state_batches(
    store: Store, layout: ProcessorLayout, partitions: Sequence[str], *, state: str | None, value: pa.DataType | None
) -> AsyncIterator[pa.RecordBatch]:
    """The entries as tables, for each partition and state.

    Args:
        state: only the state of this name.
        value: type of the values; None: they are shown as JSON.

    Raises:
        CorruptObject: an object of the state is corrupt or missing.
        UsageError: a value is not of this type.
    """
    for partition in await without_passed_on(store, layout, partitions):
        found = await read_state(store, layout, partition)
        for name in sorted(found.names if state is None else {state} & found.names.keys()):
            yield state_batch(found, name, value)

"""Reads the committed keyed state of a processor, while its hosts run or not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa

from actorproc.handler.state import Key
from actorproc.state.reading import key_text, read_state, value_text
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store

TABLE_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.string(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("value", pa.string(), nullable=False),
        pa.field("expires", pa.timestamp("us", "UTC")),
    ]
)
"""Columns of an export: `state` is its name, "" for `ctx.state` itself; `key` is text or JSON, `value` JSON."""


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
    for partition in partitions:
        found = await read_state(store, layout, partition)
        for name in sorted(found.names if state is None else {state} & found.names.keys()):
            expires = found.expiring(name)
            for key, value in sorted(found.items(name), key=lambda item: key_text(item[0])):
                until = expires.get(key)
                yield StateEntry(
                    partition, name, key, value, None if until is None else datetime.fromtimestamp(until, UTC)
                )


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


async def state_table(entries: AsyncIterator[StateEntry]) -> pa.Table:
    """The entries as a table of `TABLE_SCHEMA`, all in memory."""
    rows = [(e.partition, e.state, key_text(e.key), value_text(e.value), e.expires) async for e in entries]
    columns = list(zip(*rows, strict=True)) or [()] * len(TABLE_SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, TABLE_SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=TABLE_SCHEMA)

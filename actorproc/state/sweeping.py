"""Deletes the state objects that nothing can name any more."""

from __future__ import annotations

from contextlib import suppress

from actorproc.errors import StoreError
from actorproc.output.attachments import list_attachments
from actorproc.output.checkpoint import Checkpoint
from actorproc.retention.boundary import RETENTION
from actorproc.runtime.tasks import gather
from actorproc.storage.names import STATE, ProcessorLayout
from actorproc.storage.store import Store

EVERY = 600.0
"""Seconds between two sweeps of a partition: each costs a LIST."""


async def sweep(store: Store, layout: ProcessorLayout, partition: str, checkpoint: Checkpoint) -> int:
    """Delete the objects that lie below this checkpoint, however old it is, and that it does not name.

    Objects younger than an hour stay for readers that have an older checkpoint. Returns how many were deleted.
    """
    inherited = (checkpoint.inherited,) if checkpoint.inherited else ()
    named = {layout.attached(STATE, partition, found.label, found.put_id) for found in (*checkpoint.state, *inherited)}
    now, listed = await list_attachments(store, layout, partition, STATE)
    garbage = [
        entry.key
        for label, entry in listed
        if label < checkpoint.number and entry.key not in named and now - entry.modified > RETENTION
    ]
    await gather(garbage, store.delete)
    return len(garbage)


class StateSweeper:
    """Sweeps the state of one partition for its owner, now and then."""

    def __init__(self, store: Store, layout: ProcessorLayout, partition: str) -> None:
        self._store = store
        self._layout = layout
        self._partition = partition
        self._next = 0.0

    async def sweep(self, checkpoint: Checkpoint) -> None:
        """Sweep, if there is state, and the last sweep was some time ago. Objects that cannot be deleted now stay."""
        if checkpoint.state and self._store.clock.monotonic() >= self._next:
            self._next = self._store.clock.monotonic() + EVERY
            with suppress(StoreError):
                await sweep(self._store, self._layout, self._partition, checkpoint)

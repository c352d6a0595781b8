"""`HostRegistry`: the registry of sinks, read once for all deliveries of a host."""

from __future__ import annotations

import math

import anyio

from actorproc.retention.readers import Registry
from actorproc.storage.document import SharedDocument
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store


class HostRegistry:
    """Idle deliveries look at it every few seconds, however many there are: that is one request for all of them."""

    def __init__(self, store: Store, layout: ProcessorLayout) -> None:
        self._document = SharedDocument(store, layout.readers, Registry)
        self._clock = store.clock
        self._lock = anyio.Lock()
        self._begun = 0  # reads
        self._read_at = -math.inf

    @property
    def current(self) -> Registry | None:
        """As it was read last."""
        return self._document.current

    async def read(self) -> Registry | None:
        """The registry as it is after this call began. Calls at the same time share a request.

        Raises:
            StoreError: it could not be read.
        """
        wanted = self._begun + 1  # a read that begins from now on
        async with self._lock:
            if self._begun < wanted:
                began = self._clock.monotonic()
                self._begun = wanted
                try:
                    await self._document.read()
                except BaseException:
                    self._begun -= 1  # the next caller that waits reads again
                    raise
                self._read_at = began
        return self.current

    async def recent(self, seconds: float) -> Registry | None:
        """The registry as it was at most so many seconds ago. Raises StoreError: it could not be read."""
        if self._clock.monotonic() >= self._read_at + seconds:
            return await self.read()
        return self.current

"""`OutputNews`: waits for the next commit of a processor whose hosts say so, or for some seconds."""

from __future__ import annotations

import math

import anyio

from actorproc.config.settings import Settings
from actorproc.errors import StoreError
from actorproc.group.heartbeat import read_heartbeats
from actorproc.runtime.clock import Clock
from actorproc.runtime.logger import get_logger
from actorproc.runtime.nudge import FOLLOW_EVERY, News, Nudges, nudges_of
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store

logger = get_logger(__name__)


class OutputNews:
    """Asks the hosts of a processor for news, once a partition is idle.

    The addresses of hosts come from their heartbeats. They are read at first, and again after a commit that no host has
    told of, at most once a minute.
    """

    def __init__(self, store: Store, layout: ProcessorLayout, settings: Settings, clock: Clock) -> None:
        self._store, self._layout, self._settings, self._clock = store, layout, settings, clock
        self._nudges: Nudges | None = None
        self._writers: list[str] = []
        self._looked_at = -math.inf
        self._waiting: dict[str, anyio.Event] = {}
        self._missed = True
        self._news = News()

    async def wait(self, partition: str, number: int, seconds: float) -> bool:
        """Wait for news of this commit or a later one, at most so many seconds. Returns whether there was some."""
        await self._follow()
        if self._news.take(partition, number):
            return True
        event = self._waiting.setdefault(partition, anyio.Event())
        try:
            with anyio.move_on_after(seconds):
                await event.wait()
        finally:
            if self._waiting.get(partition) is event:
                del self._waiting[partition]
        return event.is_set()

    def missed(self) -> None:
        """A commit was found that no host has told of."""
        self._missed = True

    async def close(self) -> None:
        """Listen no more."""
        nudges, self._nudges = self._nudges, None
        if nudges is not None:
            await nudges.close()

    async def _follow(self) -> None:
        if self._nudges is None:
            route, topic = self._store.backend.route, self._layout.processor
            self._nudges = nudges_of(route, self._settings.nudge_host, topic, self._clock, self._told)
            await self._nudges.open(lambda: None)
        now = self._clock.monotonic()
        if self._nudges.address is not None and self._missed and now >= self._looked_at + FOLLOW_EVERY:
            self._looked_at, self._missed = now, False
            try:
                found = await read_heartbeats(self._store, self._layout)
            except StoreError as error:  # the poll does the same later
                logger.debug("source.writers_unknown", processor=self._layout.processor, error=str(error))
                return
            alive = self._settings.lease_expiration_interval
            self._writers = [beat.address for beat, age in found if beat.address and age <= alive]
        for address in self._writers:
            self._nudges.follow(address)

    def _told(self, partition: str, number: int) -> None:
        event = self._waiting.pop(partition, None)
        if event is not None:
            event.set()
        else:  # its reader is about to wait, perhaps
            self._news.add(partition, number)

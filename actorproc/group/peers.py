"""The other hosts, as far as courtesy goes: nudge those who have something to do, remove what the dead left behind."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import anyio

from actorproc.errors import ActorprocError, StoreError
from actorproc.group.heartbeat import Heartbeat, Incarnation
from actorproc.group.nudge import Nudges
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store

COURTESY = 1.0
"""Seconds that this may take: worth doing, not worth waiting for. Whatever fails is made good by timers."""


class Peers:
    """Addresses come from the heartbeats: read once for each incarnation, when it is nudged for the first time."""

    def __init__(self, store: Store, layout: ProcessorLayout, nudges: Nudges, log: Any) -> None:
        self._store = store
        self._layout = layout
        self._nudges = nudges
        self._log = log
        self._addresses: dict[Incarnation, str | None] = {}

    async def tell(self, concerned: Iterable[Incarnation], out: Iterable[Incarnation] = ()) -> None:
        """Nudge those whom a change concerns, and those who are out by it; remove the heartbeats of the latter."""
        with anyio.move_on_after(COURTESY):
            async with anyio.create_task_group() as tasks:
                for who in concerned:
                    tasks.start_soon(self._nudge, who)
                for who in out:
                    tasks.start_soon(self._see_off, who)

    async def remove(self, gone: Iterable[Incarnation]) -> None:
        """Remove their heartbeats."""
        with anyio.move_on_after(COURTESY):
            for who in gone:
                await self._remove(who)

    def keep(self, present: Collection[Incarnation]) -> None:
        """Forget all others."""
        self._addresses = {who: address for who, address in self._addresses.items() if who in present}

    async def _see_off(self, who: Incarnation) -> None:
        await self._nudge(who)  # it may only have been paused, or be an older one of its name: it stops the sooner
        await self._remove(who)

    async def _nudge(self, who: Incarnation) -> None:
        if self._nudges.address is None:
            return  # who cannot be nudged cannot nudge either: spare the GET
        if who not in self._addresses:
            key = self._layout.host(*who)
            try:
                stored = await self._store.get(key)
                if stored is None:
                    return
                self._addresses[who] = Heartbeat.from_json(key, stored.body).address
            except ActorprocError as error:
                self._log.debug("peers.address_unknown", of=who[0], error=str(error))
                return
        if address := self._addresses[who]:
            self._nudges.send(address)

    async def _remove(self, who: Incarnation) -> None:
        try:
            await self._store.delete(self._layout.host(*who))
        except StoreError as error:
            self._log.debug("peers.heartbeat_left", of=who[0], error=str(error))

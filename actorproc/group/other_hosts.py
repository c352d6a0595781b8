"""Nudges the other hosts of the group, and removes the heartbeats of former members."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import anyio

from actorproc.errors import ActorprocError, StoreError
from actorproc.group.heartbeat import Heartbeat, Incarnation
from actorproc.runtime.nudge import Nudges
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store

TIME_LIMIT = 1.0
"""Seconds that a call may take. Nothing depends on its success: timers do the same later."""


class OtherHosts:
    """Nudges hosts by incarnation. Reads the address of each from its heartbeat once, before its first nudge."""

    def __init__(self, store: Store, layout: ProcessorLayout, nudges: Nudges, log: Any) -> None:
        self._store = store
        self._layout = layout
        self._nudges = nudges
        self._logger = log
        self._addresses: dict[Incarnation, str | None] = {}

    async def nudge(self, changed: Iterable[Incarnation], out: Iterable[Incarnation]) -> None:
        """Nudge hosts whose leases have `changed` and former members (`out`); remove the heartbeats of the latter."""
        with anyio.move_on_after(TIME_LIMIT):
            async with anyio.create_task_group() as tasks:
                for who in changed:
                    tasks.start_soon(self._nudge, who)
                for who in out:
                    tasks.start_soon(self._nudge_and_remove, who)

    async def remove_heartbeats(self, out: Iterable[Incarnation]) -> None:
        with anyio.move_on_after(TIME_LIMIT):
            for who in out:
                await self._remove(who)

    def forget_all_but(self, present: Collection[Incarnation]) -> None:
        self._addresses = {who: address for who, address in self._addresses.items() if who in present}

    async def _nudge_and_remove(self, who: Incarnation) -> None:
        await self._nudge(who)  # if it was only paused, or replaced by a host of its name, it stops sooner
        await self._remove(who)

    async def _nudge(self, who: Incarnation) -> None:
        if self._nudges.address is None:
            return  # this host cannot send either: spare the GET
        if who not in self._addresses:
            key = self._layout.host(*who)
            try:
                stored = await self._store.get(key)
                if stored is None:
                    return
                self._addresses[who] = Heartbeat.from_json(key, stored.body).address
            except ActorprocError as error:
                self._logger.debug("peers.address_unknown", of=who[0], error=str(error))
                return
        if address := self._addresses[who]:
            self._nudges.send(address)

    async def _remove(self, who: Incarnation) -> None:
        try:
            await self._store.delete(self._layout.host(*who))
        except StoreError as error:
            self._logger.debug("peers.heartbeat_left", of=who[0], error=str(error))

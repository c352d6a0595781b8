"""Remembers the partitions that this host abandoned because a call does not end, for as long as the call lasts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import anyio

from actorproc.host.partition_slot import PartitionSlot
from actorproc.partition.actor import PartitionActor
from actorproc.partition.handler_threads import HandlerThreads
from actorproc.partition.statistics import Trouble


class _Call(NamedTuple):
    trouble: Trouble
    slot: PartitionSlot
    actor: PartitionActor | None
    """The actor that swallows its cancellation, if it does."""
    thread_ended: anyio.Event | None
    """Set when the thread of a plain handler ends; None: there is none."""

    @property
    def lasts(self) -> bool:
        in_thread = self.thread_ended is not None and not self.thread_ended.is_set()
        return in_thread or (self.actor is not None and self.slot.actor is self.actor)


class Abandoned:
    """Calls that do not end, by partition. Without it nobody would hear of them: the next owner starts anew."""

    def __init__(self, threads: HandlerThreads) -> None:
        self._threads = threads
        self._calls: dict[str, _Call] = {}

    def note(self, slot: PartitionSlot) -> None:
        """The partition is being abandoned. An earlier call of it that still lasts is the one to report."""
        self._calls = {partition: call for partition, call in self._calls.items() if call.lasts}
        trouble = slot.trouble()
        if trouble is not None and slot.partition not in self._calls:
            actor = slot.actor if slot.actor is not None and slot.actor.aborted is not None else None
            self._calls[slot.partition] = _Call(trouble, slot, actor, self._threads.ended_event(slot.partition))

    def troubles(self, slots: Mapping[str, PartitionSlot]) -> dict[str, Trouble]:
        """Partition -> its trouble, unless it is still this slot's own. May be called from any thread."""
        return {
            partition: call.trouble
            for partition, call in self._calls.items()
            if call.lasts and slots.get(partition) is not call.slot
        }

"""Which partitions other hosts have that are alive."""

from __future__ import annotations

from collections.abc import Collection

from actorproc.group.heartbeat import Incarnation, read_heartbeats
from actorproc.group.membership import GroupDocument
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store


class OtherOwners:
    """Watches the heartbeats. A host is alive once its heartbeat was seen to change: a killed one is still a member.

    Args:
        host: this one, which does not count.
    """

    def __init__(self, store: Store, layout: ProcessorLayout, host: str) -> None:
        self._store, self._layout, self._host = store, layout, host
        self._first_beats: dict[Incarnation, int] = {}

    async def have(self, group: GroupDocument, partitions: Collection[str]) -> set[str]:
        """Those of the partitions that belong to other hosts that are alive.

        Raises:
            StoreError, CorruptObject: the heartbeats cannot be read.
        """
        beats = {(h.host, h.incarnation): h.beat for h, _ in await read_heartbeats(self._store, self._layout)}
        alive = {who for who, beat in beats.items() if beat > self._first_beats.setdefault(who, beat)}
        others = {who for who in alive if who[0] != self._host}
        return {partition for partition in partitions if group.owner_of(partition) in others}

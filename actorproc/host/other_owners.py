"""Which partitions other hosts have that are alive."""

from __future__ import annotations

from collections.abc import Collection

from actorproc.group.heartbeat import Incarnation, read_heartbeats
from actorproc.group.membership import GroupDocument, read_group
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store


class OtherOwners:
    """Watches the group. A host is alive once its heartbeat was seen to change: a killed one is still a member."""

    def __init__(self, store: Store, layout: ProcessorLayout) -> None:
        self._store, self._layout = store, layout
        self._first_beats: dict[Incarnation, int] = {}

    async def have(self, partitions: Collection[str]) -> set[str]:
        """Those of the partitions that belong to hosts that are alive.

        Raises:
            StoreError, CorruptObject: the group cannot be read.
        """
        group = await read_group(self._store, self._layout) or GroupDocument.of()
        beats = {(h.host, h.incarnation): h.beat for h, _ in await read_heartbeats(self._store, self._layout)}
        alive = {who for who, beat in beats.items() if beat > self._first_beats.setdefault(who, beat)}
        return {partition for partition in partitions if group.owner_of(partition) in alive}

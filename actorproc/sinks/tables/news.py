"""Knows which partitions have nothing new for a table, so that a turn asks for the next commit of the others only."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple

from actorproc.group.heartbeat import read_heartbeats
from actorproc.storage.listing import documents
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store

_ASK_ALL = 900.0
"""Seconds after which all are asked: nobody tells of a commit that a former owner creates late, for example."""

Sign = Hashable
"""Changes when an owner commits: the tag of the checkpoint, and what the heartbeats of hosts say of the partition."""


class _Known(NamedTuple):
    sign: Sign
    end: int
    """The number of the commit that was missing."""


class ChainNews:
    """The end of each chain as it was last found, with the sign that its partition had before.

    A sign is a hint. A heartbeat is up to 13 s old, so commits may be found one turn later; none is passed over. Hosts
    that can be reached tell of each commit at once.

    Args:
        follow: asks the host at an address to tell of its commits (`Nudges.follow`).
    """

    def __init__(
        self, store: Store, layout: ProcessorLayout, follow: Callable[[str], None] = lambda address: None
    ) -> None:
        self._store, self._layout, self._follow = store, layout, follow
        self._told = set[str]()  # since the latest look
        self._signs: Mapping[str, Sign] = {}
        self._known: dict[str, _Known] = {}
        self._asked_all_at = -math.inf

    async def look(self) -> list[str]:
        """Read the signs of all partitions. Call it before commits are listed. Returns the partitions."""
        now = self._store.clock.monotonic()
        if now >= self._asked_all_at + _ASK_ALL:
            self.forget()
            self._asked_all_at = now
        for partition in self._told:
            self._known.pop(partition, None)
        self._told.clear()
        checkpoints = await documents(self._store, self._layout.checkpoints)
        reports: dict[str, list[Sign]] = {}
        for beat, _ in await read_heartbeats(self._store, self._layout):
            if beat.address:
                self._follow(beat.address)
            for partition, report in beat.report.progress.items():
                sign = beat.incarnation, report.epoch, report.sequence, report.totals
                reports.setdefault(partition, []).append(sign)
        self._signs = {p: (entry.tag, *reports.get(p, ())) for p, entry in checkpoints.items()}
        return list(checkpoints)

    def forget(self) -> None:
        """Ask all partitions at the next turn."""
        self._known.clear()

    def told(self, partition: str) -> None:
        """A host says that the partition has a new commit: it is asked after the next look."""
        if partition in self._signs:
            self._told.add(partition)

    def found_end(self, partition: str, end: int) -> None:
        """There was no commit `end` after the signs were read."""
        self._known[partition] = _Known(self._signs[partition], end)

    def is_end(self, partition: str, position: int) -> bool:
        """Whether no commit from `position` on is known of, nor has anything changed since it was missing."""
        known = self._known.get(partition)
        return known is not None and known == (self._signs.get(partition), position)

"""`LoadWatch`: reads how busy partitions are, once a minute, and finds new weights for the plan."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

from actorproc.group.heartbeat import read_heartbeats
from actorproc.group.load import Sample, loads, samples, worthwhile
from actorproc.group.membership import GroupDocument
from actorproc.runtime.clock import Clock
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store

INTERVAL = 60.0
"""Seconds between two looks."""

LOOKS = 5
"""Earlier looks over which loads are measured at most: a long time evens out what a look sees by chance."""


class LoadWatch:
    """One host's measurements. It costs a LIST, and a GET for each host, a minute."""

    def __init__(self, store: Store, layout: ProcessorLayout, clock: Clock) -> None:
        self._store, self._layout, self._clock = store, layout, clock
        self._looked_at = -math.inf
        self._looks: deque[Mapping[str, Sample]] = deque(maxlen=LOOKS)

    async def new_weights(self, document: GroupDocument) -> dict[str, int] | None:
        """Weights that even the hosts out noticeably; None: there are none, or it is not time yet.

        Raises:
            StoreError: a heartbeat could not be read.
        """
        now = self._clock.monotonic()
        if now < self._looked_at + INTERVAL:
            return None
        self._looked_at = now
        found = samples(beat for beat, _ in await read_heartbeats(self._store, self._layout))
        measured = loads(self._looks, found)
        self._looks.append(found)
        return worthwhile(document.members, document.leases, document.wishes, measured)

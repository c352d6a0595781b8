"""Which lines of an input are in the log for sure, and from which one to go on where it ended early."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from actorproc.log.batches import Deliveries


class Appended(NamedTuple):
    """What is known at a moment. Once the producer is closed it is all that ever will be."""

    records: int
    """Confirmed: they are in the log."""
    doubtful: int
    """Taken in, and neither confirmed nor refused: they may be in the log or not."""
    next_line: int
    """Number, from 1, of the first line that may be missing. All before it are in the log, but for blank ones and those skipped."""
    beyond: int
    """Of `records`, those that come after `next_line`: partitions get on each by itself."""


class Account:
    """Kept by who sends the lines; asked by who must say how far that came, at any time."""

    def __init__(self) -> None:
        self._confirmed = 0  # of what is not under way any more
        self._under_way: deque[tuple[Deliveries, Sequence[int]]] = deque()  # oldest first
        self._next = 1

    def begin(self, numbers: Sequence[int]) -> Deliveries:
        """Lines with these numbers are about to be sent: noted where it is returned."""
        deliveries = Deliveries()
        self._under_way.append((deliveries, numbers))
        return deliveries

    def reach(self, number: int) -> None:
        """The lines before this one were all sent, or need not be."""
        self._next = number

    async def settle(self, most: int) -> None:
        """Wait until at most so many sendings are under way. Raises what one of those before them raised."""
        while len(self._under_way) > most:
            deliveries, _ = self._under_way[0]
            await deliveries.confirmed()
            self._under_way.popleft()
            self._confirmed += len(deliveries)

    def appended(self) -> Appended:
        records, doubtful, beyond = self._confirmed, 0, 0
        missing: int | None = None
        for deliveries, numbers in self._under_way:
            there = deliveries.known()
            records += len(there)
            doubtful += len(deliveries) - len(there) - deliveries.refused()
            if missing is not None:
                beyond += len(there)
            elif len(there) < len(numbers):
                mask = np.zeros(len(numbers), bool)
                mask[there] = True
                first = int(mask.argmin())
                missing, beyond = numbers[first], len(there) - first
        return Appended(records, doubtful, self._next if missing is None else missing, beyond)

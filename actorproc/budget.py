"""A budget of bytes that many readers share: what bounds a host's memory whatever the backlog."""

from __future__ import annotations

from collections import deque

import anyio


class ByteBudget:
    """First come, first served. A reader that holds nothing gets one batch even when it is larger than the budget."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self._waiting: deque[tuple[int, anyio.Event]] = deque()

    async def take(self, size: int) -> None:
        """Wait until `size` bytes are free, and take them."""
        if self._waiting or not self._fits(size):
            entry = (size, anyio.Event())
            self._waiting.append(entry)
            try:
                await entry[1].wait()
            except BaseException:
                if entry[1].is_set():
                    self.give_back(size)
                else:
                    self._waiting.remove(entry)
                    self._wake()
                raise
            return
        self.used += size

    def give_back(self, size: int) -> None:
        self.used -= size
        self._wake()

    def reclaim(self, size: int) -> None:
        """Take back at once what was given back for a while, although others may have it now."""
        self.used += size

    def _fits(self, size: int) -> bool:
        return self.used == 0 or self.used + size <= self.size

    def _wake(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, event = self._waiting.popleft()
            self.used += size
            event.set()


class Tally:
    """Bytes that many hold at once. Nobody waits for room: past `size`, those who hold the most are to let go."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self.holders = 0

    def share(self) -> Share:
        return Share(self)


class Share:
    """What one of them holds."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.held = 0

    def add(self, size: int) -> None:
        self.tally.holders += self.held == 0 and size > 0
        self.tally.used += size
        self.held += size

    def clear(self) -> None:
        self.tally.holders -= self.held > 0
        self.tally.used -= self.held
        self.held = 0

    def excessive(self) -> bool:
        """Too much is held, and here no less than on average. Somebody always is, so it shrinks."""
        tally = self.tally
        return tally.used > tally.size and self.held * tally.holders >= tally.used

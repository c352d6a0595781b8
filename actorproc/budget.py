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

    def _fits(self, size: int) -> bool:
        return self.used == 0 or self.used + size <= self.size

    def _wake(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, event = self._waiting.popleft()
            self.used += size
            event.set()

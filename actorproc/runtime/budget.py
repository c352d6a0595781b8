"""Byte budgets that bound the memory of a host, whatever the backlog."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import anyio


class ByteBudget:
    """Bytes that many readers share, first come, first served.

    A request that is larger than the whole budget is granted while nothing else is taken.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self._waiting: deque[tuple[int, int, anyio.Event]] = deque()

    @property
    def crowded(self) -> bool:
        """Whether somebody waits for bytes."""
        return bool(self._waiting)

    async def take(self, size: int, least: int | None = None) -> None:
        """Wait until `size` bytes are free, or `least` of them; then take all `size` bytes."""
        least = size if least is None else least
        if not self._waiting and self._fits(least):
            self.used += size
            return
        entry = (least, size, anyio.Event())
        self._waiting.append(entry)
        try:
            await entry[2].wait()
        except BaseException:
            if entry[2].is_set():
                self.give_back(size)
            else:
                self._waiting.remove(entry)
                self._wake()
            raise

    def give_back(self, size: int) -> None:
        self.used -= size
        self._wake()

    def take_at_once(self, size: int) -> None:
        """Take without waiting, beyond the budget if need be."""
        self.used += size

    def _fits(self, size: int) -> bool:
        return self.used <= 0 or self.used + size <= self.size  # negative while bytes that are lent out shrink

    def _wake(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            _, size, event = self._waiting.popleft()
            self.used += size
            event.set()


class ReadBudget:
    """One partition's part of a ByteBudget: the bytes that its source holds, and its batches on the way to the handler.

    A source that knows the size of a fetch calls `reserve` before it and `resize` once the exact size is known. Batches
    of its chunks are then taken out of that reservation. Batches of other sources wait in `take`.

    Args:
        epoch: of the lease under which the partition is read. Where the service knows epochs, the source reads with it,
            and the service cuts off the reader of an earlier owner.
    """

    def __init__(self, budget: ByteBudget, epoch: int | None = None) -> None:
        self.epoch = epoch
        self._budget = budget
        self._reserved = 0
        self._batches = 0
        self.is_waiting = False
        """Whether the source waits for bytes that others hold."""

    @classmethod
    def unlimited(cls) -> Self:
        """For a reader outside of a processor."""
        return cls(ByteBudget(sys.maxsize))

    @property
    def has_reservation(self) -> bool:
        """Whether the source has reserved the bytes that it holds."""
        return self._reserved > 0

    async def reserve(self, size: int) -> None:
        """Give back the previous reservation and wait until about `size` bytes are free for the next fetch.

        It waits for at most half of the budget, and then takes the whole `size`: a large file would otherwise wait
        until all other readers are idle. While it is held, no second file of that size fits.
        """
        self.resize(0)
        self.is_waiting = True
        try:
            await self._budget.take(size, min(size, self._budget.size // 2))
        finally:
            self.is_waiting = False
        self._reserved = size

    def resize(self, size: int) -> None:
        """Correct the reservation to the `size` bytes that the source still holds."""
        more, self._reserved = size - self._reserved, size
        self._change(more)

    async def take(self, size: int) -> None:
        """Take the bytes of a batch: out of the reservation, or as soon as the budget has them."""
        if self._reserved:
            more = max(0, size - self._reserved)
            self._reserved -= size - more
            self._change(more)
        else:
            await self._budget.take(size)
        self._batches += size

    def give_back(self, size: int) -> None:
        """Give back the bytes of a batch that is done."""
        self._batches -= size
        self._change(-size)

    @contextmanager
    def lent_out(self) -> Iterator[None]:
        """Other readers may take this partition's bytes meanwhile."""
        held = self._reserved + self._batches
        self._change(-held)
        try:
            yield
        finally:
            self._change(held)

    def close(self) -> None:
        self.resize(0)
        self.give_back(self._batches)

    def _change(self, size: int) -> None:
        if size > 0:
            self._budget.take_at_once(size)
        elif size < 0:
            self._budget.give_back(-size)


class BufferTotal:
    """Bytes that all partitions of a host buffer. Nobody waits: beyond `size`, the partitions that hold most flush."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self.holders = 0


class BufferShare:
    """Bytes that one partition buffers."""

    def __init__(self, total: BufferTotal) -> None:
        self.total = total
        self.held = 0

    def add(self, size: int) -> None:
        self.total.holders += self.held == 0 and size > 0
        self.total.used += size
        self.held += size

    def clear(self) -> None:
        self.total.holders -= self.held > 0
        self.total.used -= self.held
        self.held = 0

    def excessive(self) -> bool:
        """Whether the total is exceeded and this partition holds at least the average. Some partition always does."""
        return self.total.used > self.total.size and self.held * self.total.holders >= self.total.used

"""A budget of bytes that many readers share: what bounds a host's memory whatever the backlog."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import anyio


class ByteBudget:
    """First come, first served. While nobody holds anything, the next gets a batch even if it is larger than the budget."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self._waiting: deque[tuple[int, int, anyio.Event]] = deque()

    @property
    def crowded(self) -> bool:
        """Whether somebody waits for bytes."""
        return bool(self._waiting)

    async def take(self, size: int, least: int | None = None) -> None:
        """Wait until `size` bytes are free, or `least` of them, and take them all."""
        least = size if least is None else least
        if self._waiting or not self._fits(least):
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
            return
        self.used += size

    def give_back(self, size: int) -> None:
        self.used -= size
        self._wake()

    def reclaim(self, size: int) -> None:
        """Take at once, although others may have it: what was given back for a while, or turned out larger."""
        self.used += size

    def _fits(self, size: int) -> bool:
        return self.used <= 0 or self.used + size <= self.size  # below 0 while what was given back is lent as well

    def _wake(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            _, size, event = self._waiting.popleft()
            self.used += size
            event.set()


class ReadBudget:
    """What the reading of one partition takes of a budget: batches on their way to the handler, and what its source holds.

    A source that makes room before it fetches calls `reserve`, and `resize` as soon as it knows better: it never waits
    while it holds anything. Batches of its chunks are then taken out of that; those of any other source wait here.
    """

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._source = 0
        self._batches = 0

    @property
    def made(self) -> bool:
        """Whether the source has made room for what it holds."""
        return self._source > 0

    async def reserve(self, size: int) -> None:
        """Let go of what the source held, and wait until about `size` bytes are free for what it fetches next.

        For more than half of the budget it does not wait, and takes the whole `size` all the same: else one large file would
        wait until all others have come to rest. While it is held there is no room for another such file.
        """
        self.resize(0)
        await self._budget.take(size, min(size, self._budget.size // 2))
        self._source = size

    def resize(self, size: int) -> None:
        """So much is what the source holds now, of all that it has reserved and not handed over."""
        more, self._source = size - self._source, size
        self._change(more)

    async def take(self, size: int) -> None:
        """Take a batch of the source's: out of what it has reserved, or as soon as there is room."""
        if self._source:
            more = max(0, size - self._source)
            self._source -= size - more
            self._change(more)
        else:
            await self._budget.take(size)
        self._batches += size

    def give_back(self, size: int) -> None:
        """A batch is done with."""
        self._batches -= size
        self._change(-size)

    @contextmanager
    def lent_out(self) -> Iterator[None]:
        """Meanwhile everything is for others to take."""
        held = self._source + self._batches
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
            self._budget.reclaim(size)
        elif size < 0:
            self._budget.give_back(-size)


class BufferTotal:
    """Bytes that many hold at once. Nobody waits for room: past `size`, those who hold the most are to let go."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self.holders = 0

    def share(self) -> BufferShare:
        return BufferShare(self)


class BufferShare:
    """What one of them holds."""

    def __init__(self, tally: BufferTotal) -> None:
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
        """Whether too much is held in all, and here at least the average. Some share always has that much, so the sum shrinks."""
        tally = self.tally
        return tally.used > tally.size and self.held * tally.holders >= tally.used

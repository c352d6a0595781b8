"""Lets few partitions of a host open at a time, so that the first ones work while others are still being claimed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

_AT_ONCE = 32
"""Enough to keep a store busy. If all of thousands opened together, none would work before all had opened."""

_PATIENCE = 1.0
"""Seconds after which an opening makes room for another one: some partitions of a source may not answer for long."""


class Openings:
    """The openings of one host, in the order in which they began."""

    def __init__(self) -> None:
        self._free = anyio.Semaphore(_AT_ONCE)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and open in the block."""
        await self._free.acquire()
        is_held = True

        def give_back() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._free.release()

        timer = asyncio.get_running_loop().call_later(_PATIENCE, give_back)
        try:
            yield
        finally:
            timer.cancel()
            give_back()

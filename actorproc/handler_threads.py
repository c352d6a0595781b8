"""The threads in which plain `def` handlers run: bounded per host, one at a time for a partition, and none is forgotten.

A thread cannot be stopped. A caller that is cancelled goes on without it; the thread keeps its slot until it ends, and
until then its partition is not given to another instance of the handler on this host.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import anyio

from actorproc.clock import Clock

T = TypeVar("T")


class HandlerThreads:
    """Args: most: threads at work at once."""

    def __init__(self, most: int, clock: Clock) -> None:
        self._slots = anyio.CapacityLimiter(most)
        self._threads = anyio.CapacityLimiter(float("inf"))
        self._clock = clock
        self._ended: dict[str, anyio.Event] = {}  # partition -> set when its thread has ended

    async def run(self, partition: str, begun: Callable[[], None], work: Callable[..., T], *args: object) -> T:
        """Run `work` in a thread, when there is a slot and the partition's earlier thread has ended.

        Args:
            begun: called on the event loop when it is `work`'s turn.
        """
        slot = object()
        await self.ended(partition)
        await self._slots.acquire_on_behalf_of(slot)
        ended = self._ended[partition] = anyio.Event()
        loop = asyncio.get_running_loop()
        first = threading.Lock()  # taken by the thread when it begins, or by a caller who gives up before that

        def release() -> None:
            self._slots.release_on_behalf_of(slot)
            del self._ended[partition]
            ended.set()

        def in_thread() -> T:
            if not first.acquire(blocking=False):
                raise RuntimeError("given up before it began")
            try:
                return work(*args)
            finally:
                with suppress(RuntimeError):  # the loop is closed: nobody counts any more
                    loop.call_soon_threadsafe(release)

        try:
            begun()
            return await self._clock.offload(in_thread, abandon=True, limiter=self._threads)
        finally:
            if first.acquire(blocking=False):
                release()

    async def ended(self, partition: str) -> None:
        """Wait until no thread is at work for the partition."""
        while (event := self._ended.get(partition)) is not None:
            await event.wait()

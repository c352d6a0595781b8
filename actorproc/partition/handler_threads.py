"""The threads in which plain `def` handlers run: bounded per host, one at a time for a partition.

Handlers that wait for a service run at the same time. Handlers that compute take turns with each other and with the
decoding of batches: otherwise the interpreter would switch between them every few milliseconds, each with ten thousand
objects, and the CPU caches would hold none of them.

A thread cannot be stopped. If the caller is cancelled, the thread runs on and keeps its slot until it ends. Until then
no other instance of the handler gets its partition on this host.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import TypeVar

import anyio

from actorproc.runtime.clock import Clock
from actorproc.runtime.cpu import CpuSlot

T = TypeVar("T")

_COMPUTES = 0.5  # share of its time in which a handler computes, from which on it takes turns
_LOOK_EVERY = 64  # one in so many attempts takes a turn, and is measured without the others


@dataclass(slots=True)
class _Thread:
    ended: anyio.Event = field(default_factory=anyio.Event)
    id: int | None = None  # once it has begun


class HandlerThreads:
    """Runs plain handlers, each in a thread.

    Args:
        most: maximum number of threads at work.
        patience: seconds of waiting for a thread after which `no_thread` is called.
    """

    def __init__(self, most: int, clock: Clock, patience: float = inf) -> None:
        self._most = most
        self._patience = patience
        self._slots = anyio.CapacityLimiter(most)
        self._threads = anyio.CapacityLimiter(float("inf"))
        self._computing = 1.0  # measured share of its time in which the handler computes
        self._attempts = 0
        self._clock = clock
        self._at_work: dict[str, _Thread] = {}  # by partition

    async def run(
        self,
        partition: str,
        begun: Callable[[], None],
        work: Callable[..., T],
        *args: object,
        no_thread: Callable[[str], None] = lambda _: None,
    ) -> T:
        """Run `work` in a thread, when there is a slot and the partition's earlier thread has ended.

        Args:
            begun: called on the event loop when `work` starts.
            no_thread: called with the reason after a wait of `patience` for a slot. The wait goes on.
        """
        slot = object()
        await self.ended(partition)
        with anyio.move_on_after(self._patience) as waiting:
            await self._slots.acquire_on_behalf_of(slot)
        if waiting.cancelled_caught:
            no_thread(f"waits for a thread: all {self._most} (handler_threads) are in calls that do not end")
            await self._slots.acquire_on_behalf_of(slot)
        try:
            turn = await self._acquire_cpu_slot()
        except BaseException:
            self._slots.release_on_behalf_of(slot)
            raise
        thread = self._at_work[partition] = _Thread()
        loop = asyncio.get_running_loop()
        first = threading.Lock()  # taken by the thread when it begins, or by a caller who gives up before that

        def release() -> None:
            if turn is not None:
                turn.end()
            self._slots.release_on_behalf_of(slot)
            del self._at_work[partition]
            thread.ended.set()

        def in_thread() -> T:
            if not first.acquire(blocking=False):
                raise RuntimeError("given up before it began")
            before = self._clock.thread_times()
            thread.id = threading.get_ident()
            try:
                return work(*args)
            finally:
                if turn is not None:
                    self._measured(before)
                with suppress(RuntimeError):  # the loop is closed: nobody counts any more
                    loop.call_soon_threadsafe(release)

        try:
            begun()
            return await self._clock.run_in_thread(in_thread, abandon=True, limiter=self._threads)
        finally:
            if first.acquire(blocking=False):
                release()

    async def _acquire_cpu_slot(self) -> CpuSlot | None:
        """A turn, if the handler computes and there is one in time."""
        self._attempts += 1
        if self._computing < _COMPUTES and self._attempts % _LOOK_EVERY:
            return None
        return await self._clock.acquire_cpu_slot()

    def _measured(self, before: tuple[float, float]) -> None:
        computed, took = (now - then for now, then in zip(self._clock.thread_times(), before, strict=True))
        if computed > 0 or took > 0:
            self._computing += (computed / max(computed, took) - self._computing) / 2

    def thread_of(self, partition: str) -> int | None:
        """Id of the thread that is at work for the partition."""
        return thread.id if (thread := self._at_work.get(partition)) else None

    def is_at_work(self, partition: str) -> bool:
        """Whether a thread is at work for the partition."""
        return partition in self._at_work

    def ended_event(self, partition: str) -> anyio.Event | None:
        """Set when the thread that is at work for the partition has ended; None: there is none."""
        return thread.ended if (thread := self._at_work.get(partition)) else None

    async def ended(self, partition: str) -> None:
        """Wait until no thread is at work for the partition."""
        while (event := self.ended_event(partition)) is not None:
            await event.wait()

"""Time, randomness and threads behind one object, so that a simulation can replace all three."""

from __future__ import annotations

import asyncio
import math
import os
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread

from actorproc.runtime.cpu import CpuSlot, acquire_slot, available_cores
from actorproc.runtime.thread_pool import ThreadPool

T = TypeVar("T")

SHORTEST_WAIT = 0.001
"""Seconds. Timers end a little early, and sums of seconds are inexact: a shorter wait may end at once, for ever."""

_THREADS = 40  # at once, of each event loop
_THREAD_WORTHWHILE = 32 * 2**10  # bytes; switching to a thread and back takes as long as most work on fewer

_threads: anyio.lowlevel.RunVar[anyio.CapacityLimiter] = anyio.lowlevel.RunVar("actorproc.threads")
_cpu_slots: anyio.lowlevel.RunVar[anyio.CapacityLimiter] = anyio.lowlevel.RunVar("actorproc.cpu_slots")


class Moment(NamedTuple):
    """A time by both clocks of the machine. While the machine sleeps one may stop; the other may be set."""

    monotonic: float
    wall: float


LONG_AGO = Moment(-math.inf, -math.inf)


class Clock:
    """The machine's own clock. Subclass it to simulate.

    `monotonic()` and `sleep()` use the event loop's time base, so anyio's deadlines agree with both.

    Args:
        seed: of the random numbers; drawn from the system by default.
        thread_worthwhile: bytes above which `run_cpu_work` uses a thread.
    """

    def __init__(self, seed: object = None, *, thread_worthwhile: int = _THREAD_WORTHWHILE) -> None:
        self.random = random.Random(None if seed is None else str(seed))  # noqa: S311 (jitter and put-ids, no secrets)
        self._thread_worthwhile = thread_worthwhile

    def monotonic(self) -> float:
        """Seconds on a clock that never jumps. Comparable within this process only."""
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        """Seconds since 1970. May jump, so it is for people and records, and no decision rests on it alone."""
        return time.time()

    def now(self) -> datetime:
        """`wall()` as an aware datetime in UTC."""
        return datetime.fromtimestamp(self.wall(), UTC)

    def moment(self) -> Moment:
        """Now, for `since`."""
        return Moment(self.monotonic(), self.wall())

    def since(self, moment: Moment) -> float:
        """Seconds since then, by the clock that shows more: for those who may have slept."""
        return max(self.monotonic() - moment.monotonic, self.wall() - moment.wall)

    def nonce(self) -> str:
        """16 hex digits that no other call returned."""
        return f"{self.random.getrandbits(64):016x}"

    def jitter(self, seconds: float, share: float = 0.1) -> float:
        """`seconds`, varied by up to `share` of it, so that hosts that were started together drift apart."""
        return seconds * self.random.uniform(1 - share, 1 + share)

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    def thread_times(self) -> tuple[float, float]:
        """CPU time and elapsed time of the calling thread, in seconds from some moment on.

        Time in which the process's other threads kept the cores busy does not count as elapsed: a thread that waits for
        a core is not idle.
        """
        cpu_time = time.thread_time()
        return cpu_time, time.perf_counter() - (time.process_time() - cpu_time) / self.cores

    @property
    def cores(self) -> int:
        """How many threads can compute at once."""
        return available_cores()

    async def run_in_thread(
        self,
        work: Callable[..., T],
        *args: object,
        abandon: bool = False,
        background: bool = False,
        limiter: anyio.CapacityLimiter | None = None,
    ) -> T:
        """Run blocking or CPU-heavy `work` off the event loop.

        Args:
            abandon: a cancelled caller does not wait for the thread to end.
            background: nobody waits for the result yet, so the work waits up to `SLOT_TIME` for a CPU slot.
            limiter: bounds the number of threads. The default is our own limiter: an application may block all threads
                of anyio's.
        """
        slot = await self.acquire_cpu_slot() if background else None
        try:
            return await self._in_thread(work, *args, abandon=abandon, limiter=limiter)
        finally:
            if slot is not None:
                slot.end()

    async def run_cpu_work(self, size: int, work: Callable[..., T], *args: object, background: bool = False) -> T:
        """Run CPU-heavy `work` on about `size` bytes: on the event loop if they are few, else in a thread."""
        if size <= self._thread_worthwhile:
            return work(*args)
        return await self.run_in_thread(work, *args, background=background)

    def thread_pool(self, most: int) -> ThreadPool:
        """Up to `most` threads for many short pieces of blocking work; cheaper than `run_in_thread`."""
        return ThreadPool(most)

    async def acquire_cpu_slot(self) -> CpuSlot | None:
        """Wait up to `SLOT_TIME` for a slot to compute; None if none became free.

        There are as many slots as cores: more threads at once only evict each other's data from the caches.
        """
        return await acquire_slot(self._cpu_slots)

    @property
    def _cpu_slots(self) -> anyio.CapacityLimiter:
        return _of_loop(_cpu_slots, self.cores)

    async def _in_thread(
        self, work: Callable[..., T], *args: object, abandon: bool, limiter: anyio.CapacityLimiter | None
    ) -> T:
        limiter = limiter or _of_loop(_threads, _THREADS)
        if not abandon:
            return await anyio.to_thread.run_sync(work, *args, limiter=limiter)
        # In a task of its own, outside the caller's scopes. An abandoned thread may still call `anyio.from_thread`, and
        # in a cancelled scope that was left every checkpoint of that call would spin for ever.
        alone = asyncio.create_task(anyio.to_thread.run_sync(work, *args, limiter=limiter))
        alone.add_done_callback(_retrieve)
        return await asyncio.shield(alone)


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Take the error of a task that nobody may await any more: asyncio would log it as never retrieved."""
    if not task.cancelled():
        task.exception()


def _of_loop(limiter: anyio.lowlevel.RunVar[anyio.CapacityLimiter], most: int) -> anyio.CapacityLimiter:
    """The running event loop's limiter; made on first use."""
    try:
        return limiter.get()
    except LookupError:
        limiter.set(anyio.CapacityLimiter(most))
        return limiter.get()


SYSTEM = Clock()
# Processes forked after the import would otherwise draw the same nonces and take each other's writes for their own.
os.register_at_fork(after_in_child=SYSTEM.random.seed)

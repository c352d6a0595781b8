"""Time, randomness and threads, for all who need them, so that a simulation can replace all three."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread

from actorproc.runtime.threads import Threads

T = TypeVar("T")

_THREADS = 40  # at once, of each event loop
_LIMIT = Path("/sys/fs/cgroup/cpu.max")  # microseconds of CPU time that a container may use, and in how many
_PATIENCE = 0.25  # seconds; who has waited so long for a turn goes on without, and who has had one so long loses it

_threads: anyio.lowlevel.RunVar[anyio.CapacityLimiter] = anyio.lowlevel.RunVar("actorproc.runtime.threads")
_turns: anyio.lowlevel.RunVar[anyio.CapacityLimiter] = anyio.lowlevel.RunVar("actorproc.turns")


class Turn:
    """A turn to compute, from `begin` to `end`. After a while it ends by itself: who is still at it may only be waiting."""

    def __init__(self, turns: anyio.CapacityLimiter) -> None:
        self._turns = turns
        self._timer: asyncio.TimerHandle | None = None  # while it lasts

    async def begin(self) -> None:
        await self._turns.acquire_on_behalf_of(self)
        self._last()

    def begin_at_once(self) -> bool:
        """`begin`, unless one would have to wait. Returns whether it has begun."""
        try:
            self._turns.acquire_on_behalf_of_nowait(self)
        except anyio.WouldBlock:
            return False
        self._last()
        return True

    def _last(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_PATIENCE, self.end)

    def end(self) -> None:
        """To be called on the event loop, in a task or not, once or often."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            self._turns.release_on_behalf_of(self)


class Clock:
    """The machine's own clock. Subclass it to simulate.

    `monotonic()` and `sleep()` share the event loop's time base, so anyio's deadlines agree with both.
    """

    _worth_a_thread = 32 * 2**10  # bytes; going to a thread and back takes as long as most work on fewer

    def __init__(self, seed: int | None = None) -> None:
        self.random = random.Random(seed)  # noqa: S311 (jitter and put-ids; nothing here is a secret)

    def monotonic(self) -> float:
        """Seconds on a clock that never jumps. Comparable within this process only."""
        return anyio.current_time()

    def wall(self) -> float:
        """Seconds since 1970, for people and for records. May jump: nothing is decided by it alone."""
        return time.time()

    def now(self) -> datetime:
        """`wall()` as an aware datetime in UTC."""
        return datetime.fromtimestamp(self.wall(), UTC)

    def nonce(self) -> str:
        """16 hex digits that no other call returned."""
        return f"{self.random.getrandbits(64):016x}"

    def jitter(self, seconds: float, share: float = 0.1) -> float:
        """`seconds`, give or take `share` of it, so that hosts started together drift apart."""
        return seconds * self.random.uniform(1 - share, 1 + share)

    def effort(self) -> tuple[float, float]:
        """What the calling thread has computed, and in what time, in seconds from some moment on. To be called in it.

        Time in which the rest of the process kept the cores busy does not count: who waits for a core is not idle.
        """
        computed = time.thread_time()
        return computed, time.perf_counter() - (time.process_time() - computed) / self.cores

    @property
    def cores(self) -> int:
        """How many threads can compute at once. A container's CPU limit counts, as far as it grants whole cores."""
        there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(1, min(there, _granted()))

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    async def offload(
        self,
        work: Callable[..., T],
        *args: object,
        abandon: bool = False,
        ahead: bool = False,
        limiter: anyio.CapacityLimiter | None = None,
    ) -> T:
        """Run blocking or CPU-heavy `work` off the event loop.

        Args:
            abandon: a cancelled caller need not wait for the thread to end.
            ahead: it computes, and mostly nobody waits for it yet: it waits for a turn, though not for long.
            limiter: bounds the threads instead. (anyio's own is the application's, which may block all of those threads.)
        """
        if not ahead:
            return await self._in_thread(work, *args, abandon=abandon, limiter=limiter)
        turn = await self.take_turn()
        try:
            return await self._in_thread(work, *args, abandon=abandon, limiter=limiter)
        finally:
            if turn is not None:
                turn.end()

    def threads(self, most: int) -> Threads:
        """Threads of one's own for many short pieces of blocking work; cheaper than `offload`."""
        return Threads(most)

    async def compute(self, size: int, work: Callable[..., T], *args: object, ahead: bool = False) -> T:
        """Run CPU-heavy `work` on about `size` bytes: off the event loop, as `offload` does, if they are worth a thread."""
        if size <= self._worth_a_thread:
            return work(*args)
        return await self.offload(work, *args, ahead=ahead)

    async def take_turn(self) -> Turn | None:
        """Wait for a turn to compute: there are as many as cores, as more at once only drive each other's data out of the
        caches. None: there was none for a while; go on without.
        """
        turn = Turn(self._turns)
        if turn.begin_at_once():
            return turn
        with anyio.move_on_after(_PATIENCE):
            await turn.begin()
            return turn
        return None

    @property
    def _turns(self) -> anyio.CapacityLimiter:
        return _of_loop(_turns, self.cores)

    async def _in_thread(
        self, work: Callable[..., T], *args: object, abandon: bool, limiter: anyio.CapacityLimiter | None
    ) -> T:
        limiter = limiter or _of_loop(_threads, _THREADS)
        if not abandon:
            return await anyio.to_thread.run_sync(work, *args, limiter=limiter)
        # In a task of its own, outside of the caller's scopes: what a thread that was given up awaits on the loop
        # (`anyio.from_thread`) would else be in a scope that is cancelled and left, in which every checkpoint spins for ever.
        alone = asyncio.create_task(anyio.to_thread.run_sync(work, *args, limiter=limiter))
        return await asyncio.shield(alone)


@lru_cache
def _granted() -> int:
    """Whole cores that this container's limit grants (cgroup v2); more than there are if there is no limit."""
    try:
        quota, period = _LIMIT.read_text().split()
        return sys.maxsize if quota == "max" else int(quota) // int(period)
    except (OSError, ValueError):
        return sys.maxsize


def _of_loop(limiter: anyio.lowlevel.RunVar[anyio.CapacityLimiter], most: int) -> anyio.CapacityLimiter:
    try:
        return limiter.get()
    except LookupError:
        limiter.set(anyio.CapacityLimiter(most))
        return limiter.get()


SYSTEM = Clock()
# Else processes forked from one that has imported us would draw the same nonces, and take each other for themselves.
os.register_at_fork(after_in_child=SYSTEM.random.seed)

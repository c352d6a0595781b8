"""Clock of a simulated host: virtual time, seeded randomness, and work for threads on the event loop."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

import anyio
import anyio.lowlevel

from actorproc.runtime.clock import Clock
from actorproc.runtime.thread_pool import ThreadPool
from actorproc.simulation.loop import current_loop

T = TypeVar("T")

EPOCH = 1_700_000_000.0
"""Wall time, seconds since 1970, at which the clock of a loop would show 0."""


class VirtualClock(Clock):
    """A clock for one incarnation of one host.

    Args:
        seed: of its random numbers. Put-ids come from them, so each clock of a run needs its own seed.
        offset: seconds by which its wall time is ahead of the world's. May be changed at any time.
        delay: longest time in seconds that `run_in_thread` waits for a thread.
    """

    def __init__(self, seed: object, *, offset: float = 0.0, delay: float = 0.0) -> None:
        thread_worthwhile = Random(f"{seed}/threads").choice([0, 32 * 2**10])  # noqa: S311
        super().__init__(f"{seed}/clock", thread_worthwhile=thread_worthwhile)
        self.offset = offset
        self._delay = delay
        self._looks = 0.0
        self._core = anyio.CapacityLimiter(1)

    def wall(self) -> float:
        return EPOCH + current_loop().time() + self.offset

    def thread_times(self) -> tuple[float, float]:
        """No CPU time: simulated handlers only wait."""
        self._looks += 1.0
        return 0.0, self._looks

    @property
    def cores(self) -> int:
        return 1

    @property
    def _cpu_slots(self) -> anyio.CapacityLimiter:
        return self._core

    def thread_pool(self, most: int) -> ThreadPool:
        return _InlineThreadPool(self, most)

    async def _in_thread(
        self, work: Callable[..., T], *args: object, abandon: bool, limiter: anyio.CapacityLimiter | None
    ) -> T:
        """Run `work` on the event loop, in no virtual time. `anyio.from_thread` does not work in it."""
        await anyio.lowlevel.checkpoint()
        async with limiter or anyio.CapacityLimiter(1):
            with anyio.CancelScope(shield=not abandon):
                await self.sleep(self.random.uniform(0, self._delay))
            return work(*args)


class _InlineThreadPool(ThreadPool):
    """Runs the work on the event loop."""

    def __init__(self, clock: VirtualClock, most: int) -> None:
        super().__init__(most)
        self._clock = clock
        self._limiter = anyio.CapacityLimiter(most)

    async def run(self, work: Callable[..., T], *args: Any, abandon: bool = False) -> T:
        return await self._clock.run_in_thread(work, *args, abandon=abandon, limiter=self._limiter)

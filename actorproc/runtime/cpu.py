"""CPU cores of this process, how long a thread waits for one, and slots that bound how many threads compute at once."""

from __future__ import annotations

import asyncio
import os
import sys
from functools import lru_cache
from pathlib import Path

import anyio

SLOT_TIME = 0.25
"""Seconds: a caller that waits longer for a slot goes on without one, and a slot that is held longer ends by itself."""

_CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")  # microseconds of CPU time, and the period that they are granted for


class CpuSlot:
    """Permission to compute, until `end`. It ends by itself after `SLOT_TIME`: the holder may only be waiting."""

    def __init__(self, slots: anyio.CapacityLimiter) -> None:
        self._slots = slots
        self.timer: asyncio.TimerHandle | None = None
        """Ends the slot; None unless it is held."""

    def end(self) -> None:
        """Give the slot back. Call it on the event loop; a second call does nothing."""
        timer, self.timer = self.timer, None
        if timer is not None:
            timer.cancel()
            self._slots.release_on_behalf_of(self)


async def acquire_slot(slots: anyio.CapacityLimiter) -> CpuSlot | None:
    """Wait up to `SLOT_TIME` for a slot; None if none became free."""
    slot = CpuSlot(slots)
    try:
        slots.acquire_on_behalf_of_nowait(slot)
    except anyio.WouldBlock:
        with anyio.move_on_after(SLOT_TIME) as waiting:
            await slots.acquire_on_behalf_of(slot)
        if waiting.cancelled_caught:
            return None
    slot.timer = asyncio.get_running_loop().call_later(SLOT_TIME, slot.end)
    return slot


def cpu_wait(thread: int) -> float:
    """Seconds for which a thread (by its native id) could have run since its start, and got no CPU; 0 if that is not
    known, as on other systems than Linux.
    """
    try:
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def available_cores() -> int:
    """How many threads can compute at once. Respects CPU affinity, and a container's limit as far as it grants whole
    cores.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, cgroup_cores()))


@lru_cache
def cgroup_cores() -> int:
    """Whole cores that the container's limit grants (cgroup v2); sys.maxsize if there is no limit."""
    try:
        quota, period = _CGROUP_LIMIT.read_text().split()
        return sys.maxsize if quota == "max" else int(quota) // int(period)
    except (OSError, ValueError):
        return sys.maxsize

"""Threads that blocking work is handed over to from one queue, which costs a fraction of what anyio's way does.

anyio wakes a thread of its choice for each piece of work, behind a limiter and two checkpoints. With most requests to a folder
that takes several times as long as the request. From one queue, a thread that is awake takes whatever waits.
In return `anyio.from_thread` and context variables do not work here: these threads are for our own work, not for handlers.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

import anyio

T = TypeVar("T")

_Job = tuple["_Pool", "asyncio.Future[Any]", Callable[..., Any], tuple[Any, ...]]


class NoThread(Exception):
    """The system gives no further thread; it may later."""


class ThreadPool:
    """Up to `most` threads, each started when there is work for it. They end when this object is let go of, or closed.

    A thread cannot be stopped: if its caller gives up it keeps its place until the work has ended, so a disk that hangs
    never holds more than `most`. None holds up the end of the process: work under way is cut off then, as by a kill.

    Serves one event loop at a time; with another it begins afresh, as after a fork.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._pool: _Pool | None = None

    async def run(self, work: Callable[..., T], *args: Any, abandon: bool = False) -> T:
        """Run `work` in a thread, when one is free.

        Args:
            abandon: a caller that is cancelled need not wait until it has ended. Otherwise it does, once it was begun.

        Raises:
            NoThread: it was not begun.
        """
        loop, pool = asyncio.get_running_loop(), self._pool
        if pool is None or pool.loop is not loop:
            pool = self._pool = _Pool(loop, self._most)
        await pool.free.acquire()
        outcome = pool.begin(work, args)
        try:
            if abandon:
                return await outcome
            with anyio.CancelScope(shield=True):
                await outcome
            return outcome.result()
        finally:
            del outcome  # an error in it would hold this frame, which holds it: a circle, with threads and body

    def close(self) -> None:
        """Let the threads go; those at work end after it. Whoever comes later gets new ones."""
        self._pool = None


class _Pool:
    """The threads of one event loop.

    Attributes:
        free: to be acquired before `begin`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int) -> None:
        self.loop = loop
        self.free = anyio.Semaphore(most, fast_acquire=True)
        self._most = most
        self._started = 0
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._ended: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._told = False  # the loop will look at what has ended

    def __del__(self) -> None:
        self._queue.put(None)

    def begin(self, work: Callable[..., T], args: tuple[Any, ...]) -> asyncio.Future[T]:
        if self._started < self._most - self.free.value:
            try:
                threading.Thread(target=_serve, args=(self._queue,), name="actorproc", daemon=True).start()
            except RuntimeError as error:
                # Not left to those that are there: they may hang, and whoever waits for a thread must be able to give up.
                self.free.release()
                raise NoThread(str(error)) from error
            self._started += 1
        outcome: asyncio.Future[T] = self.loop.create_future()
        self._queue.put((self, outcome, work, args))
        return outcome

    def report(self, outcome: asyncio.Future[T], result: T | None, error: BaseException | None) -> None:
        """To be called in a thread. What ends at about the same time wakes the loop once: waking it is a system call."""
        self._ended.append((outcome, result, error))
        if not self._told:
            self._told = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self.loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._told = False  # before the look: what ends after it tells again
        while self._ended:
            outcome, result, error = self._ended.popleft()
            self.free.release()
            if outcome.cancelled():
                continue
            if error is None:
                outcome.set_result(result)
            else:
                outcome.set_exception(error)


def _serve(queue: SimpleQueue[_Job | None]) -> None:
    """What each thread does. It knows the pool only while there is work, so that the pool can be let go of."""
    while (job := queue.get()) is not None:
        pool, outcome, work, args = job
        result: Any = None
        error: BaseException | None = None
        try:
            if not outcome.cancelled():  # by a cancellation that no scope shields from
                result = work(*args)
        except StopIteration as raised:  # which no future takes
            error = RuntimeError(f"{work} raised StopIteration")
            error.__cause__ = raised
        except BaseException as raised:  # noqa: BLE001 (it is the caller's)
            error = raised
        pool.report(outcome, result, error)
        del job, pool, outcome, work, args, result, error  # which a thread that waits would keep alive
    queue.put(None)  # for the next

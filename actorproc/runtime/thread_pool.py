"""A thread pool with one queue, for many short pieces of blocking work.

anyio wakes a thread of its choice for each piece of work, after a limiter and two checkpoints. For most requests to a
folder that takes several times as long as the request itself. With one queue, a thread that is awake takes the next
piece. The standard executor takes 1.5 times the CPU for a small read, and the process waits for its threads at exit.
`anyio.from_thread` and context variables do not work here, so these threads run no handlers.
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
    """The operating system refuses another thread. Trying again may help."""


class ThreadPool:
    """Up to `most` threads, each started when there is work for it. They end when the pool is closed or collected.

    A thread cannot be stopped. If its caller gives up, the thread stays counted until its work has ended, so a disk
    that hangs never blocks more than `most` threads. The threads do not delay the end of the process, which cuts off
    their work.

    The pool serves one event loop at a time. In another loop, or after a fork, it starts new threads.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._pool: _Pool | None = None

    async def run(self, work: Callable[..., T], *args: Any, abandon: bool = False) -> T:
        """Run `work` in a thread, once one is free.

        Args:
            abandon: a cancelled caller does not wait for the work to end. Otherwise it does.

        Raises:
            NoThread: the work was not begun.
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
            del outcome  # its error refers to this frame: without this, a reference cycle

    def close(self) -> None:
        """End the threads, once they have finished their work. A later call starts new ones."""
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
        self._scheduled = False  # `_settle` is on its way

    def __del__(self) -> None:
        self._queue.put(None)

    def begin(self, work: Callable[..., T], args: tuple[Any, ...]) -> asyncio.Future[T]:
        if self._started < self._most - self.free.value:
            try:
                threading.Thread(target=_serve, args=(self._queue,), name="actorproc", daemon=True).start()
            except RuntimeError as error:
                # Not left to the threads that exist: they may hang.
                self.free.release()
                raise NoThread(str(error)) from error
            self._started += 1
        outcome: asyncio.Future[T] = self.loop.create_future()
        self._queue.put((self, outcome, work, args))
        return outcome

    def report(self, outcome: asyncio.Future[T], result: T | None, error: BaseException | None) -> None:
        """Called in a thread. Results of about the same time wake the loop once, as waking it is a system call."""
        self._ended.append((outcome, result, error))
        if not self._scheduled:
            self._scheduled = True
            with suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._scheduled = False  # first, so that later results schedule it again
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
    """The loop of a thread. It refers to the pool only while it works, so that the pool can be collected."""
    while (job := queue.get()) is not None:
        pool, outcome, work, args = job
        result: Any = None
        error: BaseException | None = None
        try:
            if not outcome.cancelled():  # directly, and not through a scope
                result = work(*args)
        except StopIteration as raised:  # a future cannot hold it
            error = RuntimeError(f"{work} raised StopIteration")
            error.__cause__ = raised
        except BaseException as raised:  # noqa: BLE001  # for the caller
            error = raised
        pool.report(outcome, result, error)
        del job, pool, outcome, work, args, result, error  # a waiting thread would keep them alive
    queue.put(None)  # for the next thread

"""SIGTERM and SIGINT for one run: the first drains, a second one aborts."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import anyio

from actorproc.errors import Aborted, UsageError
from actorproc.runtime.clock import Clock
from actorproc.runtime.logger import get_logger

log = get_logger(__name__)

SAME_STOP = 0.2
"""Seconds within which a second signal is the same stop: some senders signal the process and its group."""


class Signals:
    """What was heard. In the main thread only.

    Args:
        aborting: called at the second signal, from the signal handler itself: an event loop that hangs hears nothing.
        draining: likewise, at the first one.
        who: drains, as the first part of the event's name.
        log: bound to what it is.

    Raises:
        UsageError: this is another thread.
    """

    def __init__(
        self,
        clock: Clock,
        aborting: Callable[[], None],
        who: str = "processor",
        *,
        draining: Callable[[], None] = lambda: None,
        log: Any = log,
    ) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise UsageError(
                "signals=True: only Python's main thread hears signals; leave it out in another one, and call stop()"
            )
        self._clock = clock
        self._drains = f"{who}.stopping"
        self._aborting = aborting
        self._draining = draining
        self._log = log
        self._life = anyio.CancelScope()
        self._first = anyio.Event()
        self._started = False
        self._abort: str | None = None

    @contextmanager
    def obeyed(self) -> Iterator[None]:
        """A signal before `started`, or a second one, ends the block where it is.

        Handlers of Python's own: unlike the event loop's they are also called while a handler blocks the loop.

        Raises:
            Aborted: a second signal came.
        """
        loop = asyncio.get_running_loop()
        asked: float | None = None

        def heard(number: int) -> None:
            nonlocal asked
            now = self._clock.monotonic()
            if asked is None:
                asked = now
                self._draining()
                loop.call_soon_threadsafe(self._drain, signal.Signals(number).name)
            elif now - asked >= SAME_STOP:
                self._aborting()
                loop.call_soon_threadsafe(self._end, signal.Signals(number).name)

        with _hearing(heard), self._life:
            yield
        if self._abort is not None:
            raise Aborted(f"{self._abort} came twice: aborted; what was not committed is processed again")

    def started(self) -> None:
        """There is something to drain now."""
        self._started = True

    async def wait(self) -> None:
        """Until the first signal."""
        await self._first.wait()

    def _drain(self, name: str) -> None:
        self._first.set()  # before the log, which may fail
        if not self._started:
            self._life.cancel()
        self._log.info(self._drains, signal=name)

    def _end(self, name: str) -> None:
        self._abort = name
        self._life.cancel()


_listeners: list[Callable[[int], None]] = []  # of all runs in this process that obey signals
_arranged = ExitStack()  # for them


@contextmanager
def _hearing(heard: Callable[[int], None]) -> Iterator[None]:
    """Signals are passed to `heard`, and to those of other runs; what was there before holds again when the last has ended."""
    if not _listeners or signal.getsignal(signal.SIGTERM) is not _tell_all:
        _arranged.enter_context(_waking(asyncio.get_running_loop()))
        for number in (signal.SIGTERM, signal.SIGINT):
            _arranged.callback(signal.signal, number, signal.signal(number, _tell_all))
    _listeners.append(heard)
    try:
        yield
    finally:
        _listeners.remove(heard)
        if not _listeners:
            _arranged.close()


def _tell_all(number: int, _: object) -> None:
    for heard in _listeners:
        with suppress(RuntimeError):  # the loop of that run was closed over its head
            heard(number)


@contextmanager
def _waking(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Signals wake the loop: one that another thread takes, or that comes just before the loop begins to wait, would be heard
    only when something else happens. Who has arranged for that already (handlers of the loop's own do) is left alone.
    """
    ear, mouth = socket.socketpair()
    with ear, mouth:
        for end in (ear, mouth):
            end.setblocking(False)
        loop.add_reader(ear, ear.recv, 4096)
        theirs = signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
        if theirs != -1:
            signal.set_wakeup_fd(theirs)
        try:
            yield
        finally:
            latest = signal.set_wakeup_fd(-1)
            if latest != mouth.fileno():
                signal.set_wakeup_fd(latest)
            loop.remove_reader(ear)

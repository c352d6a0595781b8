"""Handling of SIGTERM and SIGINT: the first signal drains a run, a second one aborts it."""

from __future__ import annotations

import asyncio
import os
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

logger = get_logger(__name__)

SAME_SIGNAL_TIME = 0.2
"""Seconds within which a second signal counts as the first one: some senders signal the process and its group."""


class Signals:
    """The signals of one run. In the main thread only.

    Args:
        aborting: called at the second signal, from the signal handler itself, so that it works while the event loop
            hangs.
        draining: called at the first signal, from the signal handler itself.
        who: first part of the name of the log event.

    Raises:
        UsageError: this is not the main thread.
    """

    def __init__(
        self,
        clock: Clock,
        aborting: Callable[[], None],
        who: str = "processor",
        *,
        draining: Callable[[], None] = lambda: None,
        log: Any = logger,
    ) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise UsageError("signals=True works in Python's main thread only: leave it out here, and call stop()")
        self._clock = clock
        self._drains = f"{who}.stopping"
        self._aborting = aborting
        self._draining = draining
        self._logger = log
        self._life = anyio.CancelScope()
        self._first = anyio.Event()
        self._started = False
        self._abort: str | None = None
        self.first: str | None = None
        """Name of the first signal."""

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle signals in the block. A signal before `started`, or a second signal, cancels the block.

        These are Python's signal handlers: unlike the event loop's they also run while user code blocks the loop.

        Raises:
            Aborted: a second signal came.
        """
        loop = asyncio.get_running_loop()
        first: float | None = None

        def on_signal(number: int) -> None:
            nonlocal first
            now = self._clock.monotonic()
            if first is None:
                first = now
                self._draining()
                loop.call_soon_threadsafe(self._drain, signal.Signals(number).name)
            elif now - first >= SAME_SIGNAL_TIME:
                self._aborting()
                loop.call_soon_threadsafe(self._end, signal.Signals(number).name)

        with _listening(on_signal), self._life:
            yield
        if self._abort is not None:
            raise Aborted(f"{self._abort} came twice: aborted; what was not committed is processed again")

    def started(self) -> None:
        """From now on the first signal drains and does not cancel."""
        self._started = True

    async def wait(self) -> None:
        """Wait for the first signal."""
        await self._first.wait()

    def _drain(self, name: str) -> None:
        self.first = name
        self._first.set()  # first, as logging may fail
        if not self._started:
            self._life.cancel()
        self._logger.info(self._drains, signal=name)

    def _end(self, name: str) -> None:
        self._abort = name
        self._life.cancel()


_listeners: list[Callable[[int], None]] = []  # one for each run in this process that handles signals
_installed = ExitStack()  # signal handlers and wake-up, for all of them
_earlier: dict[int, Any] = {}  # the handlers before the first of ours


@contextmanager
def _listening(listener: Callable[[int], None]) -> Iterator[None]:
    """Pass signals to `listener` and to those of other runs. After the last one, the earlier handlers are restored."""
    first = not _listeners
    _listeners.append(listener)  # before the handlers are there: a signal that comes at once has a listener
    if first or signal.getsignal(signal.SIGTERM) is not _notify_all:
        _installed.enter_context(_wakeup(asyncio.get_running_loop()))
        for number in (signal.SIGTERM, signal.SIGINT):
            earlier = signal.signal(number, _notify_all)
            _earlier.setdefault(number, earlier)
            _installed.callback(signal.signal, number, earlier)
    try:
        yield
    finally:
        _listeners.remove(listener)
        if not _listeners:
            _installed.close()
            _earlier.clear()


def _notify_all(number: int, _: object) -> None:
    for listener in _listeners:
        with suppress(RuntimeError):  # the event loop of that run is closed
            listener(number)


def _restore_in_child() -> None:
    """A forked process, for example of `multiprocessing`, handles signals as if no run did: SIGTERM ends it again."""
    if not _listeners:
        return
    signal.set_wakeup_fd(-1)  # it would wake the parent's event loop
    for number, earlier in _earlier.items():
        if signal.getsignal(number) is _notify_all:
            signal.signal(number, earlier)
    _listeners.clear()
    _earlier.clear()


os.register_at_fork(after_in_child=_restore_in_child)


@contextmanager
def _wakeup(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Let signals wake the event loop. A signal that another thread receives, or that arrives just before the loop
    begins to wait, would otherwise be handled only when something else happens. An existing wake-up descriptor is left
    alone.
    """
    receiver, sender = socket.socketpair()
    with receiver, sender:
        for end in (receiver, sender):
            end.setblocking(False)
        loop.add_reader(receiver, receiver.recv, 4096)
        existing = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        if existing != -1:
            signal.set_wakeup_fd(existing)
        try:
            yield
        finally:
            latest = signal.set_wakeup_fd(-1)
            if latest != sender.fileno():
                signal.set_wakeup_fd(latest)
            loop.remove_reader(receiver)

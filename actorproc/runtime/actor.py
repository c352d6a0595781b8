"""Actors with a bounded mailbox, and their restarts with back-off."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

import anyio
import anyio.lowlevel

from actorproc.runtime.backoff import Backoff
from actorproc.runtime.clock import Clock
from actorproc.runtime.tasks import first_cause
from actorproc.runtime.user_code import user_code

Message = TypeVar("Message")


class Restartable:
    """Base class of actors, which `keep_running` runs and restarts."""

    def __init__(self) -> None:
        self.life: anyio.CancelScope | None = None
        self.aborted: Exception | None = None

    async def run(self) -> None:
        """Override: the actor runs until this returns, raises or is cancelled."""
        raise NotImplementedError

    def abort(self, error: Exception) -> None:
        """Cancel the actor; it counts as failed with `error`."""
        self.aborted = error
        if self.life is not None:
            self.life.cancel()


class Actor(Generic[Message]):
    """Base class: a loop over the messages of a mailbox. Only the actor's own tasks touch its state.

    Args:
        mailbox: messages that it holds at most. When it is full, `tell` gives up.
    """

    def __init__(self, mailbox: int) -> None:
        super().__init__()
        self._in, self._out = anyio.create_memory_object_stream[Message](mailbox)

    def tell(self, message: Message) -> bool:
        """Send without waiting. Returns False if the mailbox is full or the actor has ended."""
        try:
            self._in.send_nowait(message)
        except (anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return False
        return True

    async def receive(self, within: float | None = None) -> Message | None:
        """The next message; None if none arrives `within` seconds."""
        await anyio.lowlevel.checkpoint()  # a full mailbox must not starve the other actors
        with suppress(anyio.WouldBlock):
            return self._out.receive_nowait()
        if within is None:
            return await self._out.receive()
        with anyio.move_on_after(max(0.0, within)):
            return await self._out.receive()
        return None

    def close(self) -> None:
        """Refuse further messages and drop those in the mailbox."""
        self._in.close()
        self._out.close()


class Restarts:
    """Counts the failures of one supervised actor and computes the delay before its restart.

    The delay is that of `backoff` for the consecutive failures.
    """

    def __init__(self, backoff: Backoff, clock: Clock) -> None:
        self._backoff = backoff
        self._clock = clock
        self.in_a_row = 0

    def failed(self, ran: float) -> float:
        """Count a failure after a run of `ran` seconds. Returns the seconds to wait before the restart."""
        self.in_a_row = 1 if ran > self._backoff.most else self.in_a_row + 1  # a long run: not the same failure
        return self._backoff.delay(self.in_a_row, self._clock.random)


async def keep_running(
    make: Callable[[], Restartable],
    restarts: Restarts,
    clock: Clock,
    *,
    failed: Callable[[Exception, float], None],
) -> None:
    """Run an actor and restart it after each failure, until one returns.

    Args:
        make: creates a fresh actor without any state of the failed one.
        failed: called with each error and the seconds until the restart.
    """
    while True:
        actor = make()
        born = clock.monotonic()
        try:
            with user_code("the actor"), anyio.CancelScope() as actor.life:
                await actor.run()
            if actor.aborted is None:
                return
            cause = actor.aborted
        except Exception as error:  # noqa: BLE001  # any failure leads to a restart
            cause = actor.aborted or first_cause(error)
        delay = restarts.failed(clock.monotonic() - born)
        failed(cause, delay)
        await clock.sleep(delay)

"""A small actor base: a bounded mailbox, a run loop of one's own, and restarts with back-off."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import anyio
import anyio.lowlevel

from actorproc.runtime.backoff import Backoff
from actorproc.runtime.clock import Clock
from actorproc.runtime.tasks import first_cause
from actorproc.runtime.user_code import user_code

Message = TypeVar("Message")


class Actor(Generic[Message]):
    """A loop over messages. Tasks of its own alone touch its state; others send messages, or ask it to end.

    The mailbox holds at most `mailbox` messages: `send` waits for room, `tell` gives up at once.
    """

    def __init__(self, mailbox: int) -> None:
        self._in, self._out = anyio.create_memory_object_stream[Message](mailbox)
        self.life: anyio.CancelScope | None = None
        self.aborted: Exception | None = None

    async def send(self, message: Message) -> None:
        """Wait for room in the mailbox. Raises anyio.BrokenResourceError when the actor has ended."""
        await self._in.send(message)

    def tell(self, message: Message) -> bool:
        """Send without waiting; false if the mailbox is full or the actor has ended."""
        try:
            self._in.send_nowait(message)
        except (anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return False
        return True

    async def receive(self, within: float | None = None) -> Message | None:
        """The next message, at once if one waits; None if none comes `within` seconds."""
        await anyio.lowlevel.checkpoint()  # a full mailbox must not starve the other actors
        with suppress(anyio.WouldBlock):
            return self._out.receive_nowait()
        if within is None:
            return await self._out.receive()
        with anyio.move_on_after(max(0.0, within)):
            return await self._out.receive()
        return None

    async def run(self) -> None:
        """The actor's life. Ends by returning, raising, or being cancelled; `close` follows whatever happens."""
        raise NotImplementedError

    def abort(self, error: Exception) -> None:
        """Cancel it from outside; it counts as failed with `error`."""
        self.aborted = error
        if self.life is not None:
            self.life.cancel()

    def close(self) -> None:
        """Refuse further messages and drop those that wait."""
        self._in.close()
        self._out.close()


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Wait `backoff` after each failure in a row; after `intensity` failures within `period` seconds its longest at once."""

    backoff: Backoff = field(default_factory=lambda: Backoff(0.5, 60.0))
    intensity: int = 10
    period: float = 600.0


class Restarts:
    """The failures of one supervised actor, and how long to wait after the next one."""

    def __init__(self, policy: RestartPolicy, clock: Clock) -> None:
        self._policy = policy
        self._clock = clock
        self._failures: deque[float] = deque(maxlen=policy.intensity)
        self.in_a_row = 0

    def failed(self, ran: float) -> float:
        """Note a failure after `ran` seconds of life; how many seconds to wait now."""
        now, most = self._clock.monotonic(), self._policy.backoff.most
        self.in_a_row = 1 if ran > most else self.in_a_row + 1  # it lived longer than any pause: a new trouble
        self._failures.append(now)
        often = len(self._failures) == self._policy.intensity and now - self._failures[0] < self._policy.period
        return most if often else self._policy.backoff.delay(self.in_a_row, self._clock.random)


async def keep_running(
    make: Callable[[], Actor[Message]],
    restarts: Restarts,
    clock: Clock,
    *,
    failed: Callable[[Exception, float], None],
) -> None:
    """Run an actor; when it fails run a new one, until one returns.

    Args:
        make: a fresh actor, with none of the failed one's state.
        failed: told each error and the seconds until the next start.
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
        except Exception as error:  # noqa: BLE001  # whatever it is, there will be a new one
            cause = actor.aborted or first_cause(error)
        finally:
            actor.close()
        delay = restarts.failed(clock.monotonic() - born)
        failed(cause, delay)
        await clock.sleep(delay)

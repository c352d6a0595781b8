"""Events of one partition from one connection: turns the client's callbacks into chunks that a reader awaits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import anyio
from azure.eventhub import EventData
from azure.eventhub.aio import EventHubConsumerClient

from actorproc.connectors.eventhubs.decoding import odd_events_handed_over

_GATHER = 0.25  # seconds in which more events are waited for

_FEWEST = 300  # events that the client hands over at once, at most, if its window is smaller

Place = int | datetime
"""Sequence number of the first event to read, or its time at the earliest."""


class Receiver:
    """Receives events until the connection fails.

    The client gets no retry of its own: it would ask again for events that it has in its buffer and that its callback
    has not seen, and give them twice. Its own pause after an error, half a minute, is not waited for either.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        """So many events that wait here hold the client back."""
        self._events: list[EventData] = []
        self._failure: Exception | None = None
        self._changed = asyncio.Event()

    async def next(self, within: float, least: int = 1) -> list[EventData]:
        """The next events, in order; none if none come for so many seconds.

        Raises the error that ended the connection, after all events before it.

        Args:
            least: so many are waited for, a moment from the first one on: the client hands over a few hundred at once.
        """
        await self._arrived(1, within)
        if 0 < len(self._events) < least:
            await self._arrived(least, _GATHER)
        events, self._events = self._events, []
        if not events and self._failure is not None:
            raise self._failure
        self._wake()
        return events

    async def _arrived(self, count: int, within: float) -> None:
        with anyio.move_on_after(within):
            while len(self._events) < count and self._failure is None:
                await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def run(self, client: EventHubConsumerClient, place: Place, **how: Any) -> None:
        """Receive until it fails or this task is cancelled. Closing the connection takes two seconds.

        Args:
            how: arguments of `receive_batch`.
        """
        try:
            with odd_events_handed_over():
                async with client:
                    await client.receive_batch(
                        self._put, on_error=self._fail, starting_position=place, starting_position_inclusive=True, **how
                    )
        except Exception as error:  # noqa: BLE001  # raised by `next`
            await self._fail(None, error)

    async def _put(self, context: Any, events: list[EventData]) -> None:
        self._events += events
        self._wake()
        while len(self._events) >= self.most:
            await self._changed.wait()

    async def _fail(self, context: Any, error: Exception) -> None:
        self._failure = error
        self._wake()


@asynccontextmanager
async def receiving(
    client: EventHubConsumerClient,
    partition: str,
    place: Place,
    *,
    prefetch: int,
    epoch: int | None,
    left: Callable[[asyncio.Task[None]], object],
) -> AsyncIterator[Receiver]:
    """Receive the events of a partition from `place` on.

    Args:
        epoch: readers of a lower one, and those without, are cut off by the service; None: up to five may read.
        left: is given the task that closes the connection, when the block ends.
    """
    receiver = Receiver(prefetch)
    how = {"partition_id": partition, "prefetch": prefetch, "max_batch_size": max(prefetch, _FEWEST)}
    task = asyncio.create_task(receiver.run(client, place, owner_level=epoch, **how))
    try:
        yield receiver
    finally:
        task.cancel()
        left(task)

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

_FEWEST = 300  # events that the client hands over at once, at most, if its window is smaller

Place = int | datetime
"""Sequence number of the first event to read, or its time at the earliest."""


class Receiver:
    """Receives events until the connection fails.

    The client gets no retry of its own: it would ask again for events that it has in its buffer and that its callback
    has not seen, and give them twice. Its own pause after an error, half a minute, is not waited for either.
    """

    def __init__(self) -> None:
        self._received: asyncio.Queue[list[EventData] | Exception] = asyncio.Queue(
            1
        )  # a full queue holds the client back

    async def next(self, within: float) -> list[EventData]:
        """The next events, in order; none if none come for so many seconds.

        Raises the error that ended the connection, after all events before it.
        """
        with anyio.move_on_after(within):
            received = await self._received.get()
            if isinstance(received, Exception):
                raise received
            return received
        return []

    async def run(self, client: EventHubConsumerClient, place: Place, **how: Any) -> None:
        """Receive until it fails or this task is cancelled. Closing the connection takes two seconds.

        Args:
            how: arguments of `receive_batch`.
        """
        try:
            async with client:
                await client.receive_batch(
                    self._put, on_error=self._fail, starting_position=place, starting_position_inclusive=True, **how
                )
        except Exception as error:  # noqa: BLE001  # raised by `next`
            await self._received.put(error)

    async def _put(self, context: Any, events: list[EventData]) -> None:
        await self._received.put(events)

    async def _fail(self, context: Any, error: Exception) -> None:
        await self._received.put(error)


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
    receiver = Receiver()
    how = {"partition_id": partition, "prefetch": prefetch, "max_batch_size": max(prefetch, _FEWEST)}
    task = asyncio.create_task(receiver.run(client, place, owner_level=epoch, **how))
    try:
        yield receiver
    finally:
        task.cancel()
        left(task)

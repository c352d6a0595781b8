"""Checks that a source of queues and its broker keep the rules of docs/queues.md. It takes messages from queues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple, NoReturn

import anyio

from actorproc.errors import SourceError
from actorproc.sources.queue_protocol import Consumer, QueueSource
from actorproc.testing.source_reader import InvalidSource

WINDOW = 3
"""Messages that a consumer of the check may have unacknowledged."""

_ALONE = 3.0  # seconds for which a second consumer is watched

NEEDED = WINDOW + 1
"""Messages that a queue must have to be checked."""


class _Message(NamedTuple):
    identity: str | None
    key: bytes | None
    value: bytes | None


async def check_queue(source: QueueSource, name: str, partition: str, patience: float) -> int:
    """Check one queue. Returns how many messages were acknowledged: fewer than `NEEDED` if it has too few.

    Args:
        name: of the source, in messages.
        patience: seconds to wait for a consumer, a message, or word that there is none.

    Raises:
        InvalidSource: source or broker break a rule.
    """
    return await _Check(source, name, partition, patience).run()


class _Check:
    def __init__(self, source: QueueSource, name: str, partition: str, patience: float) -> None:
        self._source, self._name, self._partition, self._patience = source, name, partition, patience

    async def run(self) -> int:
        async with self._consumer() as consumer:
            first = await self._take(consumer)
            if len(first) < WINDOW:
                return 0
            if len({message.identity for message in first}) < len(first):
                self._fail(f"two messages have the same identity: {[message.identity for message in first]!r:.300}")
            if more := first[WINDOW:] or await self._receive(consumer):
                self._fail(f"{WINDOW} messages are unacknowledged, as many as may be, and {more[0]!r:.200} came")
            await self._check_alone()
            await self._acknowledge(consumer, 1)
            second = await self._take(consumer, 1)
            if not second:
                return 1
        async with self._consumer() as consumer:
            again = await self._take(consumer)
            if (expected := [*first, *second][1:]) != again:
                self._fail(
                    f"a consumer has gone, and the next one got {again!r:.300}: all that was not acknowledged comes "
                    f"back, as it was and in its old place: {expected!r:.300}"
                )
            await self._acknowledge(consumer, len(again))
        async with self._consumer() as consumer:
            if known := {*first, *again} & {*await self._take(consumer)}:
                self._fail(f"{next(iter(known))!r:.200} was acknowledged, and came again")
        return 1 + len(again)

    async def _check_alone(self) -> None:
        """A second consumer must wait as long as the first one is there."""
        other = asyncio.create_task(self._second())
        await asyncio.wait({other}, timeout=min(self._patience, _ALONE))
        other.cancel()
        with suppress(asyncio.CancelledError):
            if got := await other:
                self._fail(f"two consumers at once: the second one got {got[0]!r:.200}")

    async def _second(self) -> list[_Message]:
        async with self._consumer() as consumer:
            return await self._receive(consumer)

    async def _take(self, consumer: Consumer, most: int = WINDOW) -> list[_Message]:
        """The next messages, until there are so many, or no more."""
        found = list[_Message]()
        while len(found) < most and (some := await self._receive(consumer)):
            found += some
        return found

    async def _receive(self, consumer: Consumer) -> list[_Message]:
        with anyio.move_on_after(self._patience) as cut:
            deliveries = await consumer.receive()
        if cut.cancelled_caught:
            self._fail(
                f"receive() gave nothing for {self._patience:g} s (`patience`): after a few seconds without messages "
                "it must return none"
            )
        batch = deliveries.batch
        found = [_Message(*one) for one in zip(deliveries.identities, batch.keys, batch.values, strict=True)]
        if any(message.identity is None for message in found):
            self._fail(f"a message has no identity, and the check needs messages that have one: {found!r:.300}")
        return found

    async def _acknowledge(self, consumer: Consumer, count: int) -> None:
        with anyio.move_on_after(self._patience) as cut:
            await consumer.acknowledge(count)
        if cut.cancelled_caught:
            self._fail(f"acknowledge({count}) has not ended within {self._patience:g} s (`patience`)")

    @asynccontextmanager
    async def _consumer(self) -> AsyncIterator[Consumer]:
        try:
            async with self._source.consume(self._partition, WINDOW) as consumer:
                yield consumer
        except SourceError as error:
            self._fail(f"the consumer failed: {error}", error)

    def _fail(self, what: str, cause: BaseException | None = None) -> NoReturn:
        raise InvalidSource(f"{self._name}, queue {self._partition!r}: {what}") from cause

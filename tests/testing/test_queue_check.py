"""`check_source` finds each rule of queues that a source or its broker breaks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from actorproc.errors import UsageError
from actorproc.sources.queue_protocol import Deliveries
from actorproc.testing import InvalidSource, check_source
from tests.testing.memory_queue import MemoryConsumer, MemoryQueue, MemoryQueues


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.testing.memory_queue.QUIET", 0.02)


def filled(queues: MemoryQueues, messages: int = 8) -> MemoryQueues:
    queues.queues["0"].send([b"%d" % n for n in range(messages)])
    return queues


async def test_a_queue_that_keeps_the_rules_loses_its_first_messages() -> None:
    source = filled(MemoryQueues(2))
    checked = await check_source(source)
    assert checked.records == {"0": 4, "1": 0}
    assert checked.not_checked == ["queue 1, which has fewer than 4 messages"]
    assert source.queues["0"].removed == [0, 1, 2, 3]


async def test_add_fills_a_queue() -> None:
    source = MemoryQueues(1)

    async def add() -> None:
        source.queues["0"].send([b"x"])

    assert (await check_source(lambda: source, add=add)).records == {"0": 4}
    with pytest.raises(UsageError, match="has fewer than 4 messages in each queue"):
        await check_source(MemoryQueues(1))


class Wrong(MemoryQueues):
    """Its consumers are of another class."""

    consumer: type[MemoryConsumer] = MemoryConsumer

    @asynccontextmanager
    async def consume(self, partition: str, unacknowledged: int) -> Any:
        queue = self.queues[partition]
        consumer = self.consumer(queue, partition, unacknowledged)
        try:
            yield consumer
        finally:
            if queue.consumer is consumer:
                self.drop(queue)

    def drop(self, queue: MemoryQueue) -> None:
        queue.drop_consumer()


class Unbounded(Wrong):
    class consumer(MemoryConsumer):  # noqa: N801
        def __init__(self, queue: MemoryQueue, partition: str, unacknowledged: int) -> None:
            super().__init__(queue, partition, unacknowledged + 1)


class Shared(Wrong):
    class consumer(MemoryConsumer):  # noqa: N801
        async def receive(self) -> Deliveries:
            self._queue.consumer = self
            return await super().receive()


class LastPlace(Wrong):
    def drop(self, queue: MemoryQueue) -> None:
        assert queue.consumer is not None
        held, queue.consumer.held = queue.consumer.held, []
        super().drop(queue)
        queue.ready += held


class Discards(Wrong):
    def drop(self, queue: MemoryQueue) -> None:
        assert queue.consumer is not None
        queue.consumer.held = []
        super().drop(queue)


class Redelivers(Wrong):
    def drop(self, queue: MemoryQueue) -> None:
        super().drop(queue)
        queue.ready = [*queue.removed, *queue.ready]


class Identities(Wrong):
    """Names of its own for the messages."""

    deliveries = 0

    class consumer(MemoryConsumer):  # noqa: N801
        async def receive(self) -> Deliveries:
            found = await super().receive()
            Identities.deliveries += 1
            return Deliveries(found.batch, [self.name(one) for one in found.identities])

        def name(self, identity: str | None) -> str:
            return f"{identity} of delivery {Identities.deliveries}"


class SameIdentities(Wrong):
    class consumer(Identities.consumer):  # noqa: N801
        def name(self, identity: str | None) -> str:
            return "same"


class NoIdentities(Wrong):
    class consumer(Identities.consumer):  # noqa: N801
        def name(self, identity: str | None) -> str:
            return ""


class NotNamed(Wrong):
    """Not refused either."""

    class consumer(MemoryConsumer):  # noqa: N801
        async def receive(self) -> Deliveries:
            found = await super().receive()
            return Deliveries(found.batch, [None] * len(found.identities))


class Refused(Wrong):
    class consumer(MemoryConsumer):  # noqa: N801
        async def receive(self) -> Deliveries:
            found = await super().receive()
            odd = dict.fromkeys(range(len(found.batch)), "it has no id")
            return Deliveries(found.batch.refusing(odd), [None] * len(found.identities))


class Silent(Wrong):
    class consumer(MemoryConsumer):  # noqa: N801
        async def receive(self) -> Deliveries:
            while not (found := await super().receive()).identities:
                pass
            return found


WRONG: Sequence[tuple[type[Wrong], str]] = [
    (Unbounded, "3 messages are unacknowledged, as many as may be"),
    (Shared, "two consumers at once"),
    (LastPlace, "comes back, as it was and in its old place"),
    (Discards, "comes back, as it was and in its old place"),
    (Redelivers, "in its old place"),
    (Identities, "comes back, as it was"),
    (SameIdentities, "two messages have the same identity"),
    (NoIdentities, "expected an identity for each of 3 messages"),
    (NotNamed, "a message without an identity must be refused"),
    (Refused, "a message has no identity, and the check needs messages that have one"),
    (Silent, "after a few seconds without messages it must return none"),
]


@pytest.mark.parametrize(("kind", "message"), WRONG, ids=lambda value: getattr(value, "__name__", ""))
async def test_a_broken_rule_of_queues_is_found(kind: type[Wrong], message: str) -> None:
    with pytest.raises(InvalidSource, match=message):
        await check_source(filled(kind(1)), patience=0.3)

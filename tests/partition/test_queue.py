"""A queue: each message has one result, despite lost consumers, owners and acknowledgements."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import anyio
import pyarrow.parquet as pq
import pytest

from actorproc.errors import Fenced, HandlerError, SourceError
from actorproc.handler.base import PartitionHandler
from actorproc.partition import queue_reader
from actorproc.partition.actor import PartitionActor
from actorproc.partition.queue_reader import fingerprint
from actorproc.records import Batch
from actorproc.runtime.tasks import first_cause
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import current_loop, run
from actorproc.sources.queue_protocol import Consumer, Deliveries
from tests.partition.world import Numbers, World
from tests.testing.memory_queue import MemoryQueue, MemoryQueues


class QueueWorld(World):
    """A queue whose message n is the number n."""

    def __init__(self, handler: type[PartitionHandler] = Numbers, **settings: Any) -> None:
        settings = {"max_unacknowledged": 8, "commit_interval": 1, **settings}
        super().__init__(handler, clock=VirtualClock, **settings)
        self.queues = MemoryQueues(1)
        self.source = self.queues  # type: ignore[assignment]

    @property
    def queue(self) -> MemoryQueue:
        return self.queues.queues["0"]

    def feed(self, count: int) -> None:
        self.queue.send([str(n).encode() for n in range(self.fed, self.fed + count)])
        self.fed += count

    async def work(self, epoch: int) -> PartitionActor:
        """Run an owner until all messages are acknowledged, and drain it."""
        async with self.running(epoch) as actor:
            await until(lambda: len(self.queue.removed) == self.fed)
            actor.drain()
            await until(lambda: actor.statistics.state == "drained")
        return actor

    async def work_until(self, epoch: int, end: Callable[[PartitionActor], Awaitable[object]]) -> None:
        """Run an owner that is killed, or fails, once `end` is done."""
        try:
            async with self.running(epoch) as actor:
                await end(actor)
        except Exception as error:
            if not isinstance(first_cause(error), Fenced | SourceError):
                raise

    async def check(self) -> None:
        """Each even number has one row, each that ends in 5 a dead letter; a sequence is the place in the queue."""
        assert self.queue.removed == list(range(self.fed))
        assert await self.numbered_rows() == [(n, n) for n in range(0, self.fed, 2)]
        assert await self.letters() == list(range(5, self.fed, 10))

    async def numbered_rows(self) -> list[tuple[int, int]]:
        found = []
        for entry in (await self.store.list(self.layout.output)).entries:
            stored = await self.store.get(entry.key)
            assert stored is not None
            table = pq.read_table(io.BytesIO(stored.body))
            found += list(zip(table["_sequence"].to_pylist(), table["n"].to_pylist(), strict=True))
        return found


async def until(what: Callable[[], bool]) -> None:
    with anyio.fail_after(600):
        while not what():
            await anyio.sleep(0.01)


def test_messages_are_acknowledged_in_order_after_their_commit() -> None:
    async def main() -> None:
        world = QueueWorld(max_batch_records=3)
        world.feed(100)
        await world.work(1)
        await world.check()

    run(main(), seed=0)


def test_owner_after_owner_goes_on_with_the_next_message() -> None:
    async def main() -> None:
        world = QueueWorld()
        for epoch in range(1, 4):
            world.feed(10)
            await world.work(epoch)
        await world.check()

    run(main(), seed=0)


@pytest.mark.parametrize("seed", range(10))
def test_a_dropped_consumer_repeats_nothing(seed: int) -> None:
    """The broker takes the queue back at any moment, also during a commit: its acknowledgements are lost."""

    async def main() -> None:
        world, pick = QueueWorld(commit_rows=2, max_batch_records=3), Random(seed)
        world.feed(120)

        async def drop(actor: PartitionActor) -> None:
            await anyio.sleep(pick.uniform(0, 1))
            world.queue.drop_consumer()
            await anyio.sleep(pick.uniform(0, 1))

        for epoch in range(1, 40):
            await world.work_until(epoch, drop)
        await world.work(40)
        await world.check()

    run(main(), seed=seed)


def test_an_owner_with_a_lost_consumer_that_commits_is_not_repeated() -> None:
    """Its messages went back to the queue before its commit."""

    async def main() -> None:
        world = QueueWorld(max_unacknowledged=20)
        world.feed(6)

        async def drop(actor: PartitionActor) -> None:
            await until(lambda: actor.statistics.cursor.sequence == 5)
            world.queue.drop_consumer()
            await until(lambda: actor.statistics.committed.sequence == 5)

        await world.work_until(1, drop)
        assert world.queue.ready == list(range(6))
        await world.work(2)
        await world.check()

    run(main(), seed=0)


def test_an_owner_that_commits_after_the_next_one_has_opened_is_followed() -> None:
    """The next owner's consumer waits meanwhile. At its first message it looks, and must open anew."""

    async def main() -> None:
        world = QueueWorld(max_unacknowledged=20, commit_interval=5)
        world.feed(6)

        async def commit_and_lose_the_consumer(actor: PartitionActor) -> None:
            await until(lambda: actor.statistics.committed.sequence == 5)
            world.feed(6)
            world.queue.drop_consumer()
            await anyio.sleep(60)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.work_until, 1, commit_and_lose_the_consumer)
            await anyio.sleep(1)
            with pytest.raises(ExceptionGroup) as raised:
                await world.work(2)
        assert "another owner has made commit 0" in str(first_cause(raised.value))
        await world.work(3)
        await world.check()

    run(main(), seed=0)


def test_half_a_window_of_processed_messages_is_committed() -> None:
    async def main() -> None:
        world = QueueWorld(max_unacknowledged=4, commit_interval=1000)
        world.feed(50)
        async with world.running(1):
            with anyio.fail_after(10):
                await until(lambda: len(world.queue.removed) >= 48)

    run(main(), seed=0)


def test_a_commit_names_the_latest_messages_also_of_earlier_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_reader, "UNSTORED", 3)

    async def main() -> None:
        world = QueueWorld(max_unacknowledged=4, commit_rows=1, max_batch_records=1)
        world.feed(11)
        await world.work(1)
        assert (await world.checkpoint()).identities == tuple(fingerprint(str(n)) for n in range(4, 11))

    run(main(), seed=0)


def test_a_batch_does_not_wait_for_messages_that_a_full_window_keeps_back() -> None:
    async def main() -> None:
        world = QueueWorld(max_unacknowledged=5, min_batch_records=100, max_batch_wait=1000)
        world.feed(20)
        begun = current_loop().now
        await world.work(1)
        assert current_loop().now - begun < 1000

    run(main(), seed=0)


def test_messages_whose_acknowledgements_the_broker_has_forgotten_are_recognized() -> None:
    async def main() -> None:
        world = QueueWorld(max_unacknowledged=4, commit_rows=1, max_batch_records=1)
        world.feed(11)
        await world.work(1)
        assert len(world.queue.removed) == 11
        world.queue.ready, world.queue.removed = world.queue.removed[-9:], world.queue.removed[:-9]
        world.feed(2)
        await world.work(2)
        await world.check()

    run(main(), seed=0)


def test_a_smaller_window_keeps_the_names_of_messages_that_may_come_again() -> None:
    async def main() -> None:
        world = QueueWorld(max_unacknowledged=20)
        world.feed(8)

        async def drop(actor: PartitionActor) -> None:
            await until(lambda: actor.statistics.cursor.sequence == 7)
            world.queue.drop_consumer()
            await until(lambda: actor.statistics.committed.sequence == 7)

        await world.work_until(1, drop)
        world.settings = world.settings.model_copy(update={"max_unacknowledged": 2})
        world.feed(8)
        await world.work(2)
        await world.check()

    run(main(), seed=0)


def test_a_handler_that_never_commits_gets_an_error_from_a_queue() -> None:
    async def main() -> None:
        world = QueueWorld(auto_commit=False)
        world.feed(20)
        with pytest.raises(ExceptionGroup) as raised:
            async with world.running(1):
                await anyio.sleep(100)
        error = first_cause(raised.value)
        assert isinstance(error, HandlerError)
        assert "max_unacknowledged = 8 messages wait for ctx.commit()" in str(error)

    run(main(), seed=0)


class Nameless(MemoryQueues):
    """Messages that end in 7 have no identity, and are refused."""

    @asynccontextmanager
    async def consume(self, partition: str, unacknowledged: int) -> AsyncIterator[Consumer]:
        async with super().consume(partition, unacknowledged) as consumer:
            yield NamelessConsumer(consumer)


class NamelessConsumer(Consumer):
    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer

    async def acknowledge(self, count: int) -> None:
        await self.consumer.acknowledge(count)

    async def receive(self) -> Deliveries:
        found = await self.consumer.receive()
        odd = [index for index, name in enumerate(found.identities) if name and name.endswith("7")]
        batch = found.batch.refusing(dict.fromkeys(odd, "it has no id"))
        return Deliveries(batch, [None if index in odd else name for index, name in enumerate(found.identities)])


@pytest.mark.parametrize("seed", range(5))
def test_messages_without_identities_become_letters_and_none_is_lost(seed: int) -> None:
    """A message that comes again after its commit has a second letter, because it has no identity."""

    async def main() -> None:
        world, pick = QueueWorld(commit_rows=2, max_batch_records=3), Random(seed)
        world.queues = world.source = Nameless(1)  # type: ignore[assignment]
        world.feed(120)

        async def drop(actor: PartitionActor) -> None:
            await anyio.sleep(pick.uniform(0, 1))
            world.queue.drop_consumer()
            await anyio.sleep(pick.uniform(0, 1))

        for epoch in range(1, 20):
            await world.work_until(epoch, drop)
        await world.work(20)
        assert world.queue.removed == list(range(120))
        assert [n for _, n in await world.numbered_rows()] == list(range(0, 120, 2))
        letters = await world.letters()
        assert sorted(set(letters)) == [n for n in range(120) if n % 10 in (5, 7)]
        assert len([n for n in letters if n % 10 == 5]) == 12

    run(main(), seed=seed)


def test_a_message_without_identity_must_be_refused() -> None:
    batch = Batch.of("0", [b"a", b"b"], range(2))
    with pytest.raises(ValueError, match="must be refused, since its handler could see it twice"):
        Deliveries(batch.refusing({0: "no id"}), ["a", None])

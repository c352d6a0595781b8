"""What brokers forget or end by themselves: transactional ids, and transactions that take too long.

Public reports of the like: apache/kafka#17822 (an expired id lets a fenced producer go on),
astubbs/parallel-consumer#411 (an expired id is tried for ever), confluentinc/librdkafka#3297 and #4849 (a transaction
that was timed out cannot be aborted), MaterializeInc/materialize#10876 (a sink does not recover from it).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import anyio
import pytest

from actorproc.sinks.protocol import Delivery, SinkError, SinkMoved, SinkRow
from tests.connectors.kafka.server import Broker, kafka
from tests.servers import REQUIRED, Unavailable

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from actorproc.connectors.kafka.sink import KafkaSink
from actorproc.connectors.kafka.writers import TransactionalWriter
from tests.connectors.kafka.test_sink import SCHEMA, delivery, sink, values
from tests.connectors.kafka.topics import Topic

pytestmark = [pytest.mark.servers, pytest.mark.long]

_SHORT = """
transactional.id.expiration.ms=2000
transaction.remove.expired.transaction.cleanup.interval.ms=500
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
producer.id.expiration.ms=2000
producer.id.expiration.check.interval.ms=500
"""


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that forgets after two seconds."""
    folder = tmp_path_factory.mktemp("forgetful")
    try:
        with kafka(folder) as broker:
            broker.stop()
            with (folder / "server.properties").open("a") as properties:
                properties.write(_SHORT)
            broker.start()
            yield broker
    except Unavailable as why:
        if REQUIRED:
            raise
        pytest.skip(str(why))


async def persist(found: KafkaSink, step: Delivery) -> None:
    """Deliver as the core does: after an error the row is read again."""
    with anyio.fail_after(20):
        while await found.read(step.partition) != step.now:
            with suppress(SinkError):
                await found.write(step)


async def test_an_expired_id_lets_no_fenced_host_deliver(forgetful: Broker) -> None:
    topic = Topic(forgetful, partitions=1)
    async with sink(topic, "x") as old, sink(topic, "x") as new:
        await old.open(SCHEMA)
        await new.open(SCHEMA)
        first = delivery(range(5), None)
        await old.write(first)
        second = delivery(range(5, 10), first.now)
        await new.write(second)
        await anyio.sleep(5)
        with pytest.raises((SinkMoved, SinkError)):
            await old.write(second)
        await persist(new, delivery(range(10, 15), second.now))
    assert values(topic) == list(range(15))


async def test_an_idle_host_goes_on_after_its_id_has_expired(forgetful: Broker) -> None:
    topic = Topic(forgetful, partitions=1)
    async with sink(topic) as found:
        await found.open(SCHEMA)
        row: SinkRow | None = None
        for at in range(3):
            step = delivery(range(at * 5, at * 5 + 5), row)
            await persist(found, step)
            row = step.now
            await anyio.sleep(4)
    assert values(topic) == list(range(15))


async def test_a_transaction_that_takes_too_long_is_delivered_once(
    forgetful: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(forgetful, partitions=1)
    commit, slept = TransactionalWriter._commit, list[int]()

    def slow(self: Any) -> None:
        if len(slept) == 1:
            time.sleep(4)
        slept.append(1)
        commit(self)

    monkeypatch.setattr(TransactionalWriter, "_commit", slow)
    async with sink(topic, timeout=1.5) as found:
        await found.open(SCHEMA)
        row: SinkRow | None = None
        with anyio.fail_after(60):
            while (row.position if row else 0) < 3:
                position = row.position if row else 0
                try:
                    await found.write(delivery(range(position * 5, position * 5 + 5), row))
                except (SinkError, SinkMoved):
                    await anyio.sleep(0.2)
                row = await found.read("0")
    assert len(slept) > 3  # the slow one was tried again
    assert values(topic) == list(range(15))

"""The Kafka sink on a real broker: the checks of the test kit, keys and headers, fencing, and what brokers forget."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import orjson
import pyarrow as pa
import pytest
from msgspec.structs import replace

from actorproc import Batch, PartitionContext, PartitionHandler, Processor
from actorproc.errors import UsageError
from actorproc.runtime.clock import SYSTEM
from actorproc.sinks.protocol import Delivery, Guarantee, SinkError, SinkMoved, SinkPlace, SinkRefused, SinkRow
from actorproc.testing import check_sink
from actorproc.testing.memory_source import MemorySource
from tests.connectors.kafka.server import PASSWORD, USER, Broker

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from actorproc.connectors.kafka.sink import KafkaSink
from tests.connectors.kafka.topics import Topic
from tests.sinks.matrix import tried

pytestmark = pytest.mark.servers

SCHEMA = pa.schema([("n", pa.int64()), ("word", pa.string()), pa.field("_sequence", pa.int64(), nullable=False)])
FIRST = SinkRow("x", 1, "t", 0, 0)


def sink(topic: Topic, name: str = "", **options: Any) -> KafkaSink:
    return KafkaSink(topic.url, {"timeout": 10, **options}, SinkPlace("topic", name or topic.name, SYSTEM))


def delivery(numbers: range, was: SinkRow | None, *, words: str = "word", partition: str = "0") -> Delivery:
    data = [pa.array(numbers, pa.int64()), pa.array([f"{words} {n}" for n in numbers]), pa.array(numbers, pa.int64())]
    now = replace(was or FIRST, position=(was or FIRST).position + 1)
    return Delivery(
        partition, pa.Table.from_arrays(data, schema=SCHEMA), now.position - 1, (len(numbers),), was, now
    )  # fmt: skip


def values(topic: Topic) -> list[Any]:
    return [orjson.loads(message.value() or b"")["n"] for message in topic.messages()]


async def test_it_keeps_exactly_once(broker: Broker) -> None:
    topic = Topic(broker, partitions=3)

    async def rows() -> Sequence[int]:
        return values(topic)

    checked = await check_sink(lambda: sink(topic, key="n"), rows)
    tried("kafka", checked, on="Apache Kafka")
    assert (checked.guarantee, checked.repeated) == (Guarantee.EXACTLY_ONCE, 0)


async def test_it_keeps_the_order_of_each_partition(broker: Broker) -> None:
    topic = Topic(broker, partitions=1)

    async def rows() -> Sequence[int]:
        return values(topic)

    checked = await check_sink(lambda: sink(topic), rows, ordered=True)
    assert checked.repeated == 0
    tried("kafka, one partition", checked, on="Apache Kafka")


async def test_rows_are_json_with_key_headers_and_time(broker: Broker) -> None:
    topic = Topic(broker, partitions=1)
    schema = SCHEMA.insert(2, pa.field("at", pa.timestamp("us", "UTC")))
    columns = [[7, 8], ["a", "b"], [1_700_000_000_123_000, None], [70, 80]]
    rows = pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
    async with sink(topic, key="word", headers="n,_partition,_sequence", timestamp="at") as found:
        await found.open(schema)
        await found.write(Delivery("p/0", rows, 0, (2,), None, replace(FIRST, position=1)))
    one, two = topic.messages()
    assert orjson.loads(one.value() or b"") == {"n": 7, "word": "a", "at": "2023-11-14T22:13:20.123000Z"}
    assert (one.key(), one.timestamp()[1]) == (b"a", 1_700_000_000_123)
    assert one.headers() == [("n", b"7"), ("_partition", b"p/0"), ("_sequence", b"70")]
    assert two.timestamp()[1] > 1_700_000_000_123


async def test_a_deleted_row_is_a_tombstone(broker: Broker) -> None:
    topic = Topic(broker, partitions=1)
    schema = SCHEMA.insert(2, pa.field("gone", pa.bool_()))
    rows = pa.table([[1, 2, 3], ["a", "b", "c"], [None, True, False], [1, 2, 3]], schema=schema)
    async with sink(topic, key="word", value="word", deleted="gone") as found:
        await found.open(schema)
        await found.write(Delivery("0", rows, 0, (3,), None, replace(FIRST, position=1)))
    assert [(m.key(), m.value()) for m in topic.messages()] == [(b"a", b"a"), (b"b", None), (b"c", b"c")]


async def test_a_key_has_the_partition_that_java_and_the_log_give_it(broker: Broker) -> None:
    from actorproc.log.key_hash import partition_of_key

    topic = Topic(broker, partitions=5)
    async with sink(topic, key="n") as found:
        await found.open(SCHEMA)
        await found.write(delivery(range(50), None))
    assert {m.key(): m.partition() for m in topic.messages()} == {
        b"%d" % n: partition_of_key(b"%d" % n, 5) for n in range(50)
    }


async def test_a_row_that_is_too_large_is_refused_and_nothing_is_sent(broker: Broker) -> None:
    topic = Topic(broker, partitions=1)
    async with sink(topic) as found:
        await found.open(SCHEMA)
        with pytest.raises(SinkRefused, match="record 2 of partition 0"):
            await found.write(delivery(range(2, 3), None, words="x" * 2_000_000))
        await found.write(delivery(range(3), None))
    assert values(topic) == [0, 1, 2]


async def test_a_row_that_the_topic_refuses_is_named_as_refused(broker: Broker) -> None:
    topic = Topic(broker, partitions=1, **{"max.message.bytes": "10000"})
    async with sink(topic, **{"compression.type": "none"}) as found:
        await found.open(SCHEMA)
        with pytest.raises(SinkRefused, match="size"):
            await found.write(delivery(range(3), None, words="x" * 20_000))
        await found.write(delivery(range(3), None))
    assert values(topic) == [0, 1, 2]


async def test_a_topic_or_column_that_is_missing_is_refused_at_the_start(broker: Broker) -> None:
    topic = Topic(broker, partitions=1)
    with pytest.raises(SinkRefused, match="topic nowhere"):
        await KafkaSink(f"kafka://{broker.address}/nowhere", {"timeout": 5}, SinkPlace("a", "b", SYSTEM)).open(SCHEMA)
    with pytest.raises(SinkRefused, match="key = m: the output has no such column"):
        await sink(topic, key="m").open(SCHEMA)
    with pytest.raises(UsageError, match="lingers"):
        await sink(topic, **{"lingers.ms": "5"}).open(SCHEMA)
    with pytest.raises(UsageError, match="name one topic"):
        KafkaSink("kafka://x/a,b", {}, SinkPlace("a", "b", SYSTEM))


async def test_hosts_refuse_to_start_with_a_misspelt_property(tmp_path: Path) -> None:
    """librdkafka says so before it connects."""

    class Copy(PartitionHandler):
        output_schema = "n long"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            pass

    sinks = {"orders": {"url": "kafka://127.0.0.1:1/orders", "lingers.ms": "5"}}
    host = Processor(Copy, source=MemorySource(1), container=tmp_path, name="Copy", sinks=sinks)
    with pytest.raises(UsageError) as refused, anyio.fail_after(30):
        await host.run(until_end=True)
    assert str(refused.value) == 'sink orders: Kafka properties: No such configuration property: "lingers.ms"'


async def test_a_dead_owner_with_an_open_transaction_is_fenced_at_once(broker: Broker) -> None:
    topic = Topic(broker, partitions=1)
    dead, alive = sink(topic, "x", timeout=60), sink(topic, "x", timeout=60)
    await dead.open(SCHEMA)
    first = delivery(range(3), None)
    await dead.write(first)
    producer = dead._held["0"].writer._producer
    producer.begin_transaction()
    producer.produce(topic.name, b'{"n": -1}')
    producer.flush(10)  # the message is in the topic, and the transaction stays open
    async with alive:
        await alive.open(SCHEMA)
        assert await alive.read("0") == first.now
        with anyio.fail_after(20):  # not the 60 s of the transaction
            await alive.write(delivery(range(3, 6), first.now))
        assert values(topic) == [0, 1, 2, 3, 4, 5]
        with pytest.raises((SinkMoved, SinkError)):
            await dead.write(delivery(range(3, 6), first.now))
    await dead.close()
    assert values(topic) == [0, 1, 2, 3, 4, 5]


async def test_processors_of_one_name_do_not_fence_each_other_in_two_topics(broker: Broker) -> None:
    one, two = Topic(broker, partitions=1), Topic(broker, partitions=1)
    async with sink(one, "same") as staging, sink(two, "same") as production:
        await staging.open(SCHEMA)
        await production.open(SCHEMA)
        first = delivery(range(3), None)
        await staging.write(first)
        await production.write(first)
        with anyio.fail_after(10):
            producers = [found._held["0"].writer for found in (staging, production)]
            await staging.write(delivery(range(3, 6), first.now))
            await production.write(delivery(range(3, 6), first.now))
        assert producers == [found._held["0"].writer for found in (staging, production)]  # nobody was fenced
    assert values(one) == values(two) == [0, 1, 2, 3, 4, 5]


async def test_brokers_that_are_away_cost_time_only(broker: Broker) -> None:
    topic = Topic(broker, partitions=1)
    async with sink(topic, timeout=3) as found:
        await found.open(SCHEMA)
        row: SinkRow | None = None
        for at in range(2):
            if at % 2:
                broker.stop()
                with pytest.raises((SinkError, SinkMoved)):
                    await found.write(delivery(range(at * 10, at * 10 + 10), row))
                broker.start()
            with anyio.fail_after(60):
                while True:
                    try:
                        row = await found.read("0")
                        if row is not None and row.position > at:
                            break
                        await found.write(delivery(range(at * 10, at * 10 + 10), row))
                    except (SinkError, SinkMoved):
                        await anyio.sleep(0.2)
    assert values(topic) == list(range(20))


async def test_a_deleted_topic_loses_the_row_too(broker: Broker) -> None:
    topic = Topic(broker, partitions=1)
    async with sink(topic, "gone") as found:
        await found.open(SCHEMA)
        await found.write(delivery(range(3), None))
        topic.create_again()
        assert await found.read("0") is None


LOGIN = {
    "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER, "sasl.password": PASSWORD
}  # fmt: skip


async def refusal(broker: Broker, topic: Topic, **options: Any) -> str:
    """Why a host would not start with this sink, as a user who logs in."""
    given = {"timeout": 5, **LOGIN, **options}
    found = KafkaSink(f"kafka://{broker.sasl_address}/{topic.name}", given, SinkPlace("topic", topic.name, SYSTEM))
    async with found:
        with pytest.raises(SinkRefused) as caught:
            await found.check(SCHEMA)
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_a_wrong_password_is_refused_at_the_start(broker: Broker) -> None:
    assert "uthentication failed" in await refusal(broker, Topic(broker), **{"sasl.password": "wrong"})


@pytest.mark.parametrize(
    ("kind", "what", "operation", "why"),
    [
        ("TOPIC", "{topic}", "WRITE", "the user may not write to it"),
        ("TRANSACTIONAL_ID", "actorproc-sink:{topic}:topic:{topic}:", "WRITE", "ransactional Id authorization"),
        ("GROUP", "actorproc-sink:{topic}:topic:{topic}:", "READ", "roup authorization failed"),
        ("GROUP", "actorproc-sink:{topic}:topic:{topic}:", "DESCRIBE", "roup authorization failed"),
    ],
)
async def test_a_missing_right_is_refused_at_the_start(
    broker: Broker, kind: str, what: str, operation: str, why: str
) -> None:
    topic = Topic(broker)
    found = KafkaSink(
        f"kafka://{broker.sasl_address}/{topic.name}", {"timeout": 10, **LOGIN}, SinkPlace("topic", topic.name, SYSTEM)
    )
    async with found:
        await found.check(SCHEMA)
    seen = "DESCRIBE" if operation != "DESCRIBE" else "DELETE"
    rules = [(operation, AclPermissionType.DENY), (seen, AclPermissionType.ALLOW)]
    name = what.format(topic=topic.name)
    bindings = [
        AclBinding(
            ResourceType[kind], name, ResourcePatternType.LITERAL, f"User:{USER}", "*", AclOperation[rule], permission
        )
        for rule, permission in rules
    ]
    admin = AdminClient({"bootstrap.servers": broker.address})
    for done in admin.create_acls(bindings).values():
        done.result(10)
    assert why in await refusal(broker, topic)
    assert topic.messages() == []

"""Records that no Kafka client of Python can write: each becomes a row or a dead letter, and never stops its host."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
import structlog

from actorproc import Settings
from actorproc.admin.dead_letters import DeadLetters, Selection
from actorproc.errors import SourceError
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store
from tests.connectors.kafka.server import Broker
from tests.connectors.kafka.wire import WireRecord, produce

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from actorproc.connectors.kafka import KafkaSource, consumer
from actorproc.connectors.kafka.columns import to_batch
from tests.connectors.kafka.topics import Topic, process

pytestmark = pytest.mark.servers

ANY_TIME = {"message.timestamp.before.max.ms": str(2**63 - 1), "message.timestamp.after.max.ms": str(2**63 - 1)}


def letters(container: Path) -> list[dict[str, object]]:
    files = (container / "Rows" / "dead-letters").glob("*/*.jsonl")
    found = [orjson.loads(line) for file in files for line in file.read_bytes().splitlines()]
    return sorted(found, key=lambda letter: (letter["partition"], letter["sequence"]))


def row(n: int) -> bytes:
    return orjson.dumps({"n": n})


async def test_a_header_name_that_is_not_utf8_becomes_a_dead_letter(broker: Broker, tmp_path: Path) -> None:
    topic = Topic(broker, partitions=2)
    odd = WireRecord(row(1), b"key", [(b"fine", b"1"), (b"\xff\xfe", b"v")])
    produce(broker.address, topic.name, 0, [WireRecord(row(0)), odd, WireRecord(row(2), headers=[(b"h", None)])])
    produce(broker.address, topic.name, 1, [WireRecord(row(3))])
    with structlog.testing.capture_logs() as logs:
        assert await process(KafkaSource(topic.url), tmp_path) == [0, 2, 3]
    [letter] = letters(tmp_path)
    assert (letter["sequence"], letter["key"], letter["value"]) == (1, "key", '{"n":1}')
    assert letter["error"]["type"] == "UnreadableRecord"  # type: ignore[index]
    assert "can't decode byte 0xff" in letter["error"]["message"]  # type: ignore[index]
    assert [line for line in logs if line["event"] in ("kafka.thread_failed", "partition.failed")] == []


async def test_refused_records_are_replayed_into_their_topic(broker: Broker, tmp_path: Path) -> None:
    topic = Topic(broker, partitions=1, **ANY_TIME)
    for odd in (WireRecord(row(0), None, [(b"\xff", b"")]), WireRecord(row(1), b"\xff", timestamp=2**62)):
        produce(broker.address, topic.name, 0, [odd])
    assert await process(KafkaSource(topic.url), tmp_path, dead_letter_limit=1.0) == []
    async with open_store(str(tmp_path), Settings()) as store:
        letters_of = await DeadLetters.opened(store, ProcessorLayout("Rows"))
        assert (await letters_of.replay(Selection(), Settings()))[:3] == (topic.url, 2, 0)
    assert await process(KafkaSource(topic.url), tmp_path, dead_letter_limit=1.0) == [0, 1]
    assert len(letters(tmp_path)) == 2


@pytest.mark.parametrize("time", [2**62, 2**63 - 1, -(2**63), -(2**62)])
async def test_a_timestamp_that_no_column_can_hold_becomes_a_dead_letter(
    broker: Broker, tmp_path: Path, time: int
) -> None:
    topic = Topic(broker, partitions=1, **ANY_TIME)
    for n, when in enumerate([-1, time, -5, 253_402_300_800_000]):  # none, ..., in 1969, in the year 10000
        produce(broker.address, topic.name, 0, [WireRecord(row(n), timestamp=when)])
    assert await process(KafkaSource(topic.url), tmp_path) == [0, 2, 3]
    [letter] = letters(tmp_path)
    assert (letter["sequence"], letter["timestamp"]) == (1, None)
    assert letter["error"]["message"] == f"its timestamp is out of range: {time} ms since 1970"  # type: ignore[index]


def odd_records(seed: int) -> Iterator[WireRecord]:
    """Ever the same for a seed. A record without an odd part is among them often."""
    chance = random.Random(seed)

    def some(*odd: bytes | None) -> bytes | None:
        return chance.choice([*odd, b"", chance.randbytes(chance.randrange(1, 9)), b"plain", "\U0001f600".encode()])

    for n in range(200):
        names = [some(b"\xed\xa0\x80", b"a\x00b", b"\xc0\x80") or b"" for _ in range(chance.choice([0, 0, 1, 3]))]
        yield WireRecord(
            chance.choice([row(n), some(None), None]),
            chance.choice([some(None), b"k" * 70_000]),
            [(name, some(None)) for name in names],
            chance.choice([-1, 0, -5, 1_700_000_000_000, 2**53, chance.randrange(-(2**63), 2**63)]),
        )


@pytest.mark.parametrize("seed", range(3))
async def test_odd_records_become_rows_or_dead_letters(broker: Broker, tmp_path: Path, seed: int) -> None:
    topic = Topic(broker, partitions=1, **ANY_TIME)
    for record in odd_records(seed):
        produce(broker.address, topic.name, 0, [record])
    with structlog.testing.capture_logs() as logs:
        done = await process(KafkaSource(topic.url), tmp_path, dead_letter_limit=1.0)
    assert len(done) + len(letters(tmp_path)) == 200
    assert done  # some were fine
    assert [line for line in logs if line["event"] in ("kafka.thread_failed", "partition.failed")] == []


# The thread


async def test_an_error_in_the_thread_ends_its_readers_and_later_ones_read_on(broker: Broker) -> None:
    topic = Topic(broker, partitions=1)
    topic.send(range(5), 0)
    source = KafkaSource(topic.url)
    await source.open()
    [partition] = await source.partitions()

    def fail() -> None:
        raise SystemError("out of order")

    for _ in range(3):
        reading = source.read(partition, "0")
        assert len((await anext(reading)).batch) == 5
        source._consumer._orders.put(fail)
        with pytest.raises(SourceError, match=r"consumer has failed: SystemError: out of order"):
            while True:
                await anext(reading)
    await source.start(partition, "latest")  # the other client goes on
    await source.close()


async def test_a_batch_that_cannot_be_made_ends_its_partition_only(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    topic = Topic(broker, partitions=2)
    topic.send(range(10))
    failed = list[str]()

    def fails_once(partition: str, messages: list[object]) -> object:
        if partition.endswith("-0") and not failed:
            failed.append(partition)
            raise MemoryError
        return to_batch(partition, messages)  # type: ignore[arg-type]

    monkeypatch.setattr(consumer, "to_batch", fails_once)
    with structlog.testing.capture_logs() as logs:
        assert await process(KafkaSource(topic.url), tmp_path, restart_backoff=0.01) == list(range(10))
    assert [line["partition"] for line in logs if line["event"] == "partition.failed"] == failed


async def test_nothing_is_read_behind_an_error(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(broker, partitions=1)
    source = KafkaSource(topic.url, settings=Settings())
    await source.open()
    [partition] = await source.partitions()

    def fails_at_first(name: str, messages: list[object]) -> object:
        monkeypatch.setattr(consumer, "to_batch", to_batch)
        raise MemoryError

    monkeypatch.setattr(consumer, "to_batch", fails_at_first)
    reading = source.read(partition, "0")
    assert len((await anext(reading)).batch) == 0
    for n in range(20):
        topic.send(range(n, n + 1), 0)  # one by one, so that some come after the error
    with pytest.raises(SourceError, match=r"cannot be read: MemoryError"):
        while True:
            assert len((await anext(reading)).batch) == 0
    await source.close()

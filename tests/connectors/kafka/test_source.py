"""Topics of a real Kafka broker as a source."""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from actorproc import Batch, PartitionContext, PartitionHandler, Processor, Settings
from actorproc.errors import PartitionGone, RecordsLost, SourceError, UsageError
from actorproc.testing import check_source
from tests import servers
from tests.connectors.kafka.server import PASSWORD, USER, Broker

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from confluent_kafka.cimpl import NewTopic

from actorproc.connectors.kafka import KafkaSource
from actorproc.connectors.kafka import source as kafka_source
from actorproc.connectors.kafka.consumer import _ROUND_BYTES
from actorproc.connectors.kafka.position import Position
from actorproc.connectors.kafka.presets import parse_url
from actorproc.connectors.kafka.properties import client_properties
from actorproc.sources.protocol import Start
from tests.connectors.kafka.topics import Rows, Topic, numbers, process

pytestmark = pytest.mark.servers


async def opened(source: KafkaSource) -> KafkaSource:
    await source.open()
    return source


async def test_each_message_becomes_one_row_also_after_a_restart(broker: Broker, tmp_path: Path) -> None:
    topic = Topic(broker)
    topic.send(range(2_000))
    assert await process(KafkaSource(topic.url), tmp_path) == list(range(2_000))
    topic.send(range(2_000, 3_000))
    assert await process(KafkaSource(topic.url), tmp_path) == list(range(3_000))


@pytest.mark.slow
async def test_a_topic_keeps_the_contract_of_a_source(broker: Broker) -> None:
    topic = Topic(broker)
    topic.send(range(300))
    await check_source(lambda: KafkaSource(topic.url))


async def test_key_value_headers_and_timestamp_arrive_unchanged(broker: Broker) -> None:
    topic = Topic(broker, partitions=1)
    when = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
    topic.producer.produce(
        topic.name,
        b"\x00value",
        key=b"\xffkey",
        headers=[("a", b"1"), ("a", None)],
        timestamp=int(when.timestamp() * 1000),
    )
    topic.producer.produce(topic.name, None, key=None)
    topic.producer.flush(30)
    source = await opened(KafkaSource(topic.url))
    reading = source.read(f"{topic.name}-0", "0")
    batch = (await anext(reading)).batch
    await reading.aclose()
    await source.close()
    assert (batch[0].key, batch[0].value, batch[0].headers) == (b"\xffkey", b"\x00value", (("a", b"1"), ("a", b"")))
    assert (batch[0].timestamp, batch.timestamp_type) == (when, "CreateTime")
    assert (batch[1].key, batch[1].value, batch[1].headers) == (None, None, ())


async def test_a_handler_learns_that_timestamps_are_the_brokers(broker: Broker, tmp_path: Path) -> None:
    topic = Topic(broker, 2, **{"message.timestamp.type": "LogAppendTime"})
    topic.send(range(10))
    types: set[str | None] = set()

    class Seeing(PartitionHandler):
        def process(self, batch: Batch, ctx: PartitionContext) -> None:
            types.update(part.timestamp_type for part in (batch, batch[:1], pickle.loads(pickle.dumps(batch))))

    await Processor(Seeing, source=topic.url, container=str(tmp_path)).run(until_end=True)
    assert types == {"LogAppendTime"}


async def test_read_ahead_bytes_bounds_the_memory_of_slow_handlers(broker: Broker) -> None:
    topic = Topic(broker)
    for n in range(3_000):
        topic.producer.produce(topic.name, bytes(10_000), partition=n % 2)
    assert topic.producer.flush(60) == 0
    most = 4 * 2**20
    source = await opened(KafkaSource(topic.url, settings=Settings(read_ahead_bytes=4 * most, max_batch_bytes=most)))
    readers = [source.read(f"{topic.name}-{number}", "0") for number in range(2)]
    rows = [len((await anext(reader)).batch) for reader in readers]
    consumer = source._consumer
    feeds = list(consumer._feeds.values())
    await _until(lambda: set(feeds) == consumer._paused)
    await anyio.sleep(0.5)
    assert sum(feed.waiting for feed in feeds) < most + 2 * _ROUND_BYTES
    with anyio.fail_after(60):
        for number, reader in enumerate(readers):
            while rows[number] < 1_500:
                rows[number] += len((await anext(reader)).batch)
    for reader in readers:
        await reader.aclose()
    await source.close()


async def test_a_partition_that_waited_for_its_reader_is_read_again(broker: Broker) -> None:
    """librdkafka keeps a pause across assignments: without a resume nothing arrives any more."""
    topic = Topic(broker, partitions=1)
    for _ in range(400):
        topic.producer.produce(topic.name, b"x" * 20_000)
    assert topic.producer.flush(30) == 0
    source = await opened(KafkaSource(topic.url, settings=Settings(read_ahead_bytes=2**20, max_batch_bytes=2**19)))
    await source.partitions()
    reader = source.read(f"{topic.name}-0", "0")
    chunk = await anext(reader)
    await _until(lambda: bool(source._consumer._paused))
    await reader.aclose()
    found, reader = len(chunk.batch), source.read(f"{topic.name}-0", chunk.next)
    with anyio.fail_after(30):
        while found < 400:
            found += len((await anext(reader)).batch)
    await reader.aclose()
    await source.close()


async def test_aborted_transactions_are_skipped_up_to_the_end(broker: Broker, tmp_path: Path) -> None:
    topic = Topic(broker, partitions=1)
    topic.transaction(range(10), commit=True)
    topic.transaction(range(10, 20), commit=False)
    assert await process(KafkaSource(topic.url), tmp_path) == list(range(10))
    topic.transaction(range(20, 30), commit=True)
    assert await process(KafkaSource(topic.url), tmp_path) == [*range(10), *range(20, 30)]


async def test_a_start_is_found_by_earliest_latest_and_time(broker: Broker) -> None:
    topic = Topic(broker, partitions=1)
    then = int(time.time()) - 3_600
    topic.send(range(5), 0, timestamp=1000 * then)
    topic.send(range(5), 0, timestamp=1000 * (then + 1_000))
    source = await opened(KafkaSource(topic.url))
    starts: list[Start] = ["earliest", "latest", *(datetime.fromtimestamp(then + s, UTC) for s in (500, 2_000))]
    found = [await source.start(f"{topic.name}-0", at) for at in starts]
    assert [Position.parse(position).offset for position in found] == [0, 10, 5, 10]
    await source.close()


@pytest.mark.parametrize(("policy", "rows"), [("earliest", range(50, 60)), ("latest", range(55, 60))])
async def test_removed_offsets_are_passed_over_if_the_user_says_so(
    broker: Broker, tmp_path: Path, policy: Any, rows: range
) -> None:
    topic = Topic(broker, partitions=1)
    topic.send(range(10), 0)
    assert await process(KafkaSource(topic.url), tmp_path) == list(range(10))
    topic.send(range(10, 55), 0)
    topic.delete_before(50)
    source = KafkaSource(topic.url, settings=Settings(on_out_of_range=policy))
    found = await process(source, tmp_path)
    topic.send(range(55, 60), 0)
    found = await process(KafkaSource(topic.url), tmp_path)
    assert found == [*range(10), *rows]


async def test_removed_offsets_stop_the_partition_and_are_counted(broker: Broker) -> None:
    topic = Topic(broker, partitions=1)
    topic.send(range(20), 0)
    topic.delete_before(15)
    source = await opened(KafkaSource(topic.url))
    with pytest.raises(RecordsLost, match=r"11 records before offset 15 were removed at the broker"):
        await anext(source.read(f"{topic.name}-0", "4"))
    with pytest.raises(RecordsLost, match=r"offset 99 lies beyond the end 20"):
        await anext(source.read(f"{topic.name}-0", "99"))
    await source.close()


async def test_new_partitions_and_new_topics_are_found(broker: Broker) -> None:
    first, second = Topic(broker, partitions=1), Topic(broker, partitions=1)
    prefix = f"{first.name}x"
    source = await opened(KafkaSource(f"kafka://{broker.address}/^topic-"))
    assert {f"{first.name}-0", f"{second.name}-0"} <= set(await source.partitions())
    first.grow(3)
    first.create(NewTopic(prefix, 1, 1))
    with anyio.fail_after(20):
        while not {f"{first.name}-2", f"{prefix}-0"} <= set(await source.partitions()):
            await anyio.sleep(0.1)
    await source.close()


async def test_a_missing_topic_is_named(broker: Broker) -> None:
    source = await opened(KafkaSource(f"kafka://{broker.address}/nothing"))
    assert await source.partitions() == []
    with pytest.raises(SourceError, match=r"the brokers know no topic nothing: check the name, or create it"):
        await source.check_exists()
    with pytest.raises(PartitionGone, match=r"Unknown partition"):
        await source.start("nothing-0", "earliest")
    await source.close()


async def test_an_unreachable_broker_is_named() -> None:
    [port] = servers.free_ports(1)
    source = KafkaSource(f"kafka://127.0.0.1:{port}/topic", settings=Settings(store_patience=0.1))
    source.timeout = 1.0
    with pytest.raises(SourceError, match=r"the brokers were asked for its topics"):
        await source.open()
    await source.close()


async def test_a_run_until_the_end_gives_up_an_unreachable_broker_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_source, "_FIRST_TIMEOUT", 0.3)
    [port] = servers.free_ports(1)
    settings = Settings(store_patience=0.5)
    source = KafkaSource(f"kafka://127.0.0.1:{port}/topic", settings=settings)
    processor = Processor(Rows, source=source, container=str(tmp_path), settings=settings)
    with (
        anyio.fail_after(20),
        pytest.raises(SourceError, match=r"Connection refused.*1 attempt.*store_patience = 0.5 s"),
    ):
        await processor.run(until_end=True)


async def test_a_wrong_property_is_refused_in_librdkafkas_words() -> None:
    source = KafkaSource("kafka://127.0.0.1:9/topic", {"isolation.levle": "read_committed"})
    with pytest.raises(UsageError, match=r'No such configuration property: "isolation.levle"'):
        await source.open()


async def test_sasl_plain_is_accepted_with_the_right_password_only(broker: Broker, tmp_path: Path) -> None:
    topic = Topic(broker)
    topic.send(range(10))
    url = f"kafka://{broker.sasl_address}/{topic.name}"
    login: Mapping[str, str] = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER}
    assert await process(KafkaSource(url, {**login, "sasl.password": PASSWORD}), tmp_path) == list(range(10))
    source = KafkaSource(url, {**login, "sasl.password": "wrong"}, settings=Settings(store_patience=0.1))
    source.timeout = 2.0
    with pytest.raises(SourceError, match="Authentication failed") as refused:
        await source.open()
    assert "wrong" not in str(refused.value)
    await source.close()


@pytest.mark.slow
async def test_serve_reads_a_kafka_url_with_options_from_the_file(broker: Broker, tmp_path: Path) -> None:
    topic = Topic(broker)
    topic.send(range(10))
    lines = [f'"sasl.username" = "{USER}"', f'"sasl.password" = "{PASSWORD}"']
    lines += ['"security.protocol" = "SASL_PLAINTEXT"', '"sasl.mechanism" = "PLAIN"']
    (tmp_path / "actorproc.toml").write_text("\n".join(["[source_options]", *lines]))
    (tmp_path / "app.py").write_text(
        "from actorproc import JsonRows\nclass Rows(JsonRows):\n    output_schema = 'n bigint'\n"
    )
    command = [sys.executable, "-m", "actorproc", "serve", "app:Rows", "--container", "state", "--until-end"]
    command += ["--source", f"kafka://{broker.sasl_address}/{topic.name}"]
    served = await anyio.run_process(command, cwd=tmp_path, check=False)
    assert served.returncode == 0, served.stderr
    assert PASSWORD.encode() not in served.stderr
    assert numbers(tmp_path / "state") == list(range(10))
    status = [sys.executable, "-m", "actorproc", "status", "--name", "Rows", "--container", "state", "--json"]
    status += ["--source", f"kafka://{broker.sasl_address}/{topic.name}"]
    told = await anyio.run_process(status, cwd=tmp_path)
    assert orjson.loads(told.stdout)["lag"] == 0


@pytest.mark.slow
async def test_a_broker_that_is_stopped_and_started_loses_and_repeats_nothing(broker: Broker, tmp_path: Path) -> None:
    topic = Topic(broker)
    topic.send(range(1_000))
    settings = Settings(commit_interval=0.2, mirror_offsets="kept")
    async with Processor(Rows, source=KafkaSource(topic.url), container=str(tmp_path), settings=settings):
        await _until(lambda: len(numbers(tmp_path)) == 1_000)
        broker.stop()
        await anyio.sleep(2)
        await anyio.to_thread.run_sync(broker.start)
        topic.send(range(1_000, 2_000))
        await _until(lambda: len(numbers(tmp_path)) >= 2_000)
    assert numbers(tmp_path) == list(range(2_000))
    assert topic.committed("kept") == [1_000, 1_000], "the mirror is no reason to fail, and catches up"


async def _until(condition: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except FileNotFoundError:
            pass
        assert time.monotonic() < end
        await anyio.sleep(0.1)


@pytest.mark.parametrize(
    ("url", "brokers", "topics"),
    [
        ("kafka://a:9092/t", "a:9092", ("t",)),
        ("kafka://a:1,b:2/t,u,t", "a:1,b:2", ("t", "u")),
        ("kafka://a/^x|y,z", "a", ("^x|y,z",)),
    ],
)
def test_a_url_names_brokers_and_topics(url: str, brokers: str, topics: tuple[str, ...]) -> None:
    address = parse_url(url)
    assert (address.brokers, address.topics) == (brokers, topics)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("kafka://a:9092", "write kafka://BROKER"),
        ("kafka:///t", "write kafka://BROKER"),
        ("kafka://user:secret@a/t", "no credentials in a URL"),
        ("kafka://a/^(", "is no regular expression"),
    ],
)
def test_a_wrong_url_is_refused_and_its_credentials_are_not_shown(url: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        parse_url(url)
    assert "secret" not in str(refused.value)


def test_properties_on_which_correctness_rests_cannot_be_changed() -> None:
    assert client_properties("a", {"enable.auto.commit": "false"})["enable.auto.commit"] is False
    with pytest.raises(UsageError, match=r"source option enable\.auto\.commit = 'true': actorproc needs false"):
        client_properties("a", {"enable.auto.commit": "true"})

"""Coming to actorproc from consumers of another kind, showing them how far it is, and topics that are created again."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from actorproc import Processor, Settings
from actorproc.errors import EndNotReached, RecordsLost, SourceError, UsageError
from actorproc.testing.memory_source import MemorySource
from tests import servers
from tests.connectors.kafka.server import Broker
from tests.connectors.shared.azure_storage import BlobServer, azurite

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from actorproc.connectors.kafka import KafkaSource
from tests.connectors.kafka.topics import Rows, Topic, numbers, process

pytestmark = pytest.mark.servers


def commit(broker: Broker, group: str, *places: tuple[str, int, int]) -> None:
    """As a consumer of the group would."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": group})
    offsets = [TopicPartition(*place) for place in places]
    while True:
        try:
            consumer.commit(offsets=offsets, asynchronous=False)
            return consumer.close()
        except KafkaException as error:  # while the broker creates its topic of offsets
            if not error.args[0].retriable() and error.args[0].code() != KafkaError.NOT_COORDINATOR:
                raise
            time.sleep(0.2)


async def status(folder: Path, *arguments: str) -> Any:
    done = await run_status(folder, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def run_status(folder: Path, *arguments: str) -> Any:
    command = [sys.executable, "-m", "actorproc", "status", "--name", "Rows", "--container", str(folder), "--json"]
    return await anyio.run_process([*command, *arguments], check=False)


# Start from another consumer


async def test_a_processor_begins_where_a_consumer_group_is(broker: Broker, tmp_path: Path) -> None:
    topic = Topic(broker)
    topic.send(range(20))
    commit(broker, "billing", (topic.name, 0, 4))
    found = await process(KafkaSource(topic.url), tmp_path, start_from="kafka-group:billing", start="latest")
    assert found == list(range(8, 20, 2)), "partition 1 has no offset: it begins at `start`"
    commit(broker, "billing", (topic.name, 0, 0))
    topic.send(range(20, 24))
    found = await process(KafkaSource(topic.url), tmp_path, start_from="kafka-group:billing", start="latest")
    assert found == [*range(8, 20, 2), 20, 21, 22, 23], "later starts have checkpoints"


async def test_a_group_without_offsets_is_refused_at_the_first_start_only(broker: Broker, tmp_path: Path) -> None:
    topic = Topic(broker)
    topic.send(range(4))
    with pytest.raises(UsageError, match=r"start_from = 'kafka-group:bilking': it has no position in any partition"):
        await process(KafkaSource(topic.url), tmp_path, start_from="kafka-group:bilking")
    assert await process(KafkaSource(topic.url), tmp_path) == [0, 1, 2, 3]
    assert await process(KafkaSource(topic.url), tmp_path, start_from="kafka-group:bilking") == [0, 1, 2, 3]


async def test_an_unknown_kind_of_consumer_is_refused(broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"knows the positions of kafka-group:NAME and eventhubs-checkpoints:URL"):
        await process(KafkaSource(Topic(broker).url), tmp_path, start_from="group:x")
    with pytest.raises(UsageError, match=r"does not know the positions of other consumers"):
        await process(MemorySource(1), tmp_path, start_from="kafka-group:x")


@pytest.mark.slow
async def test_status_shows_where_each_partition_would_begin(broker: Broker, tmp_path: Path) -> None:
    topic = Topic(broker)
    topic.send(range(20))
    commit(broker, "billing", (topic.name, 0, 4))
    shown = await status(tmp_path, "--source", topic.url, "--start-from", "kafka-group:billing")
    assert [p["begins_at"].partition("@")[0] for p in shown["partitions"]] == ["4", "0"]
    assert [p["lag"] for p in shown["partitions"]] == [6, 10]
    assert list(tmp_path.iterdir()) == [], "a dry run writes nothing"
    mistyped = await run_status(tmp_path, "--source", topic.url, "--start-from", "kafka-group:bilking")
    assert mistyped.returncode == 2
    assert b"it has no position in any partition" in mistyped.stderr


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlobServer]:
    try:
        with azurite(tmp_path_factory.mktemp("azurite")) as server:
            yield server
    except servers.Unavailable as reason:
        if servers.REQUIRED:
            raise
        pytest.skip(str(reason))


@pytest.mark.slow
async def test_a_processor_begins_where_azures_event_processors_are(
    broker: Broker, blobs: BlobServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = pytest.importorskip("azure.eventhub.extensions.checkpointstoreblob")
    store = stores.BlobCheckpointStore.from_connection_string(blobs.connection_string, "checkpoints")
    container = store._container_client
    container.create_container()
    topic = Topic(broker, partitions=3)
    for partition in range(3):
        topic.send(range(100 * partition, 100 * partition + 5), partition)
    checkpoint = {"fully_qualified_namespace": "127.0.0.1", "eventhub_name": topic.name, "consumer_group": "$Default"}
    store.update_checkpoint(checkpoint | {"partition_id": "0", "offset": "88888", "sequence_number": 2})
    dot_net = {"sequencenumber": "3", "clientidentifier": "x"}  # newer SDKs of .NET leave the offset out
    container.upload_blob(f"127.0.0.1/{topic.name}/$default/checkpoint/1", b"", metadata=dot_net)

    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", blobs.connection_string)
    start_from = f"eventhubs-checkpoints:{blobs.endpoint}/devstoreaccount1/checkpoints"
    found = await process(KafkaSource(topic.url), tmp_path, start_from=start_from)
    assert found == [3, 4, 104, 200, 201, 202, 203, 204]

    pytest.importorskip("azure.eventhub")
    from actorproc.connectors.eventhubs import EventHubsSource

    by_amqp = EventHubsSource(f"eventhubs+amqp://127.0.0.1/{topic.name}")
    assert [await by_amqp.position_of(start_from, partition) for partition in "012"] == ["3", "4", None]

    container.upload_blob(f"127.0.0.1/{topic.name}/old/checkpoint/1", b"", metadata={"offset": "1"})
    with pytest.raises(SourceError, match=r"/old/checkpoint/1 has no sequencenumber in its metadata"):
        await process(KafkaSource(topic.url), tmp_path / "b", start_from=f"{start_from}?group=old")
    with pytest.raises(UsageError, match=r"it has no position in any partition"):
        await process(KafkaSource(topic.url), tmp_path / "c", start_from=f"{start_from}?group=none")
    with pytest.raises(SourceError, match=r"checkpoints at .*/none cannot be read: The specified container"):
        await process(KafkaSource(topic.url), tmp_path / "d", start_from=start_from.replace("/checkpoints", "/none"))


async def test_a_signature_in_the_url_of_checkpoints_is_refused_and_not_shown(broker: Broker, tmp_path: Path) -> None:
    url = "eventhubs-checkpoints:https://a.blob.core.windows.net/c?sv=1&sig=hidden"
    with pytest.raises(UsageError, match=r"Credentials come from AZURE_STORAGE_CONNECTION_STRING") as refused:
        await process(KafkaSource(Topic(broker).url), tmp_path, start_from=url)
    assert "hidden" not in str(refused.value)


# Mirrored offsets


async def test_a_group_shows_the_committed_offsets(broker: Broker, tmp_path: Path) -> None:
    topic = Topic(broker)
    topic.send(range(20))
    assert await process_mirrored(topic, tmp_path, "shown") == list(range(20))
    assert topic.committed("shown") == [10, 10]
    admin = AdminClient({"bootstrap.servers": broker.address})
    described = admin.describe_consumer_groups(["shown"])["shown"].result(30)
    assert (described.state.name, described.members) == ("EMPTY", [])


@pytest.mark.slow
async def test_a_mirror_that_fails_is_logged_and_nothing_else(broker: Broker, tmp_path: Path) -> None:
    topic = Topic(broker)
    topic.send(range(20))
    member = Consumer({"bootstrap.servers": broker.address, "group.id": "busy"})
    member.subscribe([topic.name])
    member.poll(10)
    with capture_logs() as logs:
        assert await process_mirrored(topic, tmp_path, "busy") == list(range(20))
    [failed] = [event for event in logs if event["event"] == "mirror.failed"]
    assert "asked to commit for group busy" in failed["error"]
    assert failed["log_level"] == "warning"
    member.close()


async def test_a_source_without_groups_has_no_mirror(tmp_path: Path) -> None:
    processor = Processor(Rows, source=MemorySource(1), container=str(tmp_path), mirror_offsets="g")
    with pytest.raises(UsageError, match=r"mirror_offsets = 'g': .* has no consumer groups"):
        await processor.run(until_end=True)


async def process_mirrored(topic: Topic, container: Path, group: str) -> list[int]:
    settings = Settings(mirror_offsets=group)
    processor = Processor(Rows, source=KafkaSource(topic.url), container=str(container), settings=settings)
    await processor.run(until_end=True)
    return numbers(container)


# Lag


async def test_status_shows_the_lag_in_records_and_in_seconds(broker: Broker, tmp_path: Path) -> None:
    topic = Topic(broker)
    topic.send(range(10))
    await process(KafkaSource(topic.url), tmp_path)
    an_hour_ago = 1000 * int(time.time() - 3_600)
    topic.send(range(3), 0, timestamp=an_hour_ago)
    shown = await status(tmp_path, "--source", topic.url)
    assert [p["lag"] for p in shown["partitions"]] == [3, 0]
    assert [round(p["lag_seconds"] / 3_600, 1) for p in shown["partitions"]] == [1.0, 0.0]
    assert shown["lag_seconds"] == shown["partitions"][0]["lag_seconds"]


# A topic that is created again


async def test_a_topic_that_was_created_again_is_not_read_with_old_offsets(broker: Broker, tmp_path: Path) -> None:
    topic = Topic(broker, partitions=1)
    topic.send(range(5), 0)
    await process(KafkaSource(topic.url), tmp_path)
    topic.create_again()
    topic.send(range(100, 120), 0)
    with pytest.raises(EndNotReached, match=r"was deleted and created again .*Give the processor another name"):
        await process(KafkaSource(topic.url), tmp_path, restart_backoff=0.01)
    assert numbers(tmp_path) == list(range(5))


async def test_a_topic_recreated_while_it_is_read_stops_its_partitions(broker: Broker) -> None:
    topic = Topic(broker, partitions=1)
    topic.send(range(5), 0)
    source = KafkaSource(topic.url)
    await source.open()
    [partition] = await source.partitions()
    reading = source.read(partition, await source.start(partition, "earliest"))
    assert len((await anext(reading)).batch) == 5
    topic.create_again()
    await source.partitions()
    with pytest.raises(RecordsLost, match=r"was deleted and created again"), anyio.fail_after(30):
        while True:
            await anext(reading)
    await source.close()


@pytest.mark.parametrize("by_pattern", [False, True])
async def test_a_topic_that_is_deleted_while_it_is_read_stops_its_partitions(broker: Broker, by_pattern: bool) -> None:
    topic = Topic(broker, partitions=1)
    topic.send(range(5), 0)
    source = KafkaSource(topic.url.replace(topic.name, f"^{topic.name}$") if by_pattern else topic.url)
    await source.open()
    [partition] = await source.partitions()
    reading = source.read(partition, await source.start(partition, "earliest"))
    assert len((await anext(reading)).batch) == 5
    topic.delete()
    with suppress(SourceError):
        await source.partitions()
    with pytest.raises(SourceError, match=r"was deleted|Unknown topic"), anyio.fail_after(30):
        while True:
            await anext(reading)
    await source.close()


@pytest.mark.parametrize("policy", ["earliest", "latest"])
async def test_an_offset_beyond_the_end_is_never_passed_over(broker: Broker, policy: Any) -> None:
    topic = Topic(broker, partitions=1)
    topic.send(range(5), 0)
    source = KafkaSource(topic.url, settings=Settings(on_out_of_range=policy))
    await source.open()
    with pytest.raises(RecordsLost, match=r"offset 9 lies beyond the end 5"):
        await anext(source.read(f"{topic.name}-0", "9"))
    await source.close()


class NoIds:
    """Replaces the admin client: a broker or service that gives topics no ids."""

    def __init__(self, _: Any) -> None:
        pass

    def describe_topics(self, topics: Any, **_: Any) -> dict[str, Future[Any]]:
        answer: Future[Any] = Future()
        answer.set_exception(KafkaException(KafkaError(KafkaError._UNSUPPORTED_FEATURE)))
        return dict.fromkeys(topics.topic_names, answer)


@pytest.mark.slow
async def test_positions_without_a_topic_id_are_read_on(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(broker)
    topic.send(range(10))
    with monkeypatch.context() as patch:
        patch.setattr("actorproc.connectors.kafka.brokers.AdminClient", NoIds)
        assert await process(KafkaSource(topic.url), tmp_path) == list(range(10))
        assert [p["position"] for p in (await status(tmp_path))["partitions"]] == ["5", "5"]
    topic.send(range(10, 20))
    assert await process(KafkaSource(topic.url), tmp_path) == list(range(20))
    assert all(p["position"].startswith("10@") for p in (await status(tmp_path))["partitions"])

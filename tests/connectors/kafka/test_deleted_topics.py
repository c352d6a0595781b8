"""A topic that is deleted: its partitions vanish, and the hosts go on with the other topics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog

from actorproc import Processor, Settings
from actorproc.errors import EndNotReached, SourceError
from actorproc.group.membership import read_group
from actorproc.server.health import problems
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store
from tests.connectors.kafka.server import Broker

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from confluent_kafka.cimpl import NewTopic

from actorproc.connectors.kafka import KafkaSource, source
from tests.connectors.kafka.topics import Rows, Topic, numbers, process

pytestmark = pytest.mark.servers

QUICK: dict[str, Any] = {
    "partition_refresh_interval": 0.2, "lease_acquire_interval": 0.3,
    "restart_backoff": 0.05, "restart_backoff_max": 0.2,
}  # fmt: skip


@pytest.fixture(autouse=True)
def asked_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_ASKED_AFTER", 0.05)


def url_of(*topics: Topic) -> str:
    return f"{topics[0].url.rpartition('/')[0]}/{','.join(topic.name for topic in topics)}"


@asynccontextmanager
async def running(url: str, container: Path, **more: Any) -> AsyncIterator[Processor]:
    processor = Processor(Rows, source=KafkaSource(url), container=str(container), **(QUICK | more))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(processor.run)
        yield processor
        processor.stop()


async def eventually(check: Callable[[], Awaitable[bool]]) -> None:
    with anyio.fail_after(30):
        while not await check():
            await anyio.sleep(0.05)


async def vanished(container: Path) -> set[str]:
    async with open_store(str(container), Settings()) as store:
        group = await read_group(store, ProcessorLayout("Rows"))
    return set(group.vanished) if group else set()


async def has(container: Path, wanted: list[int]) -> bool:
    return (container / "Rows" / "output").exists() and numbers(container) == wanted


def is_ready(processor: Processor) -> bool:
    return not problems(processor.statistics(), now=processor.clock.wall(), max_process_time=60)


@pytest.mark.parametrize("others", [0, pytest.param(1, marks=pytest.mark.slow)])
async def test_the_partitions_of_a_deleted_topic_vanish_and_hosts_stay_ready(
    broker: Broker, tmp_path: Path, others: int
) -> None:
    gone, *rest = topics = [Topic(broker) for _ in range(1 + others)]
    url, names = url_of(*topics), {f"{gone.name}-0", f"{gone.name}-1"}
    for topic in topics:
        topic.send(range(10))

    async def has_vanished() -> bool:
        return await vanished(tmp_path) == names and is_ready(processor)

    with structlog.testing.capture_logs() as logs:
        async with running(url, tmp_path) as processor:
            await eventually(lambda: has(tmp_path, sorted([*range(10)] * len(topics))))
            gone.delete()
            await eventually(has_vanished)
    assert {line["partition"] for line in logs if line["event"] == "partition.vanished"} == names
    assert [line["topic"] for line in logs if line["event"] == "kafka.topic_missing"] == [gone.name]

    async def is_ready_again() -> bool:
        return bool(processor.statistics().members) and is_ready(processor)

    async with running(url, tmp_path) as processor:  # a restart, as in a rollout
        await eventually(is_ready_again)
        for topic in rest:
            topic.send(range(10, 20))
    assert await process(KafkaSource(url), tmp_path) == sorted([*range(10)] * len(topics) + [*range(10, 20)] * others)


async def test_a_topic_that_is_deleted_while_no_host_runs_vanishes_at_the_next_start(
    broker: Broker, tmp_path: Path
) -> None:
    topic = Topic(broker)
    topic.send(range(10))
    assert await process(KafkaSource(topic.url), tmp_path) == [*range(10)]
    topic.delete()

    async def has_vanished() -> bool:
        return len(await vanished(tmp_path)) == 2 and is_ready(processor)

    async with running(topic.url, tmp_path) as processor:
        await eventually(has_vanished)
    assert await process(KafkaSource(topic.url), tmp_path) == [*range(10)]


async def test_a_new_processor_waits_for_a_topic_that_is_missing(broker: Broker, tmp_path: Path) -> None:
    topic = Topic(broker)
    topic.send(range(10))
    topic.delete()

    async def says_so() -> bool:
        return "the brokers know no topic" in str(processor.statistics().error)

    async with running(topic.url, tmp_path) as processor:
        await eventually(says_so)
        assert not is_ready(processor)
        topic.create(NewTopic(topic.name, 2, 1))
        topic.send(range(20, 30))
        await eventually(lambda: has(tmp_path, [*range(20, 30)]))


async def test_a_run_until_the_end_names_a_topic_that_is_missing(broker: Broker, tmp_path: Path) -> None:
    source = KafkaSource(f"kafka://{broker.address}/mistyped")
    with pytest.raises(SourceError, match=r"know no topic mistyped"):
        await process(source, tmp_path, restart_backoff=0.01, restart_backoff_max=0.01)


@pytest.mark.slow
async def test_a_topic_that_comes_back_under_its_name_is_not_read_on(broker: Broker, tmp_path: Path) -> None:
    topic, other = Topic(broker), Topic(broker)
    topic.send(range(10))

    async def has_vanished() -> bool:
        return len(await vanished(tmp_path)) == 2

    async def is_refused() -> bool:
        errors = [partition.error for partition in processor.statistics().partitions if partition.error]
        return len(errors) == 2 and all("was deleted and created again" in error for error in errors)

    async with running(url_of(topic, other), tmp_path) as processor:
        await eventually(lambda: has(tmp_path, [*range(10)]))
        topic.delete()
        await eventually(has_vanished)
        topic.create(NewTopic(topic.name, 2, 1))
        topic.send(range(100, 120))
        await eventually(is_refused)
    assert numbers(tmp_path) == [*range(10)]
    with pytest.raises(EndNotReached, match=r"was deleted and created again"):
        await process(KafkaSource(url_of(topic, other)), tmp_path, restart_backoff=0.01)


async def test_a_broker_that_knows_no_topic_for_a_moment_loses_none(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(broker)
    opened = KafkaSource(topic.url)
    await opened.open()
    listed, answers = opened._brokers._list_topics, [True, True]

    def forgetful(known: Any) -> dict[str, Any]:
        if not answers:
            return listed(known)
        answers.pop()
        return {topic.name: opened._brokers._client.list_topics(f"{topic.name}-other", timeout=10).topics.popitem()[1]}

    monkeypatch.setattr(opened._brokers, "_list_topics", forgetful)
    assert len(await opened.partitions()) == 2
    assert not answers
    await opened.close()


async def test_a_topic_of_a_pattern_is_missed_only_if_the_brokers_say_so_by_name(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full list leaves out topics that the login may not see."""
    topic = Topic(broker)
    opened = KafkaSource(f"kafka://{broker.address}/^{topic.name}$")
    await opened.open()
    assert len(await opened.partitions()) == 2
    ask = opened._brokers._client.list_topics

    class Client:
        def list_topics(self, name: str | None = None, timeout: float = 10) -> Any:
            found = ask(timeout=timeout) if name is None else ask(name, timeout=timeout)
            if name is None:
                found.topics.clear()
            return found

        def __getattr__(self, name: str) -> Any:
            return getattr(opened._consumer.client, name)

    monkeypatch.setattr(opened._brokers, "_client", Client())
    assert len(await opened.partitions()) == 2
    topic.delete()
    assert await opened.partitions() == []
    await opened.close()

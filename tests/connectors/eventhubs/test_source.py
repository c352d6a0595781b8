"""A hub of Event Hubs over AMQP as a source: the official client, unmodified, on a server of the tests."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any, cast

import anyio
import orjson
import pytest

from actorproc import JsonRows, PartitionContext, PartitionHandler, Processor, Settings
from actorproc.admin.dead_letters import DeadLetters, Selection
from actorproc.errors import RecordsLost, SourceError, UsageError
from actorproc.output.letter import HISTORY
from actorproc.records import Batch
from actorproc.runtime.budget import ByteBudget, ReadBudget
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store
from actorproc.testing import check_source

pytest.importorskip("azure.eventhub", reason="azure-eventhub is not installed")

from azure.eventhub import EventData
from azure.eventhub._pyamqp.message import Message
from azure.eventhub.aio import EventHubProducerClient

from actorproc.connectors.eventhubs import EventHubsSource
from actorproc.connectors.eventhubs.receiver import Receiver
from tests.connectors.eventhubs import server as eventhubs_server
from tests.connectors.eventhubs.server import Event, EventHubsServer, Partition, eventhubs
from tests.connectors.kafka.topics import numbers, process
from tests.partition.test_refused_records import reasons

pytestmark = [  # the client leaves the sockets of lost connections to the garbage collector
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

_NUMBERS = count()
LIST_AS_KEY = {"TYPE": "MAP", "VALUE": [([1], 2)]}
"""A map as the client's encoder expects it."""


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """The sockets that the client leaves are collected here, where they are ignored, and not in a later test."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def server() -> Iterator[EventHubsServer]:
    with eventhubs() as server:
        yield server


class Hub:
    """A new hub, to which the official client sends."""

    def __init__(self, server: EventHubsServer, partitions: int = 2) -> None:
        self.server, self.name = server, f"hub-{next(_NUMBERS)}"
        self.url = server.url(self.name)
        self.of = server.create(self.name, partitions)

    def send(self, numbers: range, partition: int | None = None, *, wrong_each: int = sys.maxsize) -> None:
        """Events `{"n": 1}`, by default to partitions 0 and 1 in turn. Not through a client, which takes a second.

        Args:
            wrong_each: one event in `wrong_each` is text, which fits no row.
        """
        for n in numbers:
            message = Message(data=[orjson.dumps({"n": f"not {n}" if (n + 1) % wrong_each == 0 else n})])
            chosen = self.of.partitions[n % 2 if partition is None else partition]
            self.server.call(chosen.append, [message], None)

    async def send_events(self, events: list[Any], **how: Any) -> None:
        string = self.server.connection_string
        async with EventHubProducerClient.from_connection_string(string, eventhub_name=self.name) as producer:
            await producer.send_batch(events, **how)


@pytest.fixture
def hub(server: EventHubsServer, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setenv("EVENTHUBS_CONNECTION_STRING", server.connection_string)
    return Hub(server)


@asynccontextmanager
async def opened(hub: Hub, **settings: Any) -> AsyncIterator[EventHubsSource]:
    source = EventHubsSource(hub.url, settings=Settings(**settings))
    await source.open()
    try:
        yield source
    finally:
        await source.close()


async def sequences(source: EventHubsSource, position: str, last: int, epoch: int | None = None) -> list[int]:
    """Of partition 0, from a position to the event of this sequence number."""
    found: list[int] = []
    with anyio.fail_after(30):
        async for chunk in source.read_within("0", position, ReadBudget(ByteBudget(2**30), epoch)):
            found += chunk.batch.sequences
            if found and found[-1] >= last:
                break
    return found


@pytest.mark.slow
async def test_each_event_becomes_one_row_also_after_a_restart(hub: Hub, tmp_path: Path) -> None:
    hub.send(range(600))
    assert await process(EventHubsSource(hub.url), tmp_path) == list(range(600))
    hub.send(range(600, 700))
    assert await process(EventHubsSource(hub.url), tmp_path) == list(range(700))


@pytest.mark.long
async def test_a_hub_keeps_the_contract_of_a_source(hub: Hub) -> None:
    hub.send(range(20))

    async def add() -> None:
        hub.send(range(20, 21))

    await check_source(lambda: EventHubsSource(hub.url), add=add)


class Refuses(PartitionHandler):
    """Gives up every record that was not replayed."""

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            if not any(name.startswith(HISTORY) for name, _ in record.headers):
                ctx.dead_letter(record, "refused")


@pytest.mark.slow
async def test_letters_are_replayed_to_their_partition_with_key_and_headers(hub: Hub, tmp_path: Path) -> None:
    keyed = EventData(b"\xffvalue")
    keyed.properties = {"a": "1", "raw": b"\xfe"}
    await hub.send_events([keyed], partition_key="plane")
    hub.send(range(600), partition=1)
    processor = Processor(Refuses, source=EventHubsSource(hub.url), container=str(tmp_path), dead_letter_limit=1)
    await processor.run(until_end=True)
    async with open_store(str(tmp_path), Settings()) as store:
        letters = await DeadLetters.opened(store, ProcessorLayout("Refuses"))
        assert (await letters.replay(Selection(), Settings()))[:3] == (hub.url, 601, 0)
        assert (await letters.replay(Selection(), Settings()))[:3] == (hub.url, 0, 601)
    [copy] = [copy for partition in hub.of.partitions for copy in replayed(partition) if copy.key is not None]
    headers = properties(copy)
    assert (copy.key, body(copy), headers["a"], headers["raw"]) == ("plane", b"\xffvalue", b"1", b"\xfe")
    values = [body(copy) for copy in replayed(hub.of.partitions[1]) if copy.key is None]
    assert values == [b'{"n":%d}' % n for n in range(600)]


async def test_events_that_a_hub_does_not_take_are_refused_alone(hub: Hub) -> None:
    large, keys = bytes(2**20), [None, None, None, b"a", b"a", b"b"]
    records = Batch.of("1", [b"0", large, b"2", large, b"4", large], range(6), keys=keys)
    async with opened(hub) as source:
        refused = await source.append("1", records, "replay-1")
    assert sorted(refused) == [1, 3, 5]
    assert all("size limit" in reason for reason in refused.values())
    assert sorted(body(event) for partition in hub.of.partitions for event in partition.events) == [b"0", b"2", b"4"]


async def test_an_event_that_the_service_rejects_is_refused_alone(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The link allows more than the service takes."""
    monkeypatch.setattr(eventhubs_server, "MESSAGE_BYTES_TAKEN", 1_000)
    records = Batch.of("1", [b"0", b"x" * 2_000, b"2"], range(3))
    async with opened(hub) as source:
        refused = await source.append("1", records, "replay-1")
    assert list(refused) == [1]
    assert "too large" in refused[1]
    assert [body(event) for event in hub.of.partitions[1].events] == [b"0", b"2"]


def replayed(partition: Partition) -> list[Event]:
    return [event for event in partition.events if any(name.startswith(HISTORY) for name in properties(event))]


def properties(event: Event) -> dict[str, Any]:
    found: dict[Any, Any] = event.message.application_properties or {}
    return {name.decode(): value for name, value in found.items()}


def body(event: Event) -> bytes:
    data: Any = event.message.data
    return b"".join(data)


async def test_key_body_properties_and_time_become_a_record(hub: Hub) -> None:
    event = EventData(b"\x00body")
    event.properties = {"text": "a", "number": 5, "bytes": b"\xff"}
    event.content_type = "application/json"
    await hub.send_events([event], partition_key="plane")
    [number] = [n for n, partition in enumerate(hub.of.partitions) if partition.events]
    async with opened(hub) as source:
        batch = await first_batch(source, str(number))
    record = batch[0]
    assert (record.key, record.value) == (b"plane", b"\x00body")
    assert dict(record.headers) == {
        "text": b"a", "number": b"5", "bytes": b"\xff", "content-type": b"application/json"
    }  # fmt: skip
    assert record.timestamp is not None
    assert abs(record.timestamp - datetime.now(UTC)) < timedelta(minutes=1)


async def first_batch(source: EventHubsSource, partition: str) -> Batch:
    async for chunk in source.read(partition, "0"):
        if len(chunk.batch):
            return chunk.batch
    raise AssertionError


async def test_partitions_that_are_opened_together_share_the_question_about_their_hub(hub: Hub) -> None:
    hub = Hub(hub.server, partitions=4)
    for partition in range(4):
        hub.send(range(1), partition)
    async with opened(hub) as source:
        hub.server.asked.clear()
        await asyncio.gather(*(first_batch(source, partition) for partition in await source.partitions()))
    assert hub.server.asked["com.microsoft:partition"] == 4
    assert hub.server.asked["com.microsoft:eventhub"] <= 1 + 4  # the client itself asks for each reader


async def test_a_time_begins_at_its_first_event(hub: Hub) -> None:
    hub.send(range(5), 0)
    await anyio.sleep(0.01)
    middle = datetime.now(UTC)
    await anyio.sleep(0.01)
    hub.send(range(5, 9), 0)
    async with opened(hub) as source:
        assert await source.start("0", middle) == "5"
        assert await source.start("0", datetime.now(UTC) + timedelta(days=1)) == "9"
        assert await source.start("1", middle) == "0"


@pytest.mark.slow
async def test_a_detached_link_is_attached_again_and_repeats_nothing(hub: Hub) -> None:
    hub.send(range(1_000), 0)
    async with opened(hub) as source:
        reading = source.read("0", "0")
        found = (await anext(reading)).batch.sequences
        hub.server.detach(hub.of, b"amqp:link:detach-forced", "The link is force detached.")
        hub.send(range(1_000, 1_010), 0)
        with anyio.fail_after(30):
            while not found or found[-1] < 1_009:
                found += (await anext(reading)).batch.sequences
        await reading.aclose()
    assert found == list(range(1_010))


async def test_a_lost_connection_is_made_anew(hub: Hub) -> None:
    hub.send(range(10), 0)
    async with opened(hub) as source:
        reading = source.read("0", "0")
        found = (await anext(reading)).batch.sequences
        hub.server.disconnect()
        hub.send(range(10, 20), 0)
        with anyio.fail_after(30):
            while found[-1] < 19:
                found += (await anext(reading)).batch.sequences
        await reading.aclose()
    assert found == list(range(20))


async def test_events_that_the_client_cannot_decode_are_decoded_or_refused_alone(hub: Hub) -> None:
    """Its own encoder writes decimals that its decoder fails at. A list is no key of a dict."""
    hub.send(range(2), 0)
    properties: list[dict[Any, Any]] = [{"a": Decimal("-1234567890.50"), "b": "c"}, {"m": LIST_AS_KEY}]
    odd = [Message(data=[b"x", b"y"], application_properties=one) for one in properties]
    hub.server.call(hub.of.partitions[0].append, odd, "plane")
    hub.send(range(2, 4), 0)
    async with opened(hub) as source:
        batches = list[Batch]()
        async for chunk in source.read("0", "0"):
            batches.append(chunk.batch)
            if sum(map(len, batches)) >= 6:
                break
    batch = Batch.joined(batches)
    assert batch.sequences == list(range(6))
    assert reasons(batch) == [
        *[None] * 3,
        "property 'm' cannot be read: a map has a key of type list, and keys of JSON are text",
        None,
        None,
    ]
    assert (batch.values[2:4], batch.keys[2:4]) == ([b"xy"] * 2, [b"plane"] * 2)
    assert dict(batch.headers[2]) == {"a": b'"-1234567890.50"', "b": b"c"}
    assert None not in batch.timestamps


async def test_the_service_cuts_off_the_reader_of_an_earlier_epoch(hub: Hub) -> None:
    hub.send(range(10), 0)
    async with opened(hub) as source:
        earlier = source.read_within("0", "0", ReadBudget(ByteBudget(2**30), 3))
        await anext(earlier)
        assert await sequences(source, "0", 9, epoch=4) == list(range(10))
        with pytest.raises(SourceError, match="another reader has a higher epoch"), anyio.fail_after(30):
            while True:
                await anext(earlier)


@pytest.mark.slow
async def test_readers_without_epochs_share_a_partition(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.send(range(10), 0)
    source = EventHubsSource(hub.url, {"exclusive": False})
    await source.open()
    readers = [source.read_within("0", "0", ReadBudget(ByteBudget(2**30), epoch)) for epoch in (4, 3)]
    for reader in readers:
        assert (await anext(reader)).batch.sequences == list(range(10))
        assert not len((await anext(reader)).batch)
    assert {link.epoch for link in hub.of.partitions[0].readers} == {None}
    for reader in readers:
        await reader.aclose()
    await source.close()


async def test_events_that_retention_removed_stop_the_partition(hub: Hub) -> None:
    hub.send(range(10), 0)
    hub.server.call(hub.of.partitions[0].remove_before, 6)
    async with opened(hub) as source:
        assert await source.start("0", "earliest") == "6"
        with pytest.raises(RecordsLost, match=r"3 events before sequence number 6 were removed"):
            await sequences(source, "3", 9)
    async with opened(hub, on_out_of_range="earliest") as source:
        assert await sequences(source, "3", 9) == [6, 7, 8, 9]


async def test_a_hub_that_was_created_again_is_not_read_on(hub: Hub) -> None:
    hub.send(range(10), 0)
    async with opened(hub) as source:
        reading = source.read("0", "0")
        await anext(reading)
        await anyio.sleep(0.01)
        hub.of = hub.server.create(hub.name, 2)
        hub.send(range(100, 130), 0)
        with pytest.raises(SourceError, match=r"no such hub|created again"), anyio.fail_after(30):
            while True:
                await anext(reading)
        with pytest.raises(RecordsLost, match="was deleted and created again"):
            await anext(source.read("0", "10"))


@pytest.mark.slow
async def test_a_rotated_key_is_read_from_its_file(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.send(range(10), 0)
    monkeypatch.delenv("EVENTHUBS_CONNECTION_STRING")
    secret = tmp_path / "secret"
    secret.write_text(hub.server.connection_string)
    source = EventHubsSource(hub.url, {"connection_string": f"@{secret}"})
    await source.open()
    monkeypatch.setattr(hub.server, "key", "another")
    with pytest.raises(SourceError, match="the login was refused"):
        await sequences(source, "0", 9)
    secret.write_text(hub.server.connection_string)
    assert await sequences(source, "0", 9) == list(range(10))
    await source.close()


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("eventhubs+amqp://ns", {}, r"write eventhubs\+amqp://NAMESPACE/HUB\[\?group=NAME\]"),
        ("eventhubs+amqp://ns/hub?grp=x", {}, r"write eventhubs\+amqp"),
        ("eventhubs+amqp://me:secret@ns/hub", {}, r"no credentials in a URL"),
        ("eventhubs+amqp://ns/hub", {"prefetch": 0}, r"source option prefetch = 0: must be greater than or equal to 1"),
        ("eventhubs+amqp://ns/hub", {"prefech": 5}, r"prefech"),
    ],
)
def test_wrong_urls_and_options_are_refused(url: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        EventHubsSource(url, options)
    assert "secret" not in str(refused.value)


async def test_a_service_that_never_answers_is_given_up_in_time() -> None:
    silent = await asyncio.start_server(lambda reader, writer: asyncio.sleep(60), "127.0.0.1")
    place = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    login = f"Endpoint=sb://{place};SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true"
    source = EventHubsSource(
        f"eventhubs+amqp://{place}/hub", {"connection_string": login}, settings=Settings(store_patience=0.3)
    )
    with anyio.fail_after(10), pytest.raises(SourceError, match=r"has not answered within 0.3 s \(store_patience\)"):
        await source.open()
    await source.close()
    silent.close()


async def test_a_connection_string_of_another_namespace_is_refused(hub: Hub) -> None:
    with pytest.raises(UsageError, match=r"of the namespace 127\.0\.0\.1:\d+, and the URL names other\.servicebus"):
        await EventHubsSource("eventhubs+amqp://other/hub").open()


async def test_a_missing_hub_is_named(hub: Hub) -> None:
    with pytest.raises(SourceError, match=r"127\.0\.0\.1:\d+/none"):
        await EventHubsSource(hub.server.url("none")).open()


async def test_leaving_a_reader_does_not_wait_for_its_connection(hub: Hub) -> None:
    hub.send(range(10), 0)
    async with opened(hub) as source:
        reading = source.read("0", "0")
        await anext(reading)
        before = asyncio.get_running_loop().time()
        await reading.aclose()
        assert asyncio.get_running_loop().time() - before < 0.5
    assert not hub.of.partitions[0].readers


async def test_events_of_a_backlog_are_gathered_and_pause_the_client() -> None:
    handed: list[int] = []

    class Client:
        async def __aenter__(self) -> None: ...
        async def __aexit__(self, *_: object) -> None: ...
        async def receive_batch(self, on_event_batch: Any, **_: Any) -> None:
            for n in range(6):
                handed.append(n)
                await on_event_batch(None, [n, n])
            raise ConnectionError("lost")

    receiver, client = Receiver(8), cast(Any, Client())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receiver.run, client, 0)
        await anyio.wait_all_tasks_blocked()
        assert handed == [0, 1, 2, 3]
        assert await receiver.next(5, least=8) == cast(Any, [0, 0, 1, 1, 2, 2, 3, 3])
        assert await receiver.next(5, least=8) == cast(Any, [4, 4, 5, 5]), "all before the error"
        with pytest.raises(ConnectionError):
            await receiver.next(5)


class Rows(JsonRows):
    output_schema = "n bigint"


@pytest.mark.long
def test_hosts_that_are_killed_or_paused_lose_and_repeat_nothing(hub: Hub, tmp_path: Path) -> None:
    hosts = [start_host(hub, tmp_path) for _ in range(2)]
    try:
        for turn in range(4):
            hub.send(range(500 * turn, 500 * turn + 500), wrong_each=100)
            wait_for(tmp_path, 500 * turn + 250)
            os.kill(hosts[0].pid, signal.SIGKILL)
            os.kill(hosts[1].pid, signal.SIGSTOP)  # for longer than its leases last
            hosts[0].wait()
            hosts = [*hosts[1:], start_host(hub, tmp_path)]
            wait_for(tmp_path, 500 * turn + 400)
            os.kill(hosts[0].pid, signal.SIGCONT)
        wait_for(tmp_path, 2_000)
    finally:
        for host in hosts:
            os.kill(host.pid, signal.SIGCONT)
            host.terminate()
            host.wait(60)
    assert results(tmp_path) == list(range(2_000))
    assert len(numbers(tmp_path)) == 1_980


def start_host(hub: Hub, folder: Path) -> subprocess.Popen[bytes]:
    fast = {
        "lease_renew_interval": 0.3, "lease_expiration_interval": 2, "lease_acquire_interval": 0.5,
        "rebalance_delay": 0.5, "commit_interval": 0.2,
    }  # fmt: skip
    settings = {f"ACTORPROC_{name.upper()}": str(value) for name, value in fast.items()}
    arguments = ["--source", hub.url, "--container", str(folder), "--name", "Rows"]
    with (folder / "hosts.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "actorproc", "serve", "tests.connectors.eventhubs.test_source:Rows", *arguments],
            env=os.environ | settings,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )


def results(folder: Path) -> list[int]:
    """Of rows and dead letters."""
    files = (folder / "Rows" / "dead-letters").glob("*/*.jsonl")
    letters = [orjson.loads(line) for file in files for line in file.read_bytes().splitlines()]
    return sorted(numbers(folder) + [int(orjson.loads(letter["value"])["n"].split()[1]) for letter in letters])


def wait_for(folder: Path, count: int, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not (folder / "Rows" / "output").exists() or len(results(folder)) < count:
        assert time.monotonic() < end
        time.sleep(0.2)

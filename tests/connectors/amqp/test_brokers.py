"""Queues of real AMQP 1.0 brokers as a source: each message has one row, despite faults of host, network and broker."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import anyio
import orjson
import pytest
from pyarrow.dataset import dataset

from actorproc import JsonRows, PartitionContext, PartitionHandler, Processor, Settings
from actorproc.admin.dead_letters import DeadLetters, Selection
from actorproc.errors import UsageError
from actorproc.output.letter import HISTORY
from actorproc.records import Batch
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store
from actorproc.testing import check_source
from tests.connectors.amqp.servers import PASSWORD, USER, AmqpBroker
from tests.partition.test_refused_records import reasons

pytest.importorskip("proton", reason="python-qpid-proton is not installed")

from proton import Message

from actorproc.connectors.amqp import AmqpSource
from actorproc.connectors.amqp.source import QUIET

pytestmark = pytest.mark.servers

RECOGNIZED = (
    "by which the message would be recognized when it comes again: let its sender set one, or say with the source "
    "option identity what names a message"
)
_NUMBERS = count()
QUICK: dict[str, Any] = {
    "max_unacknowledged": 40, "commit_interval": 0.2, "lease_renew_interval": 0.5, "lease_acquire_interval": 0.7,
    "lease_expiration_interval": 3, "restart_backoff": 0.1, "restart_backoff_max": 1, "rebalance_delay": 0.2,
}  # fmt: skip


class Rows(JsonRows):
    output_schema = "n bigint"


class Queue:
    """A new queue. Artemis parks a second consumer (`parked`), or refuses it (`single`); Broker-J refuses it."""

    def __init__(self, broker: AmqpBroker, kind: str = "single") -> None:
        self.broker = broker
        self.name = f"{kind}.{next(_NUMBERS)}"
        self.sent = 0

    def send(self, number: int) -> None:
        self.broker.send(self.name, [b'{"n": %d}' % n for n in range(self.sent, self.sent + number)])
        self.sent += number

    def source(self, port: int | None = None, **options: Any) -> AmqpSource:
        url = self.broker.url(self.name).replace(f":{self.broker.port}/", f":{port or self.broker.port}/")
        return AmqpSource(url, {**self.broker.options, **options})


_SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("artemis-parked", "broker_j")]


@pytest.fixture(params=["artemis-single", *_SLOW])
def queue(request: pytest.FixtureRequest) -> Queue:
    broker, _, kind = request.param.partition("-")
    return Queue(request.getfixturevalue(broker), kind or "single")


def processor(source: AmqpSource, container: Path, **settings: Any) -> Processor:
    return Processor(Rows, source=source, container=str(container), **{**QUICK, **settings})


async def work(queue: Queue, container: Path) -> None:
    await processor(queue.source(), container).run(until_end=True)


@asynccontextmanager
async def hosting(*hosts: Processor) -> AsyncIterator[None]:
    """Run hosts until the block ends, and stop them."""
    async with anyio.create_task_group() as tasks:
        for host in hosts:
            tasks.start_soon(host.run)
        yield
        for host in hosts:
            host.stop()


def rows(container: Path) -> list[tuple[int, int]]:
    """(sequence, n) of all rows, in the order of the commits."""
    files = sorted((container / "Rows" / "output").glob("*/*.parquet"))
    tables = [dataset(file, format="parquet").to_table() for file in files]
    return [pair for t in tables for pair in zip(t["_sequence"].to_pylist(), t["n"].to_pylist(), strict=True)]


async def until_rows(container: Path, number: int) -> None:
    with anyio.fail_after(60):
        while len(rows(container)) < number:
            await anyio.sleep(0.05)


def check(queue: Queue, container: Path) -> None:
    assert rows(container) == [(n, n) for n in range(queue.sent)]


async def test_each_message_becomes_one_row_also_in_later_runs(queue: Queue, tmp_path: Path) -> None:
    for number in (300, 50):
        queue.send(number)
        await work(queue, tmp_path)
        check(queue, tmp_path)
    queue.send(1)
    async with queue.source().consume(queue.name, 10) as consumer:  # all others were acknowledged
        assert [record.value for record in (await consumer.receive()).batch] == [b'{"n": 350}']


async def test_a_killed_host_repeats_no_message(queue: Queue, tmp_path: Path) -> None:
    queue.send(400)
    with _serving(queue, tmp_path) as host:
        await until_rows(tmp_path, 30)
        host.send_signal(signal.SIGKILL)
        host.wait()
    await work(queue, tmp_path)
    check(queue, tmp_path)


@pytest.mark.long
async def test_a_stopped_host_is_replaced_and_repeats_nothing_when_it_goes_on(
    artemis: AmqpBroker, tmp_path: Path
) -> None:
    queue = Queue(artemis, "parked")
    queue.send(400)
    with _serving(queue, tmp_path) as host:
        await until_rows(tmp_path, 30)
        host.send_signal(signal.SIGSTOP)
        async with hosting(processor(queue.source(), tmp_path)):
            await until_rows(tmp_path, 400)
            host.send_signal(signal.SIGCONT)
            await anyio.sleep(2)
    check(queue, tmp_path)


@pytest.mark.slow
async def test_lost_connections_and_acknowledgements_repeat_nothing(queue: Queue, tmp_path: Path) -> None:
    """A proxy holds back the host's data for a while, acknowledgements too, and then cuts the connection."""
    queue.send(1000)
    pick = Random(1)
    async with _proxy(queue.broker.port) as proxy, hosting(processor(queue.source(proxy.port), tmp_path)):
        while len(rows(tmp_path)) < 1000:
            await anyio.sleep(pick.uniform(0.05, 0.5))
            proxy.mute()
            await anyio.sleep(pick.uniform(0, 0.3))
            proxy.cut()
    check(queue, tmp_path)


async def test_a_second_host_gets_a_queue_by_handoff(queue: Queue, tmp_path: Path) -> None:
    queue.send(200)
    first, second = (processor(queue.source(), tmp_path, host=name) for name in ("a", "b"))
    async with hosting(first):
        await until_rows(tmp_path, 200)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(second.run)
            first.stop()
            queue.send(200)
            await until_rows(tmp_path, 400)
            second.stop()
    check(queue, tmp_path)


@pytest.mark.slow
async def test_a_broker_that_restarts_repeats_nothing(artemis: AmqpBroker, tmp_path: Path) -> None:
    queue = Queue(artemis)
    queue.send(500)
    async with hosting(processor(queue.source(), tmp_path)):
        await until_rows(tmp_path, 50)
        artemis.stop()
        artemis.start()  # in this thread, since it ends with the one that has started it
        await until_rows(tmp_path, 500)
    check(queue, tmp_path)


async def test_a_broker_that_pauses_is_not_taken_for_an_empty_queue(queue: Queue, tmp_path: Path) -> None:
    queue.send(400)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work, queue, tmp_path)
        await until_rows(tmp_path, 30)
        with queue.broker.paused():
            await anyio.sleep(2 * QUIET)
    check(queue, tmp_path)


async def test_group_id_properties_and_delivery_count_reach_the_handler(queue: Queue) -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    message = Message(
        body="text", id="m-1", group_id="key", subject="s", creation_time=when.timestamp(),
        properties={"tenant": "a", "n": 1}, durable=queue.broker.durable,
    )  # fmt: skip
    queue.broker.send(queue.name, [message, Message(body={"a": 1}, id=7, durable=queue.broker.durable)])
    async with _proxy(queue.broker.port) as proxy, queue.source(proxy.port).consume(queue.name, 10) as consumer:
        await anyio.sleep(0.5)  # so that both are there
        first, second = (await consumer.receive()).batch
        proxy.cut()
    assert (first.key, first.value, first.timestamp) == (b"key", b"text", when)
    headers = dict(first.headers)
    assert (headers["tenant"], headers["n"], headers["amqp.subject"], headers["amqp.delivery-count"]) == (
        b"a", b"1", b"s", b"0",
    )  # fmt: skip
    assert (second.key, second.json()) == (None, {"a": 1})
    async with queue.source().consume(queue.name, 10) as consumer:
        again = (await consumer.receive()).batch
        counts = [b"1"] if queue.broker.name == "broker-j" else [b"0", b"1"]  # Artemis does not count all of them
        assert dict(again[0].headers)["amqp.delivery-count"] in counts


async def test_messages_with_binary_ids_all_become_rows(queue: Queue, tmp_path: Path) -> None:
    ids = [b"\xff\x00%d" % n for n in range(20)]
    messages = [Message(body=b'{"n": %d}' % n, id=one, durable=queue.broker.durable) for n, one in enumerate(ids)]
    queue.broker.send(queue.name, messages)
    queue.sent = len(messages)
    await work(queue, tmp_path)
    check(queue, tmp_path)


async def test_all_data_sections_reach_the_handler(queue: Queue) -> None:
    sent = [b"".join(b"\0Su\xa0%c%s" % (len(part), part) for part in (b'{"a": ', b'12, "b": "x"}'))]
    async with queue.source()._connected("send") as link:
        await link.send(queue.name, {n: b"\0SpE\0Ss\xc0\x04\x01\xa1\x01i" + body for n, body in enumerate(sent)})
    async with queue.source().consume(queue.name, 10) as consumer:
        assert (await consumer.receive()).batch.values == [b'{"a": 12, "b": "x"}']


async def test_a_message_without_identity_is_refused_unless_its_body_is_one(queue: Queue) -> None:
    queue.broker.send(queue.name, [Message(body=b"x", durable=queue.broker.durable)])
    async with queue.source().consume(queue.name, 10) as consumer:
        found = await consumer.receive()
    assert (found.identities, reasons(found.batch)) == ([None], [f"the message has no message-id, {RECOGNIZED}"])
    async with queue.source(identity="body").consume(queue.name, 10) as consumer:
        found = await consumer.receive()
    assert (len(found.identities), None in found.identities, found.batch.refused) == (1, False, None)


async def test_a_queue_goes_on_behind_messages_that_cannot_be_read(queue: Queue, tmp_path: Path) -> None:
    durable = queue.broker.durable
    queue.send(3)
    odd = [Message(body=b"x"), Message(body={"a": float("nan")}, id="nan"), Message(body={(): 1}, id=7)]
    late = Message(body=b'{"n": 3}', id="late", creation_time=1.7e12)  # milliseconds in place of seconds
    for message in (*odd, late):
        message.durable = durable
    queue.broker.send(queue.name, [*odd, late])
    await work(queue, tmp_path)
    assert rows(tmp_path) == [(0, 0), (1, 1), (2, 2), (6, 3)]
    (file,) = (tmp_path / "Rows" / "dead-letters").glob("*/*.jsonl")
    letters = [orjson.loads(line) for line in file.read_bytes().splitlines()]
    assert [letter["error"]["type"] for letter in letters] == ["UnreadableRecord"] * 3


class Refuses(PartitionHandler):
    """Gives up every record that was not replayed."""

    output_schema = "id string, n bigint"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            headers = {name: value.decode() for name, value in record.headers if value is not None}
            if any(name.startswith(HISTORY) for name in headers):
                ctx.emit(record, {"id": headers["amqp.message-id"], "n": record.json()["n"]})
            else:
                ctx.dead_letter(record, "refused")


async def test_letters_are_replayed_to_their_queue_and_handled_once(artemis: AmqpBroker, tmp_path: Path) -> None:
    queue = Queue(artemis)
    queue.send(30)
    source = queue.source()
    settings = Settings(source_options=queue.broker.options)
    again = Processor(Refuses, source=source, container=str(tmp_path), **{**QUICK, "dead_letter_limit": 1})
    await again.run(until_end=True)
    async with open_store(str(tmp_path), settings) as store:
        letters = await DeadLetters.opened(store, ProcessorLayout("Refuses"))
        assert (await letters.replay(Selection(), settings))[:3] == (source.url, 30, 0)
        assert (await letters.replay(Selection(), settings))[:3] == (source.url, 0, 30)
    again = Processor(Refuses, source=queue.source(), container=str(tmp_path), **{**QUICK, "dead_letter_limit": 1})
    await again.run(until_end=True)
    table = dataset(tmp_path / "Refuses" / "output", format="parquet").to_table().sort_by("n")
    assert table["n"].to_pylist() == list(range(30))
    assert '{"n": 0}/replay-' in table["id"][0].as_py()


async def test_letters_that_a_sender_has_chosen_cost_no_other_letter(artemis: AmqpBroker, tmp_path: Path) -> None:
    """A name that belongs to another's message, an id that no message can have, and Artemis' mark of a duplicate."""
    queue = Queue(artemis)
    bodies = [Message(id=f"m{n}", durable=True, body=b'{"n": %d}' % n) for n in range(3)]
    taken = Message(id="m1/replay", durable=True, body=b'{"n": 3}')
    forged = Message(durable=True, body=b'{"n": 4}', properties={"amqp.message-id": "m1"})
    odd = Message(id="o", durable=True, body=b'{"n": 5}', properties={"amqp.correlation-id": "int:-5"})
    mark = Message(id="d", durable=True, body=b'{"n": 6}', properties={"_AMQ_DUPL_ID": "x"})
    queue.broker.send(queue.name, [forged, *bodies, taken, odd, mark])
    settings = Settings(source_options=queue.broker.options)
    for _ in range(2):
        again = Processor(Refuses, source=queue.source(), container=str(tmp_path), **{**QUICK, "dead_letter_limit": 1})
        await again.run(until_end=True)
        async with open_store(str(tmp_path), settings) as store:
            letters = await DeadLetters.opened(store, ProcessorLayout("Refuses"))
            done = await letters.replay(Selection(), settings)
            assert done.refused == {}
    table = dataset(tmp_path / "Refuses" / "output", format="parquet").to_table()
    assert sorted(table["n"].to_pylist()) == list(range(7))


async def test_letters_cannot_go_back_where_equal_bodies_are_one_message(queue: Queue) -> None:
    with pytest.raises(UsageError, match="would be taken for the message that it was"):
        queue.source(identity="body").check_appendable()


async def test_queues_of_a_broker_keep_the_rules(artemis: AmqpBroker) -> None:
    queue = Queue(artemis, "parked")
    queue.send(8)
    checked = await check_source(queue.source(), patience=2)
    assert (checked.records, checked.not_checked) == ({queue.name: 4}, [])


async def test_a_wrong_password_is_refused_at_the_start(queue: Queue) -> None:
    with pytest.raises(UsageError, match=f"refuses the login of {USER}"):
        await queue.source(password="wrong").open()


@contextmanager
def _serving(queue: Queue, container: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A host in a process of its own."""
    settings = [part for name, value in QUICK.items() for part in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "actorproc", "serve", f"{__name__}:Rows", "--container", str(container)]
    command += ["--source", queue.broker.url(queue.name), *settings]
    with (container / "host.log").open("wb") as log:
        host = subprocess.Popen(command, env=os.environ | {"AMQP_PASSWORD": PASSWORD}, stderr=log)
    try:
        yield host
    finally:
        host.kill()
        host.wait()


class _Proxy:
    """Passes bytes on to a port, in both directions."""

    def __init__(self) -> None:
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []
        self._muted: set[int] = set()

    def mute(self) -> None:
        """Hold back the data that clients send on open connections."""
        self._muted |= {id(writer) for writer in self._writers}

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()
        self._muted.clear()

    async def serve(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
        self._writers += [writer, up_writer]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._pass_on, reader, up_writer)
            tasks.start_soon(self._pass_on, up_reader, writer)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                if id(writer) not in self._muted:
                    writer.write(data)
        except OSError:
            pass
        writer.close()


@asynccontextmanager
async def _proxy(port: int) -> AsyncIterator[_Proxy]:
    proxy = _Proxy()
    server = await asyncio.start_server(lambda r, w: proxy.serve(port, r, w), "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        proxy.cut()
        server.close()

"""One of two hosts on a hub is killed: how long its partitions wait, and which events come twice. And idle requests.

The hub is the server of the tests, in a process of its own, with four partitions. actorproc beside Microsoft's
`EventHubConsumerClient` with its checkpoints in blobs (Azurite), which writes one after each batch. All take over 20 s
after the last sign of life. Idle: one host with the default timers of each, which has all partitions, and no event
comes. Needs Node.js, npm and `pip install azure-eventhub-checkpointstoreblob-aio`.
Goals: no event twice, none lost; taken over within the expiration plus one acquire interval.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import anyio
from azure.eventhub import EventData
from azure.eventhub.aio import EventHubConsumerClient, EventHubProducerClient
from azure.eventhub.amqp import AmqpAnnotatedMessage
from azure.storage.blob import ContainerClient
from rich.console import Console
from rich.table import Table

from actorproc import Processor, Settings
from actorproc.connectors.eventhubs import EventHubsSource
from actorproc.stores import open_store
from benchmarks.killed import (
    ACQUIRE,
    EVERY,
    EXPIRATION,
    RECORDS,
    Host,
    Notes,
    Result,
    Rows,
    killed,
    note,
    rows_of_notes,
    rows_of_output,
    settings,
    show,
    spawn,
    wait_until,
)  # fmt: skip
from benchmarks.processes import only_warnings
from tests.connectors.eventhubs.server import eventhubs
from tests.connectors.shared.azure_storage import azurite

HUB, BLOBS = "events", "checkpoints"
PARTITIONS = 4
READ = 15.0  # seconds in which an idle host settles

TIMERS = {"load_balancing_interval": ACQUIRE, "partition_ownership_expiration_interval": EXPIRATION}


class Place(NamedTuple):
    """The hub, and the account of the blobs. The folder has `connections`, their number so far, and Azurite's log."""

    url: str
    connection_string: str
    blobs: str
    folder: Path


def serve(started: Any, folder: Path) -> None:
    """A hub, until killed."""
    with eventhubs() as server:
        server.create(HUB, PARTITIONS)
        started.send((server.url(HUB), server.connection_string))
        while True:
            (folder / "connections").write_text(str(server.accepted))
            time.sleep(0.2)


@contextmanager
def served() -> Iterator[Place]:
    """A hub without events, and an account without blobs."""
    ours, theirs = spawn.Pipe()
    with tempfile.TemporaryDirectory(prefix="actorproc-bench-") as name, azurite(Path(name)) as account:
        process = spawn.Process(target=serve, args=(theirs, Path(name)), daemon=True)
        process.start()
        try:
            url, login = ours.recv()
            yield Place(url, login, account.connection_string, Path(name))
        finally:
            process.kill()
            process.join()


def feed(place: Place, sent: Any, stop: Any) -> None:
    """Send events to each partition ten times a second."""

    async def feeding() -> None:
        async with EventHubProducerClient.from_connection_string(place.connection_string, eventhub_name=HUB) as client:
            while not stop.is_set():
                for partition in range(PARTITIONS):
                    numbers = range(sent.value + partition, sent.value + RECORDS * PARTITIONS, PARTITIONS)
                    events: list[EventData | AmqpAnnotatedMessage] = [EventData(b'{"n": %d}' % n) for n in numbers]
                    await client.send_batch(events, partition_id=str(partition))
                sent.value += RECORDS * PARTITIONS
                await asyncio.sleep(EVERY)

    asyncio.run(feeding())


def actorproc(host: str, place: Place, folder: str, timers: Settings | None = None) -> None:
    """A host, until it is killed. Notes its requests to its store each second."""
    only_warnings()
    store = open_store(folder)
    source = EventHubsSource(place.url, {"connection_string": place.connection_string})
    processor = Processor(Notes, source=source, container=store, host=host, settings=timers or Settings())

    async def running() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(processor.run)
            while True:
                Path(folder, "requests").write_text(str(store.requests.total()))
                await anyio.sleep(1)

    anyio.run(running)


def microsoft(host: str, place: Place, folder: str, timers: Mapping[str, float] | None = None) -> None:
    """The same of Microsoft's processor, with its checkpoints in the blob container of the folder's name."""
    from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore

    async def on_batch(context: Any, batch: list[EventData]) -> None:
        note(Path(folder), host, [event.body_as_json()["n"] for event in batch])
        await context.update_checkpoint()

    async def reading() -> None:
        store = BlobCheckpointStore.from_connection_string(place.blobs, Path(folder).name)
        how: dict[str, Any] = {"eventhub_name": HUB, "checkpoint_store": store, **(timers or {})}
        async with EventHubConsumerClient.from_connection_string(place.connection_string, "$Default", **how) as client:
            await client.receive_batch(on_batch, starting_position="-1")

    asyncio.run(reading())


def stored_by_actorproc(place: Place, folder: Path) -> int:
    """Requests to the store so far."""
    return int((folder / "requests").read_text())


def stored_by_microsoft(place: Place, folder: Path) -> int:
    return (place.folder / "azurite.log").read_text().count(' HTTP/1.1" ')  # lines of its requests


class Idle(NamedTuple):
    """Per minute."""

    connections: int
    store_requests: int


class Program(NamedTuple):
    """A host with the timers of the benchmark, and one with its own; its rows, and its requests to the store so far."""

    hurried: Host[Place]
    host: Host[Place]
    rows: Rows
    stored: Callable[[Place, Path], int]


PROGRAMS = {
    "actorproc": Program(partial(actorproc, timers=settings()), actorproc, rows_of_output, stored_by_actorproc),
    "Microsoft's processor": Program(partial(microsoft, timers=TIMERS), microsoft, rows_of_notes, stored_by_microsoft),
}


def idle(program: Program, place: Place, folder: Path) -> Idle:
    """What a host asks for in a minute in which nothing comes. It reads what is in the hub first."""

    def asked() -> Idle:
        return Idle(int((place.folder / "connections").read_text()), program.stored(place, folder))

    process = spawn.Process(target=program.host, args=("idle", place, str(folder)), daemon=True)
    process.start()
    try:
        wait_until(lambda: {row.n % PARTITIONS for row in program.rows(folder)} == set(range(PARTITIONS)))
        time.sleep(READ)
        before = asked()
        time.sleep(60)
        after = asked()
    finally:
        process.kill()
        process.join()
    return Idle(after.connections - before.connections, after.store_requests - before.store_requests)


def _folder(place: Place, name: str) -> Path:
    """A folder, and a blob container of the same name."""
    folder = place.folder / name
    folder.mkdir()
    ContainerClient.from_connection_string(place.blobs, name).create_container()
    return folder


def run(rounds: int = 3, only: str = "") -> None:
    """Print the table: all rounds together; idle requests of one host, once.

    Args:
        only: the program with this name; default: all.
    """
    if only != "actorproc" and find_spec("azure.eventhub.extensions.checkpointstoreblobaio") is None:
        raise SystemExit("Microsoft's processor needs: pip install azure-eventhub-checkpointstoreblob-aio")
    found, quiet = dict[str, list[Result]](), dict[str, Idle]()
    for name, program in PROGRAMS.items():
        for _ in range(rounds if only in ("", name) else 0):
            with served() as place:
                result = killed(program.hurried, program.rows, feed, place, _folder(place, "killed"), PARTITIONS)
                found.setdefault(name, []).append(result)
                if name not in quiet:
                    quiet[name] = idle(program, place, _folder(place, "idle"))
    show(found, PARTITIONS)
    table = Table("program", "connections to the hub", "requests to the store", title="a minute without events")
    for name, asked in quiet.items():
        table.add_row(name, str(asked.connections), str(asked.store_requests))
    Console().print(table)

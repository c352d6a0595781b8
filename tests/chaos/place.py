"""Locations of a run's log, container and process output: a folder, or a bucket of a server that it starts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from actorproc.config.settings import Settings
from tests import servers
from tests.chaos.archive import Archive
from tests.chaos.objects import Objects, read_folder, read_store
from tests.connectors.amqp.servers import AmqpBroker
from tests.connectors.gcs import server as gcs_server
from tests.connectors.kafka import server as kafka_server
from tests.connectors.kafka.server import Broker
from tests.connectors.shared import azure_storage

STORES = ("folder", "seaweedfs", "minio", "azurite", "gcs")

TIMERS: dict[str, Any] = {
    "lease_renew_interval": 0.5,
    "lease_acquire_interval": 0.7,
    "lease_expiration_interval": 2,
    "rebalance_delay": 0.3,
    "max_handoff_time": 2,
    "commit_interval": 0.3,
    "idle_commit_interval": 1,
    "poll_interval": 0.2,
    "max_batch_records": 100,
    "retry_backoff": 0.02,
    "retry_backoff_max": 0.1,
    "restart_backoff": 0.1,
    "restart_backoff_max": 1,
    "max_process_time": 20,
    "store_timeout": 5,
    "store_patience": 20,
    "stream_idle_time": 3600,  # the check of timers goes by the times of records alone
}
"""Settings of every host: all waits are short, so that two minutes hold the events of days."""

S3_TIMERS: dict[str, Any] = TIMERS | {
    "lease_renew_interval": 1,
    "lease_acquire_interval": 1.4,
    "lease_expiration_interval": 4,
    "commit_interval": 1,
    "idle_commit_interval": 2,
    "poll_interval": 0.5,
    "store_timeout": 10,
}
"""Where a request takes longer, and the server shares the machine with all hosts."""

STUBBORN = 8
"""Factor by which a stubborn host trusts its lease longer, and looks at the group less often, than other hosts: as with
a clock that runs wrong. After a pause it works on, and only conditional writes stop it."""


@dataclass(frozen=True)
class Place:
    """URLs of a run, and the settings with which its processes find them."""

    folder: Path
    log: str
    container: str
    keywords: dict[str, Any]
    broker: Broker | AmqpBroker | None = None
    """Of the topic or the queues that are the log, if it is one of these."""
    archive: Archive | None = None
    """Of the output files, if a trim deletes some."""

    @property
    def settings(self) -> Settings:
        return Settings.load(**self.keywords)

    def environment(self, *, stubborn: bool = False) -> dict[str, str]:
        """Settings of a host or producer, as variables."""
        keywords = dict(self.keywords)
        if stubborn:
            for name in ("lease_expiration_interval", "lease_acquire_interval"):
                keywords[name] *= STUBBORN
            keywords["nudge_host"] = "192.0.2.1"  # an address without a listener: nudges do not reach the host
        return {
            f"ACTORPROC_{name.upper()}": json.dumps(value) if isinstance(value, dict) else str(value)
            for name, value in keywords.items()
        }

    @property
    def topic(self) -> str:
        """Name of the topic, if the log is one."""
        return self.log.rpartition("/")[2]

    async def read(self, url: str) -> Objects:
        """Every object of the log or of the container."""
        return await read_store(url, self.settings) if "://" in url else read_folder(Path(url))

    async def read_output(self) -> Objects:
        """Every object of the container, with the output files that a trim has deleted."""
        found = await self.read(self.container)
        return found if self.archive is None else {**found, **self.archive.objects()}


_SERVERS: dict[str, Callable[[Path], AbstractContextManager[Any]]] = {
    "seaweedfs": servers.seaweedfs,
    "minio": servers.minio,
    "azurite": azure_storage.azurite,
    "gcs": partial(gcs_server.double, writes_per_second=1),  # to one object, as the service
}


@asynccontextmanager
async def opened_place(
    store: str, folder: Path, source: str = "log", partitions: int | None = None
) -> AsyncIterator[Place]:
    """A place that is empty, with servers running for it if need be.

    Args:
        source: log, kafka, artemis or broker-j.
        partitions: how many queues there are.

    Raises:
        servers.Unavailable: that server cannot be had here.
    """
    for name in ("logs", "acks"):
        (folder / name).mkdir(parents=True)
    with ExitStack() as stack:
        if store == "folder":
            place = Place(folder, str(folder / "log"), str(folder / "container"), TIMERS)
        else:
            (folder / "server").mkdir()
            server: Any = stack.enter_context(_SERVERS[store](folder / "server"))
            place = Place(folder, await server.new_url(), await server.new_url(), S3_TIMERS | server.settings)
        if source != "log":
            (folder / "broker").mkdir()
        if source == "kafka":
            broker = stack.enter_context(kafka_server.kafka(folder / "broker"))
            place = replace(place, broker=broker, log=f"kafka://{broker.address}/chaos")
        elif source != "log":
            place = stack.enter_context(_with_queues(place, source, partitions or 1))
        yield place


@contextmanager
def _with_queues(place: Place, source: str, partitions: int) -> Iterator[Place]:
    from tests.chaos import queues  # which need a client that others do not

    with queues.BROKERS[source](place.folder / "broker") as broker:
        keywords = place.keywords | queues.TIMERS | {"source_options": broker.options}
        yield replace(place, broker=broker, log=broker.url(queues.names(partitions)), keywords=keywords)

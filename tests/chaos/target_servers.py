"""The servers of the sinks of a run: started once, shared by the sinks that need them, and ended by outages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from tests.chaos.outages import FROZEN, Outage, TroubledServer
from tests.chaos.targets import (
    DeltaFolder,
    IcebergTable,
    KafkaTopic,
    NewestInPostgres,
    PostgresTable,
    RedisStream,
    SqliteTable,
    Target,
    Webhook,
)

if TYPE_CHECKING:
    from tests.connectors.http.receiver import Answer, Receiver, Request
    from tests.connectors.kafka.server import Broker
    from tests.connectors.postgres.server import Postgres
    from tests.connectors.redis.server import RedisServer

TOPIC_PARTITIONS = 3


class TargetServers:
    """Starts a server when its first sink needs it, and ends it with `stack`.

    Args:
        folder: of the run.
        output: folder of the processor's output.
    """

    def __init__(self, folder: Path, output: Path, stack: ExitStack, random: Random) -> None:
        self.started: list[TroubledServer] = []
        """Those that sinks have needed so far."""
        self._folder, self._output, self._stack, self._random = folder, output, stack, random

    def target(self, name: str) -> Target:
        """The target of the sink of this name, one of `TARGETS`.

        Raises:
            Unavailable: its server cannot be had here.
        """
        return TARGETS[name](self)

    @cached_property
    def postgres(self) -> Postgres:
        from tests.connectors.postgres.server import postgres

        server = self._stack.enter_context(postgres())
        stopped = Outage(server.stop, server.start)
        self._trouble("PostgreSQL", server, killed=Outage(server.kill, server.start), stopped=stopped)
        return server

    @cached_property
    def redis(self) -> RedisServer:
        from tests.connectors.redis.server import redis_server

        server = self._stack.enter_context(redis_server())
        self._trouble("Redis", server, killed=Outage(server.kill, server.start))
        return server

    @cached_property
    def kafka(self) -> Broker:
        from tests.chaos import topic
        from tests.connectors.kafka.server import kafka

        (folder := self._folder / "sink-broker").mkdir()
        server = self._stack.enter_context(kafka(folder))
        topic.create(server.address, KafkaTopic.topic, TOPIC_PARTITIONS)
        self._trouble("Kafka", server, killed=Outage(server.stop, server.start))
        return server

    @cached_property
    def receiver(self) -> Receiver:
        """It loses some answers, and refuses some requests for the moment."""
        from tests.connectors.http.receiver import receiver

        server = self._stack.enter_context(receiver())
        server.answer = self._answer
        self.started.append(TroubledServer("the webhook", {"stopped": Outage(server.stop, server.start)}))
        return server

    def _trouble(self, name: str, server: Postgres | RedisServer | Broker, **outages: Outage) -> None:
        """Note a server. It is also frozen."""
        outages["frozen"] = Outage(server.freeze, server.thaw, FROZEN)
        self.started.append(TroubledServer(name, outages))

    def _answer(self, _: Request) -> Answer:
        from tests.connectors.http.receiver import Answer

        share = self._random.random()
        if share < 0.02:
            return Answer(is_lost=True)
        return Answer(503, {"Retry-After": "0"}, takes=False) if share < 0.04 else Answer()

    # For `TARGETS`

    @property
    def delta_folder(self) -> Path:
        return self._output

    @property
    def warehouse(self) -> Path:
        return self._folder / "warehouse"

    @property
    def sqlite_file(self) -> Path:
        return self._folder / "sink.db"


TARGETS: Mapping[str, Callable[[TargetServers], Target]] = {
    "postgres": lambda servers: PostgresTable(servers.postgres.url),
    "newest": lambda servers: NewestInPostgres(servers.postgres.url),
    "sqlite": lambda servers: SqliteTable(f"sqlite:{servers.sqlite_file}"),
    "delta": lambda servers: DeltaFolder(servers.delta_folder),
    "iceberg": lambda servers: IcebergTable(servers.postgres.url, servers.warehouse),
    "redis": lambda servers: RedisStream(servers.redis.url),
    "kafka": lambda servers: KafkaTopic(servers.kafka.address),
    "webhook": lambda servers: Webhook(servers.receiver),
}
"""By the name of the sink."""

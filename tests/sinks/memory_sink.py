"""A sink in memory that several hosts share, with faults: lost replies, outages, restored backups."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from actorproc.runtime.clock import SYSTEM
from actorproc.sinks.options import SinkOptions
from actorproc.sinks.protocol import Delivery, Guarantee, Sink, SinkError, SinkMoved, SinkRow


@dataclass
class Database:
    """What the target holds."""

    rows: list[tuple[str, int]] = field(default_factory=list)
    """Partition and value of column `n`."""
    positions: dict[str, SinkRow] = field(default_factory=dict)
    is_away: bool = False
    lose_replies: int = 0
    """Deliveries of which the reply is lost, although they land."""
    deliveries: int = 0

    def copy(self) -> Database:
        return copy.deepcopy(self)

    def restore(self, backup: Database) -> None:
        self.rows, self.positions = list(backup.rows), dict(backup.positions)

    @property
    def repeated(self) -> list[tuple[str, int]]:
        return [row for row, count in Counter(self.rows).items() if count > 1]

    @property
    def numbers(self) -> list[int]:
        return sorted(n for _, n in self.rows)


class MemorySink(Sink):
    """A connection to a database in memory."""

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self, database: Database, url: str = "test:db", options: Mapping[str, Any] | None = None) -> None:
        self.database, self.url = database, url
        self.options = SinkOptions(**(options or {}))

    async def open(self, schema: pa.Schema) -> None:
        self._check()

    async def read(self, partition: str) -> SinkRow | None:
        self._check()
        return self.database.positions.get(partition)

    async def write(self, delivery: Delivery) -> None:
        self._check()
        await SYSTEM.sleep(0)
        found = self.database.positions.get(delivery.partition)
        if found != delivery.was:
            raise SinkMoved(f"{found} is not {delivery.was}")
        self.database.positions[delivery.partition] = delivery.now
        self.database.rows += [(delivery.partition, n) for n in delivery.rows["n"].to_pylist()]
        self.database.deliveries += 1
        if self.database.lose_replies:
            self.database.lose_replies -= 1
            raise SinkError("the reply was lost")

    async def close(self) -> None:
        pass

    def _check(self) -> None:
        if self.database.is_away:
            raise SinkError("the database is away")

"""A sink with one partition, which gets one commit after the other."""

from __future__ import annotations

from typing import Any

import psycopg
import pyarrow as pa

from actorproc.connectors.postgres import PostgresSink
from actorproc.runtime.clock import SYSTEM
from actorproc.sinks.protocol import Delivery, SinkPlace, SinkRow


class Target:
    """Each `write` opens the sink for the columns of its rows, and delivers them as one commit."""

    kind = PostgresSink

    def __init__(self, url: str, table: str, *, name: str | None = None, **options: Any) -> None:
        self.sink = self.kind(url, {"table": table, **options}, SinkPlace("pg", name or table, SYSTEM))
        self.row: SinkRow | None = None
        self.partition, self.registration, self.depth = "0", "one", 0

    async def write(self, *rows: dict[str, Any], schema: pa.Schema | None = None, **more: Any) -> None:
        table = pa.Table.from_pylist(list(rows), schema)
        table = table.append_column("_sequence", pa.array(range(len(rows)), pa.int64()))
        await self.sink.open(table.schema)
        position = self.row.position if self.row else 0
        now = SinkRow("home", 1, "term", 0, position + 1)
        await self.sink.write(
            Delivery(
                self.partition, table, position, (len(rows),), self.row, now, registration=self.registration,
                depth=self.depth, begins=position == 0, **more,
            )
        )  # fmt: skip
        self.row = now


async def query(url: str, text: Any) -> list[tuple[Any, ...]]:
    """What a statement finds. It is committed."""
    connect = psycopg.AsyncConnection.connect(url, autocommit=True, client_encoding="utf8")
    async with await connect as connection:
        cursor = await connection.execute(text)
        return await cursor.fetchall() if cursor.description else []

"""A custom source: a SQL table, read in the order of its id. Here the table `events` in SQLite.

create table events (id integer primary key autoincrement, customer text, body text)
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from actorproc import Batch, Chunk, End, Source
from actorproc.errors import UsageError
from actorproc.sources import Start


class SqlSource(Source):
    """One partition. A position is the id of the last row that was read; the sequence of a record is its row's id."""

    def __init__(self, path: str, *, poll_interval: float = 1.0, page: int = 1_000) -> None:
        self.url = f"sqlite://{Path(path).resolve()}"
        self.identity = self.url  # another database under this processor's name is refused
        self._path, self._poll_interval, self._page = path, poll_interval, page

    async def partitions(self) -> Sequence[str]:
        return ["0"]

    async def start(self, partition: str, at: Start) -> str:
        if at == "earliest":
            return "0"
        if at == "latest":
            return (await self.end(partition)).position
        raise UsageError("table events has no time to start at: 'earliest' or 'latest'")

    async def end(self, partition: str) -> End:
        ((newest,),) = await self._query("select max(id) from events")
        return End(str(newest or 0), newest)

    def sequence_before(self, partition: str, position: str) -> int:
        return int(position)

    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        while True:
            rows = await self._query(
                "select id, customer, body from events where id > ? order by id limit ?", int(position), self._page
            )
            if rows:
                position = str(rows[-1][0])
            ids, customers, bodies = zip(*rows, strict=True) if rows else ((), (), ())
            batch = Batch.of(partition, [*map(_encoded, bodies)], ids, keys=[*map(_encoded, customers)])
            yield Chunk(batch, position)
            if not rows:
                await anyio.sleep(self._poll_interval)

    async def _query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        def run() -> list[tuple[Any, ...]]:
            with closing(sqlite3.connect(self._path)) as connection:
                return connection.execute(sql, values).fetchall()

        return await anyio.to_thread.run_sync(run, abandon_on_cancel=True)


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()

"""Redis is killed at each point of writing a delivery to its log, and again later: each row is in the stream once.

The log is cut, as a kill may leave it. Redis undoes a transaction that was cut off, but keeps the part in its log. At
the next start the part is there, together with what came afterwards (as in valkey-io/valkey#4342).
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from actorproc.connectors.redis import RedisSink
from actorproc.runtime.clock import SYSTEM
from actorproc.sinks.protocol import Delivery, SinkPlace, SinkRow
from tests.connectors.redis.server import RedisServer, programs

pytestmark = [pytest.mark.servers, pytest.mark.long]

SCHEMA = pa.schema([("n", pa.int64()), ("_sequence", pa.int64())])
ROWS = 2
STREAM = {"stream": "cut", "most_entries": 1000}
KEYED = {"mode": "upsert", "key": "n", "prefix": "cut"}


def row(position: int) -> SinkRow:
    return SinkRow("memory://x", 1, "t", 0, position, f"p{position}")


AHEAD = "1900000000123456789-7"
"""Of somebody else: nanoseconds, which are ahead of a clock of milliseconds."""


class Log:
    """A Redis server whose log can be cut. Partition "0" has had two deliveries; the second one is cut.

    Args:
        other: id of an entry of somebody else, before the second delivery.
    """

    def __init__(self, server: RedisServer, folder: Path, options: dict[str, Any], other: str | None = None) -> None:
        self.server, self._data, self._kept, self._options = server, folder / "data", folder / "kept", options
        self.cuts: list[int] = []
        self._other = other

    async def prepare(self) -> None:
        self.server.start()
        await self.deliver("0", None, 1)
        if self._other is not None:
            with self.server.client() as client:
                client.xadd("cut", {"other": "one"}, id=self._other)
        begin = self._file().stat().st_size
        await self.deliver("0", row(1), 2)
        self.server.kill()
        shutil.copytree(self._data, self._kept)
        ends = list(_ends(self._file().read_bytes()))
        for start, end in pairwise(ends):
            if start >= begin:
                self.cuts += [start, start + 1, (start + end) // 2, end - 1]

    def cut(self, at: int) -> None:
        shutil.rmtree(self._data)
        shutil.copytree(self._kept, self._data)
        with self._file().open("r+b") as file:
            file.truncate(at)
        self.server.start()

    def restart(self) -> None:
        self.server.kill()
        self.server.start()

    async def read(self, partition: str) -> SinkRow | None:
        async with self._sink() as found:
            await found.open(SCHEMA)
            return await found.read(partition)

    async def deliver(self, partition: str, was: SinkRow | None, position: int) -> None:
        """Commits of `ROWS` rows."""
        first = 0 if was is None else was.position
        numbers = list(range(first * ROWS, position * ROWS))
        await self.write(Delivery(
            partition, pa.table({"n": numbers, "_sequence": numbers}, SCHEMA), first, (ROWS,) * (position - first),
            was, row(position), registration="a",
        ))  # fmt: skip

    async def write(self, delivery: Delivery) -> None:
        async with self._sink() as found:
            await found.open(SCHEMA)
            await found.write(delivery)

    def found(self) -> Counter[tuple[str, int]]:
        with self.server.client() as client:
            if self._options is KEYED:
                rows = [client.hgetall(key) for key in client.keys("cut:*")]
            else:
                rows = [fields for _, fields in client.xrange("cut") if "other" not in fields]
                assert len(client.xrange("cut")) == len(rows) + (self._other is not None)
        return Counter((fields["_partition"], int(fields["n"])) for fields in rows)

    def _sink(self) -> RedisSink:
        return RedisSink(self.server.url, self._options, SinkPlace("r", "Orders", SYSTEM))

    def _file(self) -> Path:
        found = [*self._data.glob("appendonlydir/*.incr.aof"), *self._data.glob("appendonly.aof")]
        return found[0]


def _ends(log: bytes) -> Iterator[int]:
    """Where a command of the log ends."""
    at = 0
    while at < len(log):
        count, _, _ = log[at + 1 :].partition(b"\r\n")
        at = log.index(b"\r\n", at) + 2
        for _ in range(int(count)):
            size, _, _ = log[at + 1 :].partition(b"\r\n")
            at = log.index(b"\r\n", at) + 2 + int(size) + 2
        yield at


async def again(log: Log) -> None:
    await log.deliver("0", row(1), 2)


async def with_more_commits(log: Log) -> None:
    await log.deliver("0", row(1), 4)


async def another_partition_and_then_again(log: Log) -> None:
    await log.deliver("1", None, 1)
    log.restart()
    await log.read("1")
    found = await log.read("0")
    assert found in (row(1), row(2))
    if found == row(1):
        await log.deliver("0", found, 2)


async def a_fence(log: Log) -> None:
    await log.write(Delivery("0", SCHEMA.empty_table(), 1, (), row(1), replace(row(1), fence=1)))
    await log.deliver("1", None, 1)


async def several_times(log: Log) -> None:
    for position in range(1, 5):
        await log.deliver("0", row(position), position + 1)


Then = Callable[[Log], Awaitable[None]]


@pytest.mark.parametrize("then", [again, with_more_commits, another_partition_and_then_again, a_fence, several_times])
@pytest.mark.parametrize("program", programs())
@pytest.mark.parametrize("other", [None, AHEAD])
async def test_each_row_is_in_the_stream_once(program: str, then: Then, other: str | None, tmp_path: Path) -> None:
    await _cut_everywhere(Log(RedisServer(tmp_path, program), tmp_path, STREAM, other), then)


@pytest.mark.parametrize("then", [again, with_more_commits, several_times])
@pytest.mark.parametrize("program", programs())
async def test_each_key_is_there(program: str, then: Then, tmp_path: Path) -> None:
    await _cut_everywhere(Log(RedisServer(tmp_path, program), tmp_path, KEYED), then)


async def _cut_everywhere(log: Log, then: Then) -> None:
    try:
        await log.prepare()
        for at in log.cuts:
            log.cut(at)
            assert await log.read("0") == row(1), at
            assert log.found() == _rows_of({"0": row(1)}), at
            await then(log)
            log.restart()
            rows = {partition: await log.read(partition) for partition in ("0", "1")}
            assert log.found() == _rows_of(rows), at
            log.server.kill()
    finally:
        log.server.kill()


def _rows_of(rows: dict[str, SinkRow | None]) -> Counter[tuple[str, int]]:
    return Counter((p, n) for p, at in rows.items() if at is not None for n in range(at.position * ROWS))

"""Ids of entries, where others add theirs to the same stream: no number of Lua holds each of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from actorproc.connectors.redis import RedisSink
from actorproc.connectors.redis.keys import position_key
from actorproc.runtime.clock import SYSTEM
from actorproc.sinks.protocol import Delivery, SinkPlace, SinkRefused, SinkRow
from tests.connectors.redis.server import RedisServer

pytestmark = pytest.mark.servers

SCHEMA = pa.schema([("n", pa.int64()), ("_sequence", pa.int64())])
ROWS = 3
NANOSECONDS = 1_764_370_000_123_456_768
LAST = 2**64 - 1


async def deliver(server: RedisServer, stream: str, *positions: int, partition: str = "0") -> None:
    """Bring the sink's row from each position to the next one, with three rows each."""
    async with RedisSink(server.url, {"stream": stream}, SinkPlace("r", "P", SYSTEM)) as sink:
        await sink.open(SCHEMA)
        for position in positions:
            numbers = range(position * ROWS, position * ROWS + ROWS)
            rows = pa.table({"n": numbers, "_sequence": numbers}, SCHEMA)
            was = await sink.read(partition)
            assert (was.position if was else 0) == position
            now = SinkRow("home", 1, "term", 0, position + 1)
            await sink.write(Delivery(partition, rows, position, (ROWS,), was, now))


def add(server: RedisServer, stream: str, ids: Sequence[str], **fields: str) -> None:
    with server.client() as client:
        for each in ids:
            client.xadd(stream, {"by": "other", **fields}, id=each)


def found(server: RedisServer, stream: str) -> tuple[list[str], list[int]]:
    """Ids of others, and numbers of ours. All ids ascend."""
    with server.client() as client:
        entries: list[Any] = client.xrange(stream)
    parts = [tuple(map(int, each.split("-"))) for each, _ in entries]
    assert all(one < other for one, other in pairwise(parts))
    others = [each for each, fields in entries if "by" in fields]
    return others, [int(fields["n"]) for _, fields in entries if "by" not in fields]


@pytest.mark.parametrize(
    "ids",
    [
        [f"{NANOSECONDS}-0"],
        [f"{NANOSECONDS}-1", f"{NANOSECONDS}-2", f"{NANOSECONDS + 21}-0"],
        [f"{NANOSECONDS}-{LAST}"],
        ["1999999999999999999-5"],
        ["9999999999999999999-0"],
        [f"{LAST - 3}-{LAST}"],
    ],
)
async def test_ids_that_no_double_holds_hold_up_nothing_and_stay(server: RedisServer, ids: list[str]) -> None:
    stream = f"ids {ids[0]} {len(ids)}"
    await deliver(server, stream, 0)
    add(server, stream, ids)
    await deliver(server, stream, 1, 2)
    await deliver(server, stream, 0, partition="1")
    assert found(server, stream) == (ids, [*range(3 * ROWS), *range(ROWS)])


async def test_a_stream_with_the_last_possible_id_is_refused_and_nothing_changes(server: RedisServer) -> None:
    await deliver(server, "last", 0)
    add(server, "last", [f"{LAST}-0"])
    key = position_key("last", "P/r", "0")
    with server.client() as client:
        before = client.hgetall(key)
        with pytest.raises(SinkRefused, match="the last possible ID"):
            await deliver(server, "last", 1)
        assert client.hgetall(key) == before
    assert found(server, "last") == ([f"{LAST}-0"], [0, 1, 2])


@pytest.mark.parametrize("fields", [{}, {"_partition": "1"}])
async def test_a_note_that_names_entries_of_others_takes_none_out(server: RedisServer, fields: dict[str, str]) -> None:
    """An earlier version has written such a note, where a number was not exact."""
    stream, ids = f"note {len(fields)}", [f"{NANOSECONDS}-{n}" for n in (1, 2)]
    await deliver(server, stream, 0)
    add(server, stream, ids, **fields)
    with server.client() as client:
        client.hset(position_key(stream, "P/r", "0"), " ".join(ids), "")
    await deliver(server, stream, 1)
    assert found(server, stream) == (ids, [*range(2 * ROWS)])

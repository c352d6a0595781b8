"""The newest row of each key in Redis: versions, deletions, lives, and keys of several columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from actorproc.connectors.redis import RedisSink
from actorproc.connectors.redis.keys import key_of
from actorproc.runtime.clock import SYSTEM
from actorproc.sinks.protocol import Delivery, Guarantee, SinkMoved, SinkPlace, SinkRefused, SinkRow
from actorproc.testing import check_sink
from tests.connectors.redis.server import RedisServer
from tests.sinks.matrix import tried

pytestmark = pytest.mark.servers

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("gone", pa.bool_()), ("_sequence", pa.int64())])
ROW = SinkRow("memory://x", 1, "t", 0, 1, "p0")
Row = tuple[str | None, int, bool]


def sink(server: RedisServer, prefix: str, **options: Any) -> RedisSink:
    given = {"mode": "upsert", "key": "k", "deleted": "gone", "prefix": prefix, **options}
    return RedisSink(server.url, given, SinkPlace("r", "Orders", SYSTEM))


def delivery(since: int, *commits: list[Row], partition: str = "0", depth: int = 0, registration: str = "a",
             was: SinkRow | None = None) -> Delivery:  # fmt: skip
    rows = [row for commit in commits for row in commit]
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    table = pa.Table.from_arrays(
        [pa.array(list(values), field.type) for values, field in zip(columns, SCHEMA, strict=False)]
        + [pa.array(range(len(rows)), pa.int64())],
        schema=SCHEMA,
    )
    now = replace(ROW, position=since + len(commits))
    return Delivery(
        partition, table, since, [len(c) for c in commits], was, now, depth=depth, registration=registration
    )


async def deliver(server: RedisServer, prefix: str, *deliveries: Delivery, **options: Any) -> None:
    """Each on the row that is there."""
    async with sink(server, prefix, **options) as found:
        await found.open(SCHEMA)
        for each in deliveries:
            was = await found.read(each.partition)
            await found.write(Delivery(
                each.partition, each.rows, each.since, each.counts, was, each.now, depth=each.depth,
                registration=each.registration,
            ))  # fmt: skip


def value(server: RedisServer, key: str) -> str | None:
    with server.client() as client:
        found = client.hget(key, "v")
    return None if found is None else str(found)


async def test_it_keeps_exactly_once(server: RedisServer) -> None:
    async def rows() -> list[int]:
        with server.client() as client:
            return [int(client.hget(key, "n") or -1) for key in client.keys("each:*")]

    place = SinkPlace("r", "Orders", SYSTEM)
    given = {"mode": "upsert", "key": "n", "prefix": "each"}
    checked = await check_sink(lambda: RedisSink(server.url, given, place), rows)
    tried("redis, mode = upsert", checked, on="Redis")
    assert (checked.guarantee, checked.repeated) == (Guarantee.EXACTLY_ONCE, 0)


async def test_the_newest_row_of_a_key_is_kept(server: RedisServer) -> None:
    await deliver(server, "newest", delivery(0, [("a", 1, False), ("b", 2, False)], [("a", 3, False), ("a", 4, False)]))
    assert (value(server, "newest:a"), value(server, "newest:b")) == ("4", "2")
    with server.client() as client:
        assert set(client.hgetall("newest:a")) == {"k", "v", "gone", "_sequence", "_partition", "_version"}


async def test_an_older_row_changes_nothing_and_an_equal_one_repairs(server: RedisServer) -> None:
    new = delivery(5, [("a", 5, False)])
    await deliver(server, "older", new, delivery(3, [("a", 3, False)]))
    assert value(server, "older:a") == "5"
    with server.client() as client:
        client.hset("older:a", "v", "changed by hand")
    await deliver(server, "older", new)
    assert value(server, "older:a") == "5"


async def test_a_deletion_keeps_its_version(server: RedisServer) -> None:
    await deliver(
        server, "gone", delivery(0, [("a", 1, False)]), delivery(5, [("a", 0, True)]), delivery(3, [("a", 3, False)])
    )
    with server.client() as client:
        assert client.exists("gone:a") == 0
    await deliver(server, "gone", delivery(6, [("a", 6, False)]), delivery(5, [("a", 0, True)]))
    assert value(server, "gone:a") == "6"


async def test_rows_of_a_child_win_over_its_parents(server: RedisServer) -> None:
    await deliver(
        server, "split", delivery(0, [("a", 2, False)], partition="child", depth=1), delivery(900, [("a", 1, False)])
    )
    assert value(server, "split:a") == "2"


async def test_rows_of_a_later_registration_win(server: RedisServer) -> None:
    await deliver(
        server, "lives", delivery(9, [("a", 1, False)], registration="x"),
        delivery(0, [("a", 2, False)], registration="y"), delivery(10, [("a", 3, False)], registration="x"),
    )  # fmt: skip
    assert value(server, "lives:a") == "2"


async def test_a_column_that_is_null_now_is_gone(server: RedisServer) -> None:
    async with sink(server, "null") as found:
        await found.open(SCHEMA)
        await found.write(delivery(0, [("a", 1, False)]))
        rows = pa.table({"k": ["a"], "v": [None], "gone": [None], "_sequence": [1]}, SCHEMA)
        now = replace(ROW, position=2)
        await found.write(Delivery("0", rows, 1, (1,), ROW, now, registration="a"))
    with server.client() as client:
        assert set(client.hgetall("null:a")) == {"k", "_sequence", "_partition", "_version"}


async def test_nothing_lands_where_the_row_has_moved(server: RedisServer) -> None:
    async with sink(server, "moved") as found:
        await found.open(SCHEMA)
        await found.write(delivery(0, [("a", 1, False)]))
        with pytest.raises(SinkMoved):
            await found.write(delivery(1, [("a", 2, False)]))
    assert value(server, "moved:a") == "1"


async def test_a_key_of_another_type_is_refused_and_nothing_changes(server: RedisServer) -> None:
    with server.client() as client:
        client.set("types:b", "text")
    with pytest.raises(SinkRefused, match="types:b"):
        await deliver(server, "types", delivery(0, [("a", 1, False), ("b", 2, False)]))
    assert value(server, "types:a") is None


async def test_a_null_key_is_refused(server: RedisServer) -> None:
    with pytest.raises(SinkRefused, match="key column k is null"):
        await deliver(server, "nulls", delivery(0, [(None, 1, False)]))


@pytest.mark.parametrize(
    ("one", "other"), [(["a:b", "c"], ["a", "b:c"]), (["a%3A", "b"], ["a:", "b"]), (["", "a"], ["a", ""])]
)
def test_keys_of_several_columns_differ(one: list[str], other: list[str]) -> None:
    assert key_of(one) != key_of(other)


async def test_a_cluster_needs_a_slot(cluster: tuple[RedisServer, RedisServer]) -> None:
    with pytest.raises(SinkRefused, match=r"set the option prefix to \{orders\}"):
        await deliver(cluster[0], "orders", delivery(0, [("a", 1, False)]))
    for number, node in enumerate(cluster):
        await deliver(node, "{orders}", delivery(number, [("a", number, False), ("b", number, False)]))

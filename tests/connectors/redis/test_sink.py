"""The Redis sink on a real server: the checks of the test kit, types, refusals, and a server that is killed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import anyio
import pyarrow as pa
import pytest
from msgspec.structs import replace
from redis import RedisError

from actorproc.connectors.redis import RedisSink
from actorproc.connectors.redis.keys import position_key, tag_of
from actorproc.errors import UsageError
from actorproc.runtime.clock import SYSTEM
from actorproc.sinks.opening import make_sink
from actorproc.sinks.protocol import Delivery, Guarantee, SinkMoved, SinkPlace, SinkRefused, SinkRow
from actorproc.testing import check_sink
from actorproc.testing.sink_check import ALL_TYPES
from tests.connectors.redis.server import RedisServer
from tests.sinks.matrix import tried

pytestmark = pytest.mark.servers

SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("_sequence", pa.int64(), nullable=False)])
ROW = SinkRow("memory://x", 1, "t", 0, 1, "p0")


def sink(server: RedisServer, stream: str, **options: Any) -> RedisSink:
    return RedisSink(server.url, {"stream": stream, **options}, SinkPlace("r", "Orders", SYSTEM))


def entries(server: RedisServer, stream: str) -> list[dict[str, str]]:
    with server.client() as client:
        return [fields for _, fields in client.xrange(stream)]


def delivery(count: int, was: SinkRow | None = None, now: SinkRow = ROW) -> Delivery:
    return Delivery("0", pa.table({"n": range(count), "_sequence": range(count)}, SCHEMA), 0, (count,), was, now)


async def test_it_keeps_exactly_once(server: RedisServer) -> None:
    async def rows() -> Sequence[int]:
        return [int(entry["n"]) for entry in entries(server, "checked")]

    checked = await check_sink(lambda: sink(server, "checked"), rows)
    tried("redis", checked, on="Redis")
    assert (checked.guarantee, checked.repeated) == (Guarantee.EXACTLY_ONCE, 0)


async def test_every_type_is_text_and_nulls_are_left_out(server: RedisServer) -> None:
    columns = {name: pa.array(values, kind) for name, (kind, values) in ALL_TYPES.items()}
    rows = pa.table(columns).append_column("_sequence", pa.array(range(3), pa.int64()))
    async with sink(server, "typed") as found:
        await found.open(rows.schema)
        await found.write(Delivery("0", rows, 0, (3,), None, ROW))
    with server.client() as client:
        client.connection_pool.connection_kwargs["decode_responses"] = False
        first, second, third = [fields for _, fields in client.xrange("typed")]
    assert third == {b"_sequence": b"2", b"_partition": b"0"}
    assert {**first} == {
        b"flag": b"true", b"tiny": b"-128", b"small": b"-32768", b"whole": b"-2147483648",
        b"large": b"-9223372036854775808", b"single": b"1.5", b"real": b"1e+300", b"odd": b"nan",
        b"words": b'", \\ \n\t; DROP TABLE x; --', b"letters": "žluťoučký 🐎".encode(), b"bytes": b"\x00\xff\\x",
        b"day": b"1970-01-01", b"moment": b"2026-01-02T03:04:05.678901Z", b"local": b"2026-01-02T03:04:05.678901",
        b"money": b"-12345678901234567890123456789012.345678", b"list": b'["a",null,"\\""]', b"map": b'{"k":1}',
        b"struct": b'{"a":1,"b":null}', b"_sequence": b"0", b"_partition": b"0",
    }  # fmt: skip
    assert (second[b"words"], second[b"flag"], second[b"real"]) == (b"", b"false", b"inf")


@pytest.mark.parametrize("key", ["stream", "position"])
async def test_a_key_of_another_type_is_refused_and_nothing_changes(server: RedisServer, key: str) -> None:
    name = f"taken-{key}"
    async with sink(server, name) as found:
        await found.open(SCHEMA)
        with server.client() as client:
            client.set(name if key == "stream" else position_key(name, "Orders/r", "0"), "text")
        with pytest.raises(SinkRefused, match="is something else"):
            await found.write(delivery(3))
    with server.client() as client:
        assert client.exists(name, position_key(name, "Orders/r", "0")) == 1


async def test_a_right_that_is_taken_away_is_refused(server: RedisServer) -> None:
    with server.client() as client:
        client.execute_command("ACL SETUSER", "narrow", "on", ">pw", "~*", "+@all")
    url = server.url.replace("redis://", "redis://narrow@")
    found = RedisSink(url, {"stream": "rights", "password": "pw"}, SinkPlace("r", "Orders", SYSTEM))
    async with found:
        await found.open(SCHEMA)
        with server.client() as client:
            client.execute_command("ACL SETUSER", "narrow", "resetkeys", "~other*")
        with pytest.raises(SinkRefused, match=r"(?i)perm"):
            await found.write(delivery(3))


async def test_no_row_is_added_where_the_position_cannot_be_set(server: RedisServer) -> None:
    with server.client() as client:
        rights = ["+@read", "+@stream", "+@scripting", "+@connection", "+select", "+info", "+client", "+config|get"]
        client.execute_command("ACL SETUSER", "noset", "on", ">pw", "~*", "+@all")
    url = server.url.replace("redis://", "redis://noset@")
    found = RedisSink(url, {"stream": "noset", "password": "pw"}, SinkPlace("r", "Orders", SYSTEM))
    async with found:
        await found.open(SCHEMA)
        with server.client() as client:
            client.execute_command("ACL SETUSER", "noset", "nocommands", *rights)
        with pytest.raises(SinkRefused, match=r"(?i)perm|can't run this command"):
            await found.write(delivery(3))
    assert entries(server, "noset") == []


async def test_a_redis_that_may_throw_away_positions_is_refused(own_server: RedisServer) -> None:
    with own_server.client() as client:
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(SinkRefused, match="set maxmemory-policy to noeviction"):
            await sink(own_server, "evicted").open(SCHEMA)
        client.config_set("maxmemory-policy", "volatile-lru")
    async with sink(own_server, "evicted") as found:
        await found.open(SCHEMA)


async def test_full_memory_leaves_a_delivery_undone(own_server: RedisServer) -> None:
    async with sink(own_server, "full") as found:
        await found.open(SCHEMA)
        await found.write(delivery(1))
        with own_server.client() as client:
            client.config_set("maxmemory", "1mb")
            with pytest.raises(Exception, match="maxmemory"):
                await found.write(delivery(5000, ROW, replace(ROW, position=2)))
            assert await found.read("0") == ROW
            assert client.xlen("full") == 1
            client.config_set("maxmemory", "0")
        await found.write(delivery(5000, ROW, replace(ROW, position=2)))
    assert len(entries(own_server, "full")) == 5001


async def test_a_large_commit_is_one_script(server: RedisServer) -> None:
    async with sink(server, "large") as found:
        await found.open(SCHEMA)
        await found.write(delivery(100_000))
    with server.client() as client:
        assert client.xlen("large") == 100_000


async def test_old_entries_go(server: RedisServer) -> None:
    async with sink(server, "short", most_entries=1000) as found:
        await found.open(SCHEMA)
        await found.write(delivery(5000))
    assert 1000 <= len(entries(server, "short")) < 1200


async def test_a_killed_server_leaves_a_delivery_whole_or_undone(own_server: RedisServer) -> None:
    row, delivered, count = None, 0, 3_000
    found = sink(own_server, "killed")
    await found.open(SCHEMA)
    for number in range(8):
        now = replace(ROW, position=number + 1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(SYSTEM.run_in_thread, _kill_after, own_server, number * 0.004)
            with suppress(Exception):
                await found.write(delivery(count, row, now))
        own_server.start()
        async with sink(own_server, "killed") as other:
            await other.open(SCHEMA)
            landed = await other.read("0")
        assert landed in (row, now)
        delivered += landed == now
        assert (number, landed == now, len(entries(own_server, "killed"))) == (number, landed == now, delivered * count)
        if landed != now:
            await found.write(delivery(count, landed, now))
            delivered += 1
        row = now
    await found.close()


async def test_one_failure_tells_of_all_connections_that_are_stale(own_server: RedisServer) -> None:
    """As in openmeterio/openmeter#4485: connections that were open before a failover fail one after the other."""
    async with sink(own_server, "stale") as found:
        await found.open(SCHEMA)
        async with anyio.create_task_group() as tasks:
            for partition in range(8):
                each = delivery(500)
                tasks.start_soon(found.write, Delivery(str(partition), each.rows, 0, (500,), None, each.now))
        own_server.kill()
        own_server.start()
        with suppress(RedisError):
            await found.read("0")
        for partition in range(8):
            assert await found.read(str(partition)) == ROW


async def test_a_script_that_the_server_has_forgotten_is_loaded_again(server: RedisServer) -> None:
    async with sink(server, "flushed") as found:
        await found.open(SCHEMA)
        with server.client() as client:
            client.script_flush()
        await found.write(delivery(3))
    assert len(entries(server, "flushed")) == 3


async def test_a_cancelled_delivery_leaves_no_answer_for_the_next_command(server: RedisServer) -> None:
    """As in redis/redis-py#2665."""
    async with sink(server, "cancelled", connections=1) as found:
        await found.open(SCHEMA)
        for number in range(10):
            was = await found.read("0")
            now = replace(ROW, position=number + 1)
            with anyio.move_on_after(0.002 * number):
                await found.write(delivery(2000, was, now))
            assert await found.read("0") in (was, now)
            assert await found.read("never") is None


async def test_sinks_of_one_stream_have_their_own_positions(server: RedisServer) -> None:
    """As in redis-field-engineering/redis-kafka-connect#68."""
    for processor in ("Orders", "Returns"):
        found = RedisSink(server.url, {"stream": "shared"}, SinkPlace("r", processor, SYSTEM))
        async with found:
            await found.open(SCHEMA)
            assert await found.read("0") is None
            await found.write(delivery(3))
    assert len(entries(server, "shared")) == 6


async def test_a_replica_is_no_place_to_deliver(own_server: RedisServer, server: RedisServer) -> None:
    async with sink(own_server, "replica") as found:
        await found.open(SCHEMA)
        with own_server.client() as client:
            client.execute_command("REPLICAOF", "127.0.0.1", "1")
            with pytest.raises(Exception, match=r"(?i)read only|masterdown|replica"):
                await found.write(delivery(3))
            client.execute_command("REPLICAOF NO ONE")
        await found.write(delivery(3))


@pytest.mark.parametrize("stream", ["orders", "{tag}:orders"])
async def test_a_cluster_takes_a_delivery_at_any_node(cluster: tuple[RedisServer, RedisServer], stream: str) -> None:
    for number, node in enumerate(cluster):
        row = None if number == 0 else replace(ROW, position=number)
        async with sink(node, stream) as found:
            await found.open(SCHEMA)
            assert await found.read("0") == row
            await found.write(delivery(3, row, replace(ROW, position=number + 1)))
            with pytest.raises(SinkMoved):
                await found.write(delivery(3, row, replace(ROW, position=number + 1)))


@pytest.mark.parametrize(("key", "tag"), [("orders", "orders"), ("a{b}c{d}", "b"), ("a{b", "a{b")])
def test_the_position_is_in_the_slot_of_the_stream(key: str, tag: str) -> None:
    assert tag_of(key) == tag
    assert tag_of(position_key(key, "p/s", "{x}")) == tag


@pytest.mark.parametrize("key", ["a}b", "a{}b", "}{"])
def test_a_key_without_a_slot_of_its_own_is_refused(key: str) -> None:
    with pytest.raises(UsageError, match="braces"):
        make_sink("r", {"url": "redis://h", "stream": key}, processor="p", clock=SYSTEM)


def _kill_after(server: RedisServer, seconds: float) -> None:
    time.sleep(seconds)
    server.kill()


async def refusal(url: str, **options: Any) -> str:
    """Why a host would not start with this sink."""
    found = RedisSink(url, {"stream": "orders", **options}, SinkPlace("r", "Orders", SYSTEM))
    try:
        with pytest.raises(SinkRefused) as caught:
            await found.check(SCHEMA)
    finally:
        await found.close()
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_a_wrong_password_or_database_is_refused_at_the_start(server: RedisServer) -> None:
    with server.client() as client:
        client.acl_setuser("me", enabled=True, passwords=["+right"], keys=["*"], commands=["+@all"])
    me = server.url.replace("//", "//me@")
    assert "invalid username-password pair" in await refusal(me, password="wrong")
    assert "DB index is out of range" in await refusal(server.url.replace("/0", "/99"))
    found = RedisSink(me, {"stream": "orders", "password": "right"}, SinkPlace("r", "Orders", SYSTEM))
    await found.check(SCHEMA)
    await found.close()
    with server.client() as client:
        assert client.keys("*orders*") == []


@pytest.mark.parametrize("mode", [{}, {"mode": "upsert", "key": "n", "prefix": "orders"}])
@pytest.mark.parametrize(
    ("rights", "why"),
    [
        (["~*", "+@all", "-evalsha"], "evalsha"),
        (["~*", "+@all", "-info"], "info"),
        (["~*", "+@all", "-hset"], "the user lacks the right to HSET actorproc:{orders}:Orders/r:"),
        (["~actorproc:*", "+@all"], "orders"),
    ],
)
async def test_a_missing_right_is_refused_before_anything_is_delivered(
    server: RedisServer, rights: list[str], why: str, mode: dict[str, str]
) -> None:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "less", "reset", "on", ">secret", *rights)
        if client.info()["redis_version"] < "7" and "lacks" in why:
            pytest.skip("a script of Redis 6 cannot ask for rights")
    options: dict[str, Any] = {"stream": None, **mode} if mode else {}
    assert why in await refusal(server.url.replace("//", "//less@"), password="secret", **options)


async def test_a_stream_that_is_something_else_is_refused_at_the_start(server: RedisServer) -> None:
    with server.client() as client:
        client.set("text", "x")
    assert "the key 'text' is a string, not a stream" in await refusal(server.url, stream="text")

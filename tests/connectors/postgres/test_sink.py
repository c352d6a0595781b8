"""The PostgreSQL sink on a real server: the checks of the test kit, types, refusals, and a server that is killed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import anyio
import psycopg
import pyarrow as pa
import pytest

from actorproc.connectors.postgres import PostgresSink
from actorproc.errors import UsageError
from actorproc.runtime.clock import SYSTEM
from actorproc.sinks.opening import make_sink
from actorproc.sinks.protocol import Delivery, Guarantee, SinkPlace, SinkRefused, SinkRow
from actorproc.testing import check_sink
from actorproc.testing.sink_check import ALL_TYPES
from actorproc.testing.sink_modes_check import Rows
from tests.connectors.postgres.server import Postgres
from tests.sinks.matrix import tried

pytestmark = pytest.mark.servers


def sink(server: Postgres, name: str, **options: Any) -> PostgresSink:
    return PostgresSink(server.url, {"table": name, **options}, SinkPlace("pg", name, SYSTEM))


async def query(server: Postgres, text: Any) -> list[tuple[Any, ...]]:
    async with await psycopg.AsyncConnection.connect(server.url) as connection:
        return await (await connection.execute(text)).fetchall()


async def test_it_keeps_exactly_once(server: Postgres) -> None:
    async def rows() -> Sequence[int]:
        return [n for (n,) in await query(server, "SELECT n FROM checked")]

    def modes(options: Mapping[str, Any]) -> tuple[PostgresSink, Rows]:
        table = f"checked_{len(made)}"
        made.append(table)

        async def read() -> Sequence[int]:
            return [n for (n,) in await query(server, f"SELECT n FROM {table}")]

        return sink(server, table, **options), read

    made = list[str]()
    checked = await check_sink(lambda: sink(server, "checked"), rows, modes)
    tried("postgresql", checked, on="PostgreSQL")
    assert (checked.guarantee, checked.repeated) == (Guarantee.EXACTLY_ONCE, 0)
    assert len(made) == 3


async def test_every_type_comes_back_as_it_was(server: Postgres) -> None:
    columns = {name: pa.array(values, kind) for name, (kind, values) in ALL_TYPES.items()}
    rows = pa.table(columns).append_column("_sequence", pa.array(range(3), pa.int64()))
    async with sink(server, "typed") as found:
        await found.open(rows.schema)
        await found.write(Delivery("0", rows, 0, (3,), None, SinkRow("x", 1, "t", 0, 1)))
    kept = await query(server, "SELECT * FROM typed ORDER BY _sequence")
    expected: dict[str, list[Any]] = {name: list(values) for name, (_, values) in ALL_TYPES.items()}
    expected["map"] = [{"k": 1}, {}, None]
    for at, name in enumerate(ALL_TYPES):
        got = [row[at] for row in kept]
        if name == "odd":
            assert repr(got) == "[nan, -inf, None]"
        else:
            assert got == expected[name], name


@pytest.mark.parametrize("text", ["a\0b", "x" * 20])
async def test_a_value_that_the_table_refuses_leaves_nothing(server: Postgres, text: str) -> None:
    schema = pa.schema([("word", pa.string()), ("_sequence", pa.int64())])
    name = f"narrow_{len(text)}"
    async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as connection:
        await connection.execute(f"CREATE TABLE {name} (word varchar(5), _sequence bigint, _partition text)")
    rows = pa.table({"word": ["good", text], "_sequence": [0, 1]}, schema)
    async with sink(server, name) as found:
        await found.open(schema)
        with pytest.raises(SinkRefused):
            await found.write(Delivery("0", rows, 0, (2,), None, SinkRow("x", 1, "t", 0, 1)))
        assert await found.read("0") is None
    assert await query(server, f"SELECT * FROM {name}") == []


async def test_a_column_is_added_while_other_hosts_create_the_table(server: Postgres) -> None:
    wide = pa.schema([("n", pa.int64()), ("more", pa.string()), ("_sequence", pa.int64())])
    narrow = pa.schema([("n", pa.int64()), ("_sequence", pa.int64())])
    sinks = [sink(server, "grows") for _ in range(6)]
    async with anyio.create_task_group() as tasks:
        for number, each in enumerate(sinks):
            tasks.start_soon(each.open, wide if number % 2 else narrow)
    names = await query(server, "SELECT column_name FROM information_schema.columns WHERE table_name = 'grows'")
    assert {name for (name,) in names} == {"n", "more", "_sequence", "_partition"}
    for each in sinks:
        await each.close()


async def test_a_killed_server_leaves_a_delivery_whole_or_undone(server: Postgres) -> None:
    schema = pa.schema([("n", pa.int64()), ("_sequence", pa.int64())])
    row, delivered = None, 0
    found = sink(server, "killed")
    await found.open(schema)
    for number in range(6):
        rows = pa.table({"n": range(20_000), "_sequence": range(20_000)}, schema)
        now = SinkRow("x", 1, "t", 0, number + 1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(SYSTEM.run_in_thread, _kill_after, server, number * 0.01)
            with suppress(psycopg.Error):
                await found.write(Delivery("0", rows, number, (20_000,), row, now))
        server.start()
        async with sink(server, "killed") as other:
            landed = await other.read("0")
        assert landed in (row, now)
        delivered, row = delivered + (landed == now), landed
        ((count,),) = await query(server, "SELECT count(*) FROM killed")
        assert count == delivered * 20_000
        if landed is None or landed.position != number + 1:
            row = now
            await found.write(Delivery("0", rows, number, (20_000,), landed, now))
            delivered += 1
    await found.close()


@pytest.mark.parametrize(
    ("columns", "wrong"),
    [
        ("n bigint, word text", ""),
        ("n integer, word varchar(3)", ""),
        ("n numeric, word uuid", ""),
        ("n text, word date", ""),
        ("n bigint, word integer", 'column "word" is of type integer'),
        ("n text[], word text", 'column "n" is of type text'),
        ("n boolean, word text", 'column "n" is of type boolean'),
    ],
)
async def test_a_column_of_a_wrong_type_is_refused_at_the_start(server: Postgres, columns: str, wrong: str) -> None:
    schema = pa.schema([("n", pa.int64()), ("word", pa.string()), ("_sequence", pa.int64())])
    async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as connection:
        await connection.execute("DROP TABLE IF EXISTS typed_wrong")
        await connection.execute(f"CREATE TABLE typed_wrong ({columns}, _sequence bigint, _partition text)")
    async with sink(server, "typed_wrong") as found:
        with pytest.raises(SinkRefused, match=wrong) if wrong else nullcontext():
            await found.open(schema)


@pytest.mark.parametrize(
    ("url", "table", "why"),
    [
        ("postgresql://nobody@127.0.0.1:{port}/postgres", "x", 'role "nobody" does not exist'),
        ("postgresql://postgres@127.0.0.1:{port}/nodb", "x", 'database "nodb" does not exist'),
        ("postgresql://reader@127.0.0.1:{port}/postgres", "x", "permission denied for schema public"),
        ("postgresql://writer@127.0.0.1:{port}/postgres", "others", "permission denied for table others"),
    ],
)
async def test_a_wrong_name_or_a_missing_right_is_refused(server: Postgres, url: str, table: str, why: str) -> None:
    schema = pa.schema([("n", pa.int64()), ("_sequence", pa.int64())])
    async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as connection:
        for role in ("reader", "writer"):
            with suppress(psycopg.errors.DuplicateObject):
                await connection.execute(f"CREATE ROLE {role} LOGIN")
        await connection.execute("GRANT CREATE ON SCHEMA public TO writer")
        await connection.execute("GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO writer")
        await connection.execute("DROP TABLE IF EXISTS others")
        await connection.execute("CREATE TABLE others (n bigint, _sequence bigint, _partition text)")
    async with PostgresSink(url.format(port=server.port), {"table": table}, SinkPlace("pg", "other", SYSTEM)) as found:
        for attempt in (found.open, found.check):
            with pytest.raises(SinkRefused, match=why):
                await attempt(schema)


async def test_a_check_leaves_nothing(server: Postgres) -> None:
    schema = pa.schema([("n", pa.int64()), ("_sequence", pa.int64())])
    async with sink(server, "tried") as found:
        await found.check(schema)
        await found.check(schema)
    assert await query(server, "SELECT to_regclass('tried')") == [(None,)]
    assert await query(server, "SELECT count(*) FROM actorproc_sink_positions WHERE sink LIKE 'tried/%'") == [(0,)]


def test_a_password_in_the_url_is_refused() -> None:
    with pytest.raises(UsageError, match="must not contain a password"):
        make_sink("pg", "postgresql://me:secret@host/db", processor="p", clock=SYSTEM)


def _kill_after(server: Postgres, seconds: float) -> None:
    time.sleep(seconds)
    server.kill()

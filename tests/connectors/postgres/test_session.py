"""Settings of a role, a database, the environment or a pooler change nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import psycopg
import pyarrow as pa
import pytest

from actorproc.connectors.postgres import PostgresSink
from actorproc.runtime.clock import SYSTEM
from actorproc.sinks.protocol import Guarantee, SinkPlace
from actorproc.testing import check_sink
from actorproc.testing.sink_modes_check import Rows
from tests.connectors.postgres.one_partition import Target, query
from tests.connectors.postgres.pgbouncer import pgbouncer
from tests.connectors.postgres.server import Postgres
from tests.servers import Unavailable

pytestmark = pytest.mark.servers

WORDS: list[dict[str, Any]] = [{"word": "café", "tags": ["é"]}, {"word": "Zürich", "tags": []}]


@pytest.mark.parametrize("where", ["database", "role", "environment", "url"])
async def test_text_is_right_whatever_the_encoding_of_the_client(
    server: Postgres, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.url
    if where == "database":
        await query(url, "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
        url = url.rpartition("/")[0] + "/latin"
    elif where == "role":
        await query(url, "CREATE ROLE old SUPERUSER LOGIN; ALTER ROLE old SET client_encoding = 'LATIN1'")
        url = url.replace("postgres@", "old@")
    elif where == "environment":
        monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    target = Target(url + "?client_encoding=LATIN1" * (where == "url"), f"words_{where}")
    target.partition = "größe"
    await target.write(*WORDS)
    await target.sink.close()
    found = await query(url, f"SELECT word, length(word), tags, _partition FROM words_{where} ORDER BY _sequence")
    assert found == [("café", 4, ["é"], "größe"), ("Zürich", 6, [], "größe")]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_a_deleted_key_stays_deleted_whatever_the_default_isolation(server: Postgres, level: str) -> None:
    """The row of a parent that is behind begins while the child deletes its key, and waits for its lock."""
    role, table = level.replace(" ", "_"), f"isolated_{level[0]}"
    setting = f"ALTER ROLE {role} SET default_transaction_isolation = '{level}'"
    await query(server.url, f"CREATE ROLE {role} SUPERUSER LOGIN; {setting}")
    options: dict[str, Any] = {"mode": "upsert", "key": ("k",), "deleted": "gone"}
    url = server.url.replace("postgres@", f"{role}@")
    parent, child = Target(url, table, **options), _Awaiting(url, table, **options)
    parent.partition, child.partition, child.depth = "parent", "child", 1
    await parent.write({"k": 1, "gone": False})
    await child.sink.open(pa.schema([("k", pa.int64()), ("gone", pa.bool_()), ("_sequence", pa.int64())]))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(child.write, {"k": 1, "gone": True})
        await anyio.sleep(0.3)
        tasks.start_soon(parent.write, {"k": 1, "gone": False})
    assert await query(server.url, f"SELECT k FROM {table}") == []
    for each in (parent, child):
        await each.sink.close()


class _AwaitingSink(PostgresSink):
    """Its transaction goes on once another one waits for it."""

    def upsert(self, connection: Any, rows: pa.Table) -> None:
        until = time.monotonic() + 20
        with psycopg.connect(self.url, autocommit=True) as other:
            while other.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone() is None:
                assert time.monotonic() < until
                time.sleep(0.01)
        super().upsert(connection, rows)


class _Awaiting(Target):
    kind = _AwaitingSink


async def test_it_keeps_exactly_once_through_a_pooler(server: Postgres) -> None:
    """Transactions of all sinks run on two connections of the server, in turn."""

    async def rows() -> Sequence[int]:
        return [n for (n,) in await query(server.url, "SELECT n FROM pooled")]

    def modes(options: Mapping[str, Any]) -> tuple[PostgresSink, Rows]:
        table = f"pooled_{len(made)}"
        made.append(table)

        async def read() -> Sequence[int]:
            return [n for (n,) in await query(server.url, f"SELECT n FROM {table}")]

        return sink(table, **options), read

    def sink(table: str, **options: Any) -> PostgresSink:
        return PostgresSink(url, {"table": table, **options}, SinkPlace("pg", table, SYSTEM))

    made = list[str]()
    try:
        with pgbouncer(server, connections=2) as url:
            checked = await check_sink(lambda: sink("pooled"), rows, modes)
    except Unavailable as why:
        pytest.skip(str(why))
    assert (checked.guarantee, checked.repeated) == (Guarantee.EXACTLY_ONCE, 0)


async def test_sinks_with_other_columns_share_a_connection_of_a_pooler(server: Postgres) -> None:
    """More deliveries than after which a client prepares its statements, by names that another connection lacks."""
    await query(server.url, "CREATE ROLE pooled SUPERUSER LOGIN; ALTER ROLE pooled SET client_encoding = 'LATIN1'")
    try:
        with pgbouncer(server, connections=1, user="pooled") as url:
            ones, twos = (Target(url, name, mode="upsert", key=("k",)) for name in ("ones", "twos"))
            for n in range(8):
                await ones.write({"k": 1, "word": f"é{n}"})
                await twos.write({"k": "ü", "n": n})
                await query(url, "DISCARD ALL")
            await ones.write({"k": 1, "word": "last", "more": 1.5})
            for each in (ones, twos):
                await each.sink.close()
    except Unavailable as why:
        pytest.skip(str(why))
    assert await query(server.url, "SELECT k, word, more FROM ones") == [(1, "last", 1.5)]
    assert await query(server.url, "SELECT k, n FROM twos") == [("ü", 7)]


async def test_a_stage_of_an_earlier_version_is_no_hindrance(server: Postgres) -> None:
    """It was left on the connection of a pooler."""
    target = Target(server.url, "staged", mode="upsert", key=("k",))
    await target.write({"k": 1})
    (connection,) = target.sink._free
    connection.execute("CREATE TEMPORARY TABLE actorproc_rows (other bigint) ON COMMIT DELETE ROWS")
    connection.commit()
    await target.write({"k": 2})
    left = connection.execute("SELECT relname FROM pg_class WHERE relname LIKE 'actorproc%' AND relpersistence = 't'")
    assert left.fetchall() == [("actorproc_rows",)]
    await target.sink.close()
    assert await query(server.url, "SELECT k FROM staged ORDER BY k") == [(1,), (2,)]

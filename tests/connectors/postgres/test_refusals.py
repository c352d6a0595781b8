"""Rows that a server refuses: each is kept with its reason. An error that is about the server keeps none."""

from __future__ import annotations

import json
import secrets
from typing import Any

import psycopg
import pytest

from actorproc.sinks.protocol import SinkRefused
from tests.connectors.postgres.one_partition import Target, query
from tests.connectors.postgres.server import Postgres

pytestmark = pytest.mark.servers

KEEP: dict[str, Any] = {"on_refused": "keep"}
UPSERT: dict[str, Any] = {"mode": "upsert", "key": ("k",)}
OWN = "_sequence bigint, _partition text"


async def kept(server: Postgres, target: Target) -> list[tuple[int, str]]:
    await target.sink.close()
    found = f"SELECT sequence, reason FROM actorproc_sink_refused WHERE sink = '{target.sink._key}' ORDER BY 1"
    return [(sequence, reason) for sequence, reason in await query(server.url, found)]


async def test_a_key_that_is_too_long_for_an_index_is_kept(server: Postgres) -> None:
    target = Target(server.url, "long_keys", **UPSERT, **KEEP)
    await target.write({"k": "a"}, {"k": secrets.token_hex(4000)}, {"k": "b"})
    ((sequence, reason),) = await kept(server, target)
    assert (sequence, "index row size" in reason) == (1, True)
    assert await query(server.url, "SELECT k FROM long_keys ORDER BY k") == [("a",), ("b",)]


@pytest.mark.parametrize("mode", [{}, UPSERT])
async def test_a_refused_row_that_stops_the_delivery_is_named(server: Postgres, mode: dict[str, Any]) -> None:
    target = Target(server.url, f"named_{len(mode)}", **mode)
    with pytest.raises(SinkRefused, match=r"the row of record 2 of partition 0: .*0x00"):
        await target.write({"k": "a"}, {"k": "b"}, {"k": "a\0b"}, {"k": "d"})
    assert await target.sink.read("0") is None
    await target.sink.close()


async def test_a_row_that_is_too_large_for_a_page_is_kept(server: Postgres) -> None:
    await query(server.url, f"CREATE TABLE wide_rows (k text, {OWN})")
    await query(server.url, "ALTER TABLE wide_rows ALTER k SET STORAGE PLAIN")
    target = Target(server.url, "wide_rows", **KEEP)
    await target.write({"k": "a"}, {"k": "x" * 10_000})
    ((sequence, reason),) = await kept(server, target)
    assert (sequence, "row is too big" in reason) == (1, True)


async def test_a_row_outside_of_a_view_is_kept(server: Postgres) -> None:
    """COPY takes no view: the one of a trigger."""
    await query(server.url, f"CREATE TABLE behind_view (k bigint, {OWN}); CREATE TABLE to_view (k bigint, {OWN})")
    await query(server.url, "CREATE VIEW below_two AS SELECT * FROM behind_view WHERE k < 2 WITH CHECK OPTION")
    await query(
        server.url,
        "CREATE FUNCTION to_view() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN INSERT INTO below_two VALUES (NEW.*); RETURN NULL; END$$",
    )
    await query(server.url, "CREATE TRIGGER t BEFORE INSERT ON to_view FOR EACH ROW EXECUTE FUNCTION to_view()")
    target = Target(server.url, "to_view", **KEEP)
    await target.write({"k": 1}, {"k": 2})
    ((sequence, reason),) = await kept(server, target)
    assert (sequence, "violates check option" in reason) == (1, True)


@pytest.mark.parametrize("code", ["P0001", "P0004", "38000", "45000", "MY001", "09000", "21000"])
@pytest.mark.parametrize("mode", ["append", "upsert"])
async def test_a_row_for_which_a_trigger_fails_is_kept(server: Postgres, code: str, mode: str) -> None:
    table = f"triggered_{mode}_{code.lower()}"
    version = ", _version bigint NOT NULL" if mode == "upsert" else ""
    await query(server.url, f"CREATE TABLE {table} (k bigint PRIMARY KEY{version}, {OWN})")
    await query(
        server.url,
        f"CREATE FUNCTION {table}() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN IF NEW.k = 2 THEN "
        f"RAISE EXCEPTION 'not two' USING ERRCODE = '{code}'; END IF; RETURN NEW; END$$",
    )
    await query(server.url, f"CREATE TRIGGER t BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION {table}()")
    target = Target(server.url, table, **KEEP, **(UPSERT if mode == "upsert" else {}))
    await target.write({"k": 1}, {"k": 2}, {"k": 3})
    ((sequence, reason),) = await kept(server, target)
    assert (sequence, "not two" in reason) == (1, True)
    assert await query(server.url, f"SELECT k FROM {table} ORDER BY k") == [(1,), (3,)]


async def test_keys_that_the_table_takes_for_one_are_delivered_one_by_one(server: Postgres) -> None:
    await query(server.url, "CREATE EXTENSION citext")
    await query(server.url, f"CREATE TABLE any_case (k citext PRIMARY KEY, _version bigint NOT NULL, n int, {OWN})")
    target = Target(server.url, "any_case", **UPSERT, **KEEP)
    await target.write({"k": "a", "n": 1}, {"k": "A", "n": 2}, {"k": "b", "n": 3})
    assert await kept(server, target) == []
    assert len(await query(server.url, "SELECT n FROM any_case")) == 2


async def test_a_character_that_the_database_does_not_have_is_kept_escaped(server: Postgres) -> None:
    await query(server.url, "CREATE DATABASE western ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    url = server.url.rpartition("/")[0] + "/western"
    target = Target(url, "words", **KEEP)
    await target.write({"word": "café"}, {"word": "ő"})
    await target.sink.close()
    assert await query(url, "SELECT word FROM words") == [("café",)]
    ((reason, fields),) = await query(url, "SELECT reason, fields FROM actorproc_sink_refused")
    assert ("no equivalent" in reason, json.loads(fields)) == (True, {"word": "ő", "_sequence": 1})


@pytest.mark.parametrize("mode", ["append", "upsert"])
async def test_an_error_of_the_server_keeps_no_row(server: Postgres, mode: str) -> None:
    """The column is dropped under the sink."""
    target = Target(server.url, f"dropped_{mode}", **KEEP, **(UPSERT if mode == "upsert" else {}))
    await target.write({"k": 1, "n": 1})
    await query(server.url, f"ALTER TABLE dropped_{mode} DROP COLUMN n")
    row = target.row
    assert row is not None
    target.sink.open = _nothing  # type: ignore[method-assign, assignment]
    with pytest.raises(psycopg.errors.UndefinedColumn):
        await target.write({"k": 2, "n": 2})
    assert await target.sink.read("0") == row
    assert await kept(server, target) == []


async def _nothing(*_: object) -> None: ...


@pytest.mark.parametrize("mode", ["append", "upsert"])
async def test_a_row_that_a_deferred_constraint_refuses_is_kept(server: Postgres, mode: str) -> None:
    target = await deferred(server, f"deferred_{mode}", mode, **KEEP)
    await target.write({"k": 1}, {"k": 2}, {"k": 3}, {"k": 1})
    ((sequence, reason),) = await kept(server, target)
    assert (sequence, "violates foreign key" in reason) == (1, True)
    assert {k for (k,) in await query(server.url, f"SELECT k FROM {target.sink.table}")} == {1, 3}


@pytest.mark.parametrize("mode", ["append", "upsert"])
async def test_a_row_that_a_deferred_constraint_refuses_stops_the_delivery(server: Postgres, mode: str) -> None:
    target = await deferred(server, f"stopped_{mode}", mode)
    with pytest.raises(SinkRefused, match=r"the row of record 1 of partition 0: .*violates foreign key"):
        await target.write({"k": 1}, {"k": 2})
    assert await target.sink.read("0") is None
    await target.sink.close()


async def deferred(server: Postgres, table: str, mode: str, **options: Any) -> Target:
    """Two is not there."""
    unique = " PRIMARY KEY" if mode == "upsert" else ""
    version = ", _version bigint NOT NULL" if mode == "upsert" else ""
    await query(server.url, f"CREATE TABLE {table}_parent (k bigint PRIMARY KEY)")
    await query(server.url, f"INSERT INTO {table}_parent VALUES (1), (3)")
    reference = f"REFERENCES {table}_parent DEFERRABLE INITIALLY DEFERRED"
    await query(server.url, f"CREATE TABLE {table} (k bigint{unique} {reference}{version}, {OWN})")
    return Target(server.url, table, **options, **(UPSERT if mode == "upsert" else {}))

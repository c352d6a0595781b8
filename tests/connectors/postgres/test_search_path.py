"""Tables whose names have no schema: a sink goes on in those that it has, whatever is added to the search path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from actorproc import Batch, PartitionContext, PartitionHandler, Processor
from actorproc.sinks.protocol import SinkRefused
from actorproc.testing.memory_source import MemorySource
from tests.connectors.postgres.one_partition import Target, query
from tests.connectors.postgres.server import Postgres

pytestmark = pytest.mark.servers

EVERYTHING: dict[str, Any] = {"mode": "upsert", "key": ("k",), "deleted": "gone", "on_refused": "keep"}


async def role(server: Postgres, name: str, kind: str = "SUPERUSER") -> str:
    await query(server.url, f"CREATE ROLE {name} LOGIN {kind}")
    return server.url.replace("postgres@", f"{name}@")


async def database(server: Postgres, name: str) -> str:
    """For tests of the sink's own tables, which others must not have made."""
    await query(server.url, f"CREATE DATABASE {name}")
    return server.url.rpartition("/")[0] + f"/{name}"


class Copy(PartitionHandler):
    output_schema = "n long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, {"n": record.json()})


@pytest.mark.parametrize("table", ["delays_{}", "public.delays_{}"])
async def test_a_schema_with_the_name_of_the_user_repeats_nothing(server: Postgres, table: str, tmp_path: Path) -> None:
    """It comes first on the default search path."""
    user = f"walker_{len(table)}"
    url, source, table = await role(server, user), MemorySource(2), table.format(user)

    async def run(first: int, end: int) -> None:
        for n in range(first, end):
            source.append(str(n % 2), [str(n).encode()])
        sinks = {"pg": {"url": url, "table": table}}
        await Processor(
            Copy, source=source, container=str(tmp_path), name=user, host="a", commit_interval=1, sinks=sinks
        ).run(until_end=True)

    await run(0, 20)
    await query(url, f"CREATE SCHEMA {user}")
    await run(20, 30)
    assert await query(url, f"SELECT count(*), count(DISTINCT n) FROM public.delays_{user}") == [(30, 30)]
    assert await query(url, f"SELECT 1 FROM pg_tables WHERE schemaname = '{user}'") == []


async def test_a_schema_that_is_added_under_an_open_sink_changes_nothing(server: Postgres) -> None:
    url = await role(server, "stroller")
    target = Target(url, "strolled", **EVERYTHING)
    await target.write({"k": 1, "gone": False}, {"k": None, "gone": False})
    await query(url, "CREATE SCHEMA stroller")
    for suffix in ("positions", "lives", "refused"):
        await query(url, f"CREATE TABLE stroller.actorproc_sink_{suffix} (LIKE actorproc_sink_{suffix})")
    await query(url, "CREATE TABLE stroller.strolled (LIKE public.strolled)")
    await query(url, "CREATE TABLE stroller.strolled_deleted (LIKE public.strolled_deleted)")
    assert await target.sink.read("0") == target.row
    target.sink.open = _nothing  # type: ignore[method-assign, assignment]
    await target.write({"k": 2, "gone": False}, {"k": 1, "gone": True}, {"k": None, "gone": False})
    await target.sink.close()
    assert await query(url, "SELECT k FROM public.strolled") == [(2,)]
    assert await query(url, "SELECT k FROM public.strolled_deleted") == [(1,)]
    assert await query(url, "SELECT count(*) FROM public.actorproc_sink_refused WHERE sink = 'strolled/pg'") == [(2,)]


async def _nothing(*_: object) -> None: ...


async def test_of_two_tables_of_positions_the_one_with_the_sink_counts(server: Postgres) -> None:
    """Another deployment made the first one on the path."""
    url = await role(server, "rambler")
    target = Target(url, "public.rambled")
    await target.write({"n": 1})
    await target.sink.close()
    await query(url, "CREATE SCHEMA rambler")
    await query(url, "CREATE TABLE rambler.actorproc_sink_positions (LIKE public.actorproc_sink_positions)")
    again = Target(url, "public.rambled")
    await again.sink.open(pa.schema([("n", pa.int64()), ("_sequence", pa.int64())]))
    assert await again.sink.read("0") == target.row
    await again.sink.close()
    other = Target(url, "public.rambled", name="new")
    await other.write({"n": 2})
    await other.sink.close()
    assert await query(url, "SELECT sink FROM rambler.actorproc_sink_positions") == [("new/pg",)]


@pytest.mark.parametrize("create", [True, False])
async def test_a_role_that_may_not_create_tables_uses_those_that_are_there(server: Postgres, create: bool) -> None:
    name = f"writer_{create}".lower()
    first = Target(server.url, name, **EVERYTHING)
    await first.write({"k": 1, "gone": False})
    await first.sink.close()
    url = await role(server, name, "")
    await query(server.url, f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {name}")
    target = Target(url, name, create=create, **EVERYTHING)
    target.row = first.row
    await target.write({"k": 2, "gone": False}, {"k": 1, "gone": True}, {"k": None, "gone": False})
    await target.sink.close()
    assert await query(server.url, f"SELECT k FROM {name}") == [(2,)]
    await query(server.url, f"DROP OWNED BY {name}")


async def test_a_missing_table_is_refused_with_its_statement_where_none_is_created(server: Postgres) -> None:
    url = await database(server, "bare")
    await query(url, "CREATE TABLE given (k bigint PRIMARY KEY, _version bigint, _sequence bigint, _partition text)")
    options: dict[str, Any] = {"mode": "upsert", "key": ("k",), "on_refused": "keep", "create": False}
    for _ in range(3):
        target = Target(url, "given", **options)
        with pytest.raises(SinkRefused, match="is missing: CREATE TABLE actorproc_sink_") as refused:
            await target.write({"k": 1})
        statement = str(refused.value).partition("missing: ")[2].partition(", or set create")[0]
        await query(url, statement)
    target = Target(url, "given", **options)
    await target.write({"k": 1})
    await target.sink.close()
    assert await query(url, "SELECT k FROM given") == [(1,)]


@pytest.mark.parametrize("spellings", [("{}", "public.{}", "{}"), ("public.{}", "{}", "public.{}")])
async def test_lives_go_on_whichever_way_the_table_is_spelled(server: Postgres, spellings: tuple[str, ...]) -> None:
    table = f"lives_{len(spellings[0])}"
    for life, spelled in enumerate(spellings):
        await _live(server.url, spelled.format(table), f"r{life}", commits=3 - life, n=life)
        assert await query(server.url, f"SELECT n FROM {table}") == [(life,)]
    counted = f"SELECT target, number FROM actorproc_sink_lives WHERE target LIKE '%{table}' ORDER BY number"
    assert await query(server.url, counted) == [(f"public.{table}", life) for life in (1, 2, 3)]


@pytest.mark.parametrize("stored", ["{}", "public.{}"])
@pytest.mark.parametrize("spelled", ["{}", "public.{}"])
async def test_lives_of_an_earlier_version_are_read(server: Postgres, stored: str, spelled: str) -> None:
    """It counted them by the spelling of the option `table`."""
    table = f"kept_{len(stored)}_{len(spelled)}"
    await _live(server.url, table, "r0", commits=1, n=0)
    await query(server.url, f"UPDATE {table} SET _version = _version + (6::bigint << 49)")
    await query(
        server.url,
        f"UPDATE actorproc_sink_lives SET target = '{stored.format(table)}', number = 7 WHERE target LIKE '%{table}'",
    )
    await _live(server.url, spelled.format(table), "r0", commits=1, n=1)
    await _live(server.url, spelled.format(table), "r1", commits=1, n=2)
    assert await query(server.url, f"SELECT n FROM {table}") == [(2,)]
    counted = f"SELECT number FROM actorproc_sink_lives WHERE target LIKE '%{table}' ORDER BY number"
    assert await query(server.url, counted) == [(7,), (8,)]


async def _live(url: str, table: str, registration: str, *, commits: int, n: int) -> None:
    target = Target(url, table, name=f"{table}-{registration}-{n}", mode="upsert", key=("k",))
    target.registration = registration
    for _ in range(commits):
        await target.write({"k": 1, "n": n})
    await target.sink.close()

"""Where tables are found whose names have no schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql


def schemas_with(connection: psycopg.Connection[Any], table: str) -> list[str]:
    """Schemas of the search path that have a table or a view of this name. PostgreSQL itself takes the first one."""
    rows = connection.execute(
        "SELECT path.name FROM unnest(current_schemas(false)) WITH ORDINALITY AS path (name, place) "
        "JOIN pg_namespace ON nspname = path.name JOIN pg_class ON relnamespace = pg_namespace.oid "
        "WHERE relname = %s AND relkind IN ('r', 'p', 'v', 'm', 'f') ORDER BY place",
        (table,),
    ).fetchall()
    return [schema for (schema,) in rows]


def schema_of(connection: psycopg.Connection[Any], table: str) -> str | None:
    """The schema in which PostgreSQL finds the table now, or would create it. None: the search path has none."""
    if found := schemas_with(connection, table):
        return found[0]
    current = connection.execute("SELECT current_schema()").fetchone()
    return None if current is None else current[0]


def has_any(connection: psycopg.Connection[Any], table: Sequence[str], column: str, values: Sequence[str]) -> bool:
    """Whether a table, which this role may not be allowed to read, has one of the values."""
    name = sql.Identifier(*table)
    may = connection.execute("SELECT has_table_privilege(%s, 'SELECT')", (name.as_string(connection),)).fetchone()
    if may != (True,):
        return False
    query = sql.SQL("SELECT 1 FROM {} WHERE {} = ANY(%s) LIMIT 1").format(name, sql.Identifier(column))
    return connection.execute(query, (list(values),)).fetchone() is not None

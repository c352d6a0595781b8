"""The table of the rows: creates and checks it. It must know its latest blocks again."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from actorproc.connectors.clickhouse.columns import column_type, takes
from actorproc.connectors.clickhouse.options import ClickHouseOptions
from actorproc.sinks.protocol import SinkRefused


def quoted(name: str) -> str:
    """A name as SQL."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def prepare(client: Any, table: str, schema: pa.Schema, options: ClickHouseOptions) -> dict[str, str]:
    """Create the table and the columns that it lacks, and check it.

    Returns:
        The types of its columns.

    Raises:
        SinkRefused: it lacks columns that are not to be created, has a column of a type that would change values, or
            does not know its latest blocks again.
    """
    columns = {field.name: f"{quoted(field.name)} {column_type(field)}" for field in schema}
    if options.create:
        client.command(
            f"CREATE TABLE IF NOT EXISTS {quoted(table)} ({', '.join(columns.values())}) ENGINE = MergeTree "
            f"ORDER BY (_partition, _sequence) SETTINGS non_replicated_deduplication_window = {options.window}"
        )
    _check_window(client, table, options.window)
    there = _columns(client, table)
    if missing := [name for name in columns if name not in there]:
        if not options.create:
            raise SinkRefused(f"table {table} lacks the columns {', '.join(missing)}: add them, or set create = true")
        for name in missing:
            client.command(f"ALTER TABLE {quoted(table)} ADD COLUMN IF NOT EXISTS {columns[name]}")
        there = _columns(client, table)
    for field in schema:
        if not takes(there[field.name], field.type):
            raise SinkRefused(
                f"column {field.name} of table {table} is {there[field.name]}, which does not have every value of "
                f"{field.type}: make it {column_type(field)} or String"
            )
    _try_insert(client, table, {name: there[name] for name in columns})
    return there


def _try_insert(client: Any, table: str, types: dict[str, str]) -> None:
    """Insert no rows: the server says whether the user may."""
    names = ", ".join(map(quoted, types))
    values = ", ".join(f"defaultValueOfTypeName({_text(kind)})" for kind in types.values())
    client.command(f"INSERT INTO {quoted(table)} ({names}) SELECT {values} WHERE 0")


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _columns(client: Any, table: str) -> dict[str, str]:
    found = client.query(
        "SELECT name, type FROM system.columns WHERE database = currentDatabase() AND table = {table:String}",
        parameters={"table": table},
    )
    return dict(found.result_rows)


def _check_window(client: Any, table: str, wanted: int) -> None:
    found = client.query(
        "SELECT engine, engine_full FROM system.tables WHERE database = currentDatabase() AND name = {table:String}",
        parameters={"table": table},
    ).result_rows
    if not found:
        raise SinkRefused(f"there is no table {table}: create it, or set create = true")
    engine, full = found[0]
    if not engine.endswith("MergeTree"):
        raise SinkRefused(f"table {table} has the engine {engine}, which does not know blocks again: use a MergeTree")
    name = "deduplication_window"
    name = f"replicated_{name}" if engine.startswith(("Replicated", "Shared")) else f"non_replicated_{name}"
    if (window := _window(client, name, full)) < wanted:
        raise SinkRefused(
            f"table {table} knows only its latest {window} blocks again, and a block that is sent again may be older: "
            f"ALTER TABLE {table} MODIFY SETTING {name} = {wanted}; or set the option window lower"
        )


def _window(client: Any, name: str, engine: str) -> int:
    if (own := re.search(rf"\b{name}\s*=\s*(\d+)", engine)) is not None:
        return int(own[1])
    found = client.query(
        "SELECT value FROM system.merge_tree_settings WHERE name = {name:String}", parameters={"name": name}
    )
    return int(found.result_rows[0][0])

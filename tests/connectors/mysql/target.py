"""A sink of a table, deliveries to it, and what a statement finds there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pymysql

from actorproc.connectors.mysql import MysqlSink
from actorproc.runtime.clock import SYSTEM
from actorproc.sinks.protocol import Delivery, SinkPlace, SinkRow

OWN = "_sequence bigint, _partition varchar(300)"
"""Columns that each table needs."""


def sink(url: str, table: str, **options: Any) -> MysqlSink:
    return MysqlSink(url, {"table": table, **options}, SinkPlace("db", table, SYSTEM))


def query(url: str, text: str) -> Sequence[tuple[Any, ...]]:
    port = urlsplit(url).port or 0
    with pymysql.connect(host="127.0.0.1", port=port, user="root", database="tests", autocommit=True) as connection:
        cursor = connection.cursor()
        cursor.execute(text)
        return cursor.fetchall()


async def deliver(found: MysqlSink, rows: pa.Table) -> None:
    """The first delivery of the sink."""
    rows = rows.append_column("_sequence", pa.array(range(rows.num_rows), pa.int64()))
    async with found:
        await found.open(rows.schema)
        now = SinkRow("home", 1, "term", 0, 1)
        await found.write(Delivery("0", rows, 0, (rows.num_rows,), None, now, registration="one", begins=True))


def refused(url: str, table: str) -> Sequence[tuple[Any, ...]]:
    """Sequences and reasons of the rows that were kept."""
    where = f"WHERE sink = '{table}/db' ORDER BY sequence"
    return query(url, f"SELECT sequence, reason FROM actorproc_sink_refused {where}")

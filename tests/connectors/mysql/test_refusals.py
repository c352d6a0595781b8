"""Which errors are about a row: it stops the delivery, or is kept. All others are tried again."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import anyio
import pyarrow as pa
import pymysql
import pytest

from actorproc.connectors.mysql.errors import is_of_a_row
from actorproc.sinks.protocol import SinkRefused
from tests.connectors.mysql.target import OWN, deliver, query, refused, sink

pytestmark = pytest.mark.servers

REFUSALS = {
    "CHECK": ("n int CHECK (n < 5)", "CONSTRAINT"),
    "SIGNAL": ("n int", "too large"),
    "SIGNAL with a number": ("n int", "too large"),
    "SIGNAL with a large number": ("n int", "too large"),
    "division": ("n int, d int AS (1 DIV (n - 7)) STORED", "Division by 0"),
    "expression": ("n int, d bigint unsigned AS (6 - n) STORED", "Out of range|out of range"),
    "partition": ("n int", "no partition"),
    "foreign key": ("n int, FOREIGN KEY (n) REFERENCES known (n)", "foreign key"),
    "null": ("n int, d varchar(9) AS (NULLIF(n, 7)) STORED CHECK (d IS NOT NULL)", "CONSTRAINT"),
    "number": ("n int, d int AS (CAST(IF(n = 7, 'x', '1') AS int)) STORED", "Truncated incorrect"),
}
SIGNALS = {
    "SIGNAL": "",
    "SIGNAL with a number": ", MYSQL_ERRNO = 30001",
    "SIGNAL with a large number": ", MYSQL_ERRNO = 60000",
}


@pytest.mark.parametrize("kind", REFUSALS)
@pytest.mark.parametrize("mode", ["append", "upsert"])
async def test_only_the_row_that_is_refused_is_kept(url: str, kind: str, mode: str) -> None:
    columns, says = REFUSALS[kind]
    table = f"{kind} {mode}"
    query(url, "CREATE TABLE IF NOT EXISTS known (n int PRIMARY KEY)")
    query(url, "INSERT IGNORE INTO known VALUES (1), (2), (3)")
    by = "PARTITION BY LIST (id) (PARTITION p VALUES IN (1, 2, 3))" if kind == "partition" else ""
    key = "" if mode == "append" else "_version bigint NOT NULL DEFAULT 0, PRIMARY KEY (id),"
    query(url, f"CREATE TABLE `{table}` (id int, {key} {columns}, {OWN}) {by}")
    if kind in SIGNALS:
        signal = f"SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'too large'{SIGNALS[kind]}"
        query(url, f"CREATE TRIGGER `{table}` BEFORE INSERT ON `{table}` FOR EACH ROW IF NEW.n > 5 THEN {signal}; "
              "END IF")  # fmt: skip
    numbers = [1, 2, 7, 3]
    options: dict[str, Any] = {"mode": mode, "key": "id"} if mode == "upsert" else {}
    rows = pa.table({"id": numbers, "n": numbers})
    with pytest.raises(SinkRefused, match=rf"the row of record .* of partition .*: .*{says}"):
        await deliver(sink(url, table, **options), rows)
    await deliver(sink(url, table, on_refused="keep", **options), rows)
    assert sorted(query(url, f"SELECT n FROM `{table}`")) == [(1,), (2,), (3,)]
    ((sequence, reason),) = refused(url, table)
    assert sequence == 2
    assert re.search(says, reason)


async def test_a_time_before_the_first_of_a_column_is_refused(url: str) -> None:
    query(url, f"CREATE TABLE early (moment timestamp(6) NULL, {OWN})")
    moments = [datetime(1900, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)]
    rows = pa.table({"moment": pa.array(moments, pa.timestamp("us", "UTC"))})
    await deliver(sink(url, "early", on_refused="keep"), rows)
    assert [sequence for sequence, _ in refused(url, "early")] == [0]
    assert query(url, "SELECT year(moment) FROM early") == ((2026,),)


async def test_a_row_longer_than_a_packet_is_refused_by_itself(odd_url: str) -> None:
    """Many rows that are longer together are no reason. The JSON of the long one does not fit either."""
    words = ["a", *["many" * 1000] * 1000, "x" * (1 << 20), "b"]
    rows = pa.table({"word": words})
    with pytest.raises(SinkRefused, match="raise its max_allowed_packet"):
        await deliver(sink(odd_url, "long"), rows)
    await deliver(sink(odd_url, "long", on_refused="keep"), rows)
    assert query(odd_url, "SELECT count(*), min(length(word)), max(length(word)) FROM `long`") == ((1002, 1, 4000),)
    ((sequence, reason, fields),) = query(
        odd_url, "SELECT sequence, reason, fields FROM actorproc_sink_refused WHERE sink = 'long/db'"
    )
    assert (sequence, fields) == (1001, "null")
    assert "max_allowed_packet" in reason


async def test_a_row_as_long_as_a_packet_is_delivered(odd_url: str) -> None:
    with anyio.fail_after(60):
        await deliver(sink(odd_url, "fits"), pa.table({"word": ["x" * ((1 << 20) - 200)]}))
    assert query(odd_url, "SELECT length(word) FROM fits") == (((1 << 20) - 200,),)


@pytest.mark.parametrize("code", [1021, 1030, 1040, 1114, 1146, 1153, 1205, 1213, 1290, 1317, 1927, 2006, 2013, 3024])
def test_errors_of_the_server_are_of_no_row(code: int) -> None:
    assert not is_of_a_row(pymysql.err.OperationalError(code, "..."))
    assert not is_of_a_row(pymysql.err.InterfaceError("closed"))
    assert not is_of_a_row(OSError(1644, "..."))

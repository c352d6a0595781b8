"""What the sink does depends on no default of the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from actorproc.connectors.mysql import MysqlSink
from actorproc.sinks.protocol import Guarantee
from actorproc.testing import check_sink
from actorproc.testing.sink_modes_check import Rows
from tests.connectors.mysql.target import OWN, deliver, query, sink

pytestmark = pytest.mark.servers


async def test_it_keeps_exactly_once_whatever_the_defaults(odd_url: str) -> None:
    async def rows() -> Sequence[int]:
        return [n for (n,) in query(odd_url, "SELECT n FROM checked")]

    def modes(options: Mapping[str, Any]) -> tuple[MysqlSink, Rows]:
        table = f"checked_{len(made)}"
        made.append(table)

        async def read() -> Sequence[int]:
            return [n for (n,) in query(odd_url, f"SELECT n FROM {table}")]

        return sink(odd_url, table, **options), read

    made = list[str]()
    checked = await check_sink(lambda: sink(odd_url, "checked"), rows, modes)
    assert (checked.guarantee, checked.repeated) == (Guarantee.EXACTLY_ONCE, 0)


async def test_times_in_timestamp_columns_are_utc(odd_url: str) -> None:
    """The server's zone is Europe/Berlin, where there was no 2:30 on the day of the second one."""
    query(odd_url, f"CREATE TABLE times (moment timestamp(6) NULL, {OWN}) ENGINE = InnoDB")
    moments = [datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), datetime(2026, 3, 29, 2, 30, tzinfo=UTC)]
    await deliver(sink(odd_url, "times"), pa.table({"moment": pa.array(moments, pa.timestamp("us", "UTC"))}))
    found = [float(n) for (n,) in query(odd_url, "SELECT UNIX_TIMESTAMP(moment) FROM times ORDER BY _sequence")]
    assert found == [moment.timestamp() for moment in moments]


async def test_text_is_right_whatever_the_defaults(odd_url: str) -> None:
    words = ["a\\'\"\n", "žluťoučký 🐎", "%s"]
    await deliver(sink(odd_url, "text"), pa.table({"word": words}))
    assert [word for (word,) in query(odd_url, "SELECT word FROM text ORDER BY _sequence")] == words

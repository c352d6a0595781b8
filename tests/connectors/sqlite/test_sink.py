"""The SQLite sink against the checks of the test kit."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from actorproc.connectors.sqlite import SqliteSink
from actorproc.runtime.clock import SYSTEM
from actorproc.sinks.protocol import Guarantee, SinkPlace
from actorproc.testing import check_sink
from actorproc.testing.sink_modes_check import Rows
from tests.sinks.matrix import tried


async def test_it_keeps_exactly_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"

    def make() -> SqliteSink:
        return SqliteSink(f"sqlite:{path}", {"table": "the rows"}, SinkPlace("db", "Delays", SYSTEM))

    async def rows() -> Sequence[int]:
        with sqlite3.connect(path) as connection:
            return [n for (n,) in connection.execute('SELECT n FROM "the rows"')]

    def modes(options: Mapping[str, Any]) -> tuple[SqliteSink, Rows]:
        table = f"table {len(made)}"
        made.append(table)

        async def read() -> Sequence[int]:
            with sqlite3.connect(path) as connection:
                return [n for (n,) in connection.execute(f'SELECT n FROM "{table}"')]

        return SqliteSink(f"sqlite:{path}", {"table": table, **options}, SinkPlace("db", table, SYSTEM)), read

    made = list[str]()
    checked = await check_sink(make, rows, modes)
    tried("sqlite", checked, on="SQLite")
    assert (checked.guarantee, checked.repeated) == (Guarantee.EXACTLY_ONCE, 0)
    assert len(made) == 3

"""The SQLite sink against the checks of the test kit."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from actorproc.connectors.sqlite import SqliteSink
from actorproc.runtime.clock import SYSTEM
from actorproc.sinks.protocol import Guarantee, SinkPlace
from actorproc.testing import check_sink


async def test_it_keeps_exactly_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"

    def make() -> SqliteSink:
        return SqliteSink(f"sqlite:{path}", {"table": "the rows"}, SinkPlace("db", "Delays", SYSTEM))

    async def rows() -> Sequence[int]:
        with sqlite3.connect(path) as connection:
            return [n for (n,) in connection.execute('SELECT n FROM "the rows"')]

    checked = await check_sink(make, rows)
    assert (checked.guarantee, checked.repeated) == (Guarantee.EXACTLY_ONCE, 0)

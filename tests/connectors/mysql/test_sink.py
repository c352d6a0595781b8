"""The MySQL sink on a real MariaDB server: the checks of the test kit, types, keys and refused rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pymysql
import pytest

from actorproc.connectors.mysql import MysqlSink
from actorproc.runtime.clock import SYSTEM
from actorproc.sinks.protocol import Delivery, Guarantee, SinkPlace, SinkRefused, SinkRow
from actorproc.testing import check_sink
from actorproc.testing.sink_check import ALL_TYPES
from actorproc.testing.sink_modes_check import Rows
from tests.connectors.mysql.server import mariadb
from tests.servers import REQUIRED, Unavailable
from tests.sinks.matrix import tried

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    try:
        with mariadb() as found:
            yield found
    except Unavailable as why:
        if REQUIRED:
            raise
        pytest.skip(str(why))


def sink(url: str, table: str, **options: Any) -> MysqlSink:
    return MysqlSink(url, {"table": table, **options}, SinkPlace("db", table, SYSTEM))


def query(url: str, text: str) -> Sequence[tuple[Any, ...]]:
    port = urlsplit(url).port or 0
    with pymysql.connect(host="127.0.0.1", port=port, user="root", database="tests", autocommit=True) as connection:
        cursor = connection.cursor()
        cursor.execute(text)
        return cursor.fetchall()


async def deliver(found: MysqlSink, rows: pa.Table) -> None:
    rows = rows.append_column("_sequence", pa.array(range(rows.num_rows), pa.int64()))
    async with found:
        await found.open(rows.schema)
        now = SinkRow("home", 1, "term", 0, 1)
        await found.write(Delivery("0", rows, 0, (rows.num_rows,), None, now, registration="one", begins=True))


async def test_it_keeps_exactly_once_in_every_mode(url: str) -> None:
    async def rows() -> Sequence[int]:
        return [n for (n,) in query(url, "SELECT n FROM checked")]

    def modes(options: Mapping[str, Any]) -> tuple[MysqlSink, Rows]:
        table = f"checked {len(made)}%s"
        made.append(table)

        async def read() -> Sequence[int]:
            return [n for (n,) in query(url, f"SELECT n FROM `{table}`")]

        return sink(url, table, **options), read

    made = list[str]()
    checked = await check_sink(lambda: sink(url, "checked"), rows, modes)
    tried("mysql", checked, on="MariaDB")
    assert (checked.guarantee, checked.repeated) == (Guarantee.EXACTLY_ONCE, 0)
    assert len(made) == 3


async def test_every_type_comes_back_as_it_was(url: str) -> None:
    columns = {name: pa.array(values, kind) for name, (kind, values) in ALL_TYPES.items()}
    await deliver(sink(url, "typed"), pa.table(columns))
    kept = query(url, "SELECT * FROM typed ORDER BY _sequence")
    for at, (name, (kind, values)) in enumerate(ALL_TYPES.items()):
        got = [row[at] for row in kept]
        if not pa.types.is_nested(kind) and name not in ("real", "odd"):
            assert got == [v.replace(tzinfo=None) if name == "moment" and v else v for v in values], name
    assert [row[list(ALL_TYPES).index("odd")] for row in kept] == [None, None, None]


async def test_keys_differ_in_case_and_in_spaces_at_the_end(url: str) -> None:
    keys = ["a", "A", "a ", "ä", ""]
    await deliver(sink(url, "words", mode="upsert", key=("word",)), pa.table({"word": [*keys, "a"], "n": range(6)}))
    assert sorted(query(url, "SELECT word, n FROM words")) == [("", 4), ("A", 1), ("a", 5), ("a ", 2), ("ä", 3)]


async def test_values_that_do_not_fit_are_refused_and_never_cut(url: str) -> None:
    query(url, "CREATE TABLE narrow (word varchar(3), n tinyint, _sequence bigint, _partition text)")
    rows = pa.table({"word": ["abc", "long", "ab"], "n": [1, 2, 1000]})
    with pytest.raises(SinkRefused):
        await deliver(sink(url, "narrow"), rows)
    assert query(url, "SELECT word FROM narrow") == ()
    await deliver(sink(url, "narrow", on_refused="keep"), rows)
    assert query(url, "SELECT word FROM narrow") == (("abc",),)
    kept = query(url, "SELECT sequence, reason FROM actorproc_sink_refused WHERE sink = 'narrow/db' ORDER BY sequence")
    assert [row[0] for row in kept] == [1, 2]
    assert "too long" in kept[0][1]
    assert "Out of range" in kept[1][1]

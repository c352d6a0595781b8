"""The MySQL sink on a real MariaDB server: the checks of the test kit, types, keys and refused rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pymysql
import pytest

from actorproc.connectors.mysql import MysqlSink
from actorproc.sinks.protocol import Guarantee, SinkError, SinkRefused
from actorproc.testing import check_sink
from actorproc.testing.sink_check import ALL_TYPES
from actorproc.testing.sink_modes_check import Rows
from tests.connectors.mysql.target import deliver, query, sink
from tests.sinks.matrix import tried

pytestmark = pytest.mark.servers


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


@pytest.mark.parametrize(
    ("where", "options", "says"),
    [
        ("mysql://nobody@{}/tests", {}, "Access denied"),
        ("mysql://root@{}/none", {}, "Unknown database"),
        ("mysql://reader@{}/tests", {}, "denied"),
        ("mysql://root@{}/tests", {"create": False}, "lacks the columns"),
        ("mysql://root@{}/tests", {"ca": "/none"}, "No such file"),
        ("mysql://root@{}/tests", {"table": "seen"}, "BASE TABLE"),
    ],
)
async def test_what_lasts_is_refused(url: str, where: str, options: dict[str, Any], says: str) -> None:
    query(url, "CREATE OR REPLACE USER reader@'127.0.0.1'")
    query(url, "GRANT SELECT ON tests.* TO reader@'127.0.0.1'")
    query(url, "CREATE OR REPLACE VIEW seen AS SELECT 1 AS a")
    wrong = where.format(urlsplit(url).netloc.partition("@")[2])
    with pytest.raises(SinkRefused, match=says):
        await sink(wrong, **{"table": "nothing", **options}).open(pa.schema([("n", pa.int64())]))


async def test_a_server_that_is_away_is_tried_again() -> None:
    with pytest.raises(pymysql.err.OperationalError):
        await sink("mysql://root@127.0.0.1:1/tests", "away").open(pa.schema([("n", pa.int64())]))


async def test_hosts_prepare_tables_one_after_the_other(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorproc.connectors.mysql.sink._LOCK_TIMEOUT", 1)
    port = urlsplit(url).port or 0
    with pymysql.connect(host="127.0.0.1", port=port, user="root") as other:
        other.cursor().execute("SELECT GET_LOCK('actorproc', 0)")
        with pytest.raises(SinkError, match="another host"):
            await sink(url, "busy").open(pa.schema([("n", pa.int64())]))
    await sink(url, "busy").open(pa.schema([("n", pa.int64())]))


@pytest.mark.parametrize(
    ("index", "is_refused"),
    [("(mail)", True), ("(id, mail)", False), ("(word(3), mail)", True), ("(word(3), id, mail)", False)],
)
async def test_another_unique_index_is_refused(url: str, index: str, is_refused: bool) -> None:
    """By it, a row would overwrite the row of another key."""
    columns = "id bigint PRIMARY KEY, mail varchar(50), word text, _version bigint, _sequence bigint, _partition text"
    table = f"people {index}"
    query(url, f"CREATE TABLE `{table}` ({columns}, UNIQUE other {index})")
    query(url, f"INSERT INTO `{table}` (id, mail, _version) VALUES (1, 'a@b', 0)")
    people = sink(url, table, mode="upsert", key=("id",))
    rows = pa.table({"id": [2], "mail": ["a@b"], "word": ["word"]})
    if is_refused:
        with pytest.raises(SinkRefused, match="unique index other"):
            await deliver(people, rows)
        assert query(url, f"SELECT id FROM `{table}`") == ((1,),)
    else:
        await deliver(people, rows)
        assert query(url, f"SELECT id, mail FROM `{table}` ORDER BY id") == ((1, "a@b"), (2, "a@b"))

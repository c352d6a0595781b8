"""Tables of the user's own that would lose rows are refused at the start, in a line that says what to do."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from actorproc.sinks.protocol import SinkRefused
from tests.connectors.mysql.target import OWN, deliver, query, sink

pytestmark = pytest.mark.servers

WORDS = pa.table({"k": ["a", "A", "ä", "a "], "n": [1, 2, 3, 4]})


async def follow(url: str, refusal: str) -> None:
    """Run the statement of a refusal."""
    query(url, refusal[refusal.index("ALTER TABLE") :])


@pytest.mark.parametrize("engine", ["MyISAM", "Aria", "MEMORY"])
@pytest.mark.parametrize("on_refused", ["stop", "keep"])
async def test_a_table_that_cannot_roll_back_is_refused(url: str, engine: str, on_refused: str) -> None:
    table = f"{engine} {on_refused}"
    query(url, f"CREATE TABLE `{table}` (k varchar(5), n bigint, {OWN}) ENGINE = {engine}")
    with pytest.raises(SinkRefused, match=f"engine {engine}, which cannot roll back: ALTER TABLE") as refused:
        await deliver(sink(url, table, on_refused=on_refused), WORDS)
    assert query(url, f"SELECT * FROM `{table}`") == ()
    await follow(url, str(refused.value))
    await deliver(sink(url, table, on_refused=on_refused), WORDS)
    assert query(url, f"SELECT count(*) FROM `{table}`") == ((4,),)


async def test_a_table_of_the_sink_that_cannot_roll_back_is_refused(odd_url: str) -> None:
    options = {"on_refused": "keep"}
    await sink(odd_url, "ours", **options).open(WORDS.schema.append(pa.field("_sequence", pa.int64())))
    query(odd_url, "ALTER TABLE actorproc_sink_refused ENGINE = Aria")
    with pytest.raises(SinkRefused, match="table actorproc_sink_refused is on the engine Aria") as refused:
        await deliver(sink(odd_url, "ours", **options), WORDS)
    await follow(odd_url, str(refused.value))
    await deliver(sink(odd_url, "ours", **options), WORDS)


async def test_tables_that_are_created_can_roll_back_whatever_the_default(odd_url: str) -> None:
    options = {"mode": "upsert", "key": "k", "on_refused": "keep", "deleted": "gone"}
    gone = pa.array([False] * 4)
    await deliver(sink(odd_url, "fresh", **options), WORDS.append_column("gone", gone))
    engines = query(odd_url, "SELECT DISTINCT engine FROM information_schema.tables WHERE table_schema = 'tests'")
    assert engines == (("InnoDB",),)


@pytest.mark.parametrize(
    "column",
    [
        "varchar(50)",
        "varchar(50) COLLATE utf8mb4_bin",
        "varchar(50) COLLATE utf8mb4_nopad_bin",
        "varchar(50) CHARACTER SET utf8mb3 COLLATE utf8mb3_nopad_bin",
        "varchar(50) COLLATE utf8mb4_general_nopad_ci",
        "char(50) COLLATE utf8mb4_nopad_bin",
        "binary(50)",
        "varbinary(50)",
    ],
)
async def test_a_key_in_which_different_values_are_equal_is_refused(url: str, column: str) -> None:
    table = f"key {column[-50:]}"
    query(url, f"CREATE TABLE `{table}` (k {column} PRIMARY KEY, n int, _version bigint NOT NULL, {OWN})")
    keyed, expected = sink(url, table, mode="upsert", key="k"), ["A", "a", "a ", "ä"]
    if re.search(r"nopad_bin|varbinary", column) and not column.startswith("char"):
        await deliver(keyed, WORDS)
    else:
        with pytest.raises(SinkRefused, match="different keys are equal in its column k") as refused:
            await deliver(keyed, WORDS)
        assert query(url, f"SELECT * FROM `{table}`") == ()
        await follow(url, str(refused.value))
        await deliver(keyed, WORDS)
    assert [k for (k,) in query(url, f"SELECT CONVERT(k USING utf8mb4) k FROM `{table}` ORDER BY BINARY k")] == expected


async def test_a_loose_collation_of_other_columns_is_no_hindrance(url: str) -> None:
    query(url, f"CREATE TABLE loose (k varchar(50) COLLATE utf8mb4_general_ci, n bigint PRIMARY KEY, "
          f"_version bigint NOT NULL, {OWN})")  # fmt: skip
    await deliver(sink(url, "loose", mode="upsert", key="n"), WORDS)
    assert query(url, "SELECT count(*) FROM loose") == ((4,),)


MOMENT, MONEY = pa.timestamp("us", "UTC"), pa.decimal128(10, 3)


@pytest.mark.parametrize(
    ("column", "kind", "is_refused"),
    [
        ("datetime", MOMENT, True),
        ("timestamp(3) NULL", pa.timestamp("us"), True),
        ("date", MOMENT, True),
        ("time(6)", MOMENT, True),
        ("datetime(6)", MOMENT, False),
        ("timestamp(6) NULL", MOMENT, False),
        ("varchar(50)", MOMENT, False),
        ("decimal(8, 1)", MONEY, True),
        ("int", MONEY, True),
        ("float", MONEY, True),
        ("double", MONEY, False),
        ("decimal(8, 3)", MONEY, False),
        ("float", pa.float64(), True),
        ("double(8, 1)", pa.float64(), True),
        ("bigint", pa.float32(), True),
        ("decimal(20, 10)", pa.float64(), True),
        ("float", pa.float32(), False),
        ("double", pa.int64(), True),
        ("double", pa.int32(), False),
        ("float", pa.int32(), True),
        ("tinyint", pa.int64(), False),
        ("decimal(8, 0)", pa.int64(), False),
        ("datetime", pa.date32(), False),
        ("longtext", pa.list_(pa.float64()), False),
    ],
)
@pytest.mark.parametrize("mode", [{}, {"mode": "upsert", "key": "n"}])
async def test_a_column_that_would_round_values_is_refused(
    url: str, column: str, kind: pa.DataType, is_refused: bool, mode: dict[str, str]
) -> None:
    table = f"coarse {column} {kind}{len(mode)}"[:60]
    query(url, f"CREATE TABLE `{table}` (n bigint PRIMARY KEY, v {column}, _version bigint NOT NULL DEFAULT 0, {OWN})")
    if not mode:
        query(url, f"ALTER TABLE `{table}` DROP COLUMN _version")
    rows = pa.table({"n": [1], "v": pa.nulls(1, kind)})
    if is_refused:
        with pytest.raises(SinkRefused, match="would round the column v: it is"):
            await deliver(sink(url, table, **mode), rows)
    else:
        await deliver(sink(url, table, **mode), rows)
    assert query(url, f"SELECT count(*) FROM `{table}`") == ((0 if is_refused else 1,),)

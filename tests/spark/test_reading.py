"""Batch queries with a real Spark: output through either reader, the log, dead letters, on a folder and on S3."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from actorproc import Batch, PartitionContext, PartitionHandler, Processor, Producer, errors
from actorproc.config.settings import Settings
from actorproc.retention.boundary import raise_boundary
from actorproc.spark import read_output, stream_output
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store
from tests.servers import S3Server
from tests.spark.committing import QUICK, Fleet, Grown, Numbers, Rows, Stream


class Everything(Numbers):
    """Every kind of column."""

    output_schema = (
        "b boolean, i8 byte, i16 short, i32 int, i64 long NOT NULL, f32 float, f64 double, s string, raw binary, day "
        "date, at timestamp, local timestamp_ntz, amount decimal(20,3), list array<struct<a: int NOT NULL, b: "
        "string>>, map map<string, int>, `dotted.name` struct<`inner.name`: timestamp>"
    )

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        time = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
        for record in batch:
            if record.sequence % 2:
                ctx.emit(record, {"i64": record.sequence})
                continue
            row = {
                "b": True, "i8": -8, "i16": 16, "i32": -32, "i64": record.sequence, "f32": 0.5, "f64": -0.25,
                "s": "grün",
                "raw": b"\xff\x00", "day": time.date(), "at": time, "local": time.replace(tzinfo=None),
                "amount": Decimal("12.345"),
                "list": [{"a": 1, "b": None}, {"a": 2, "b": "x"}], "map": {"k": 1, "l": None},
                "dotted.name": {"inner.name": time},
            }  # fmt: skip
            ctx.emit(record, row)


def rows(frame: DataFrame) -> Rows:
    found = [(row._partition, row._sequence, row.n) for row in frame.collect()]
    assert len(found) == len(set(found))
    return set(found)


async def test_both_readers_return_the_same_rows_and_types(spark: SparkSession, tmp_path: Path) -> None:
    container = str(tmp_path / "state of 100% things")
    stream = Stream()
    stream.add("Zürich/1", 25)
    await Processor(Everything, name="all", source=stream, container=container, host="a", **QUICK).run(until_end=True)
    native, source = (read_output(spark, container, "all", native=native) for native in (True, False))
    assert native.schema == source.schema
    assert native.schema.names[-2:] == ["_partition", "_sequence"]
    expected = native.orderBy("_sequence").collect()
    assert source.orderBy("_sequence").collect() == expected
    assert {(row._partition, row._sequence) for row in expected} == {("Zürich/1", n) for n in range(25)}
    assert expected[0]["list"] == [Row(a=1, b=None), Row(a=2, b="x")]
    assert expected[1].s is None


async def test_session_options_do_not_change_columns(spark: SparkSession, tmp_path: Path) -> None:
    class Odd(PartitionHandler):
        output_schema = "order timestamp, plain struct<select: timestamp>"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                ctx.emit(record, {"order": NOON, "plain": {"select": NOON}})

    NOON = datetime(2026, 7, 2, 12, tzinfo=UTC)  # noqa: N806
    stream = Stream()
    stream.add("0", 1)
    await Processor(Odd, name="odd", source=stream, container=str(tmp_path), **QUICK).run(until_end=True)
    conf = {
        "spark.sql.timestampType": "TIMESTAMP_NTZ", "spark.sql.session.timeZone": "America/New_York",
        "spark.sql.ansi.enforceReservedKeywords": "true",
    }  # fmt: skip
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        for native in (True, False):
            (row,) = (
                read_output(spark, str(tmp_path), "odd", native=native)
                .selectExpr("unix_micros(`order`)", "unix_micros(plain.`select`)")
                .collect()
            )
            assert tuple(row) == (NOON.timestamp() * 1e6,) * 2
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        for name in ("spark.sql.timestampType", "spark.sql.ansi.enforceReservedKeywords"):
            spark.conf.unset(name)


async def test_both_readers_skip_files_below_the_boundary(spark: SparkSession, tmp_path: Path) -> None:
    fleet = Fleet(str(tmp_path))
    await fleet.commit(p0=30, p1=30)
    layout = ProcessorLayout("numbers")
    async with open_store(str(tmp_path), Settings.load()) as store:
        await raise_boundary(store, layout.boundary("0"), 2)
    expected = {row for row in fleet.expected() if row[0] == "1" or row[1] >= 20}
    for native in (True, False):
        assert rows(read_output(spark, str(tmp_path), "numbers", native=native)) == expected


@pytest.mark.parametrize("native", [True, False])
async def test_columns_partitions_and_a_start_limit_the_rows(spark: SparkSession, tmp_path: Path, native: bool) -> None:
    fleet = Fleet(str(tmp_path))
    await fleet.commit(p0=30, p1=30)
    await fleet.commit(Grown, p1=10)  # a column is added

    def read(**how: Any) -> DataFrame:
        return read_output(spark, str(tmp_path), "numbers", native=native, **how)

    assert rows(read()) == fleet.expected()
    half = {row._sequence: row.half for row in read(partitions=["1"]).collect()}
    assert half == {n: None if n < 30 else n / 2 for n in range(40) if n % 10 != 7}
    narrow = read(columns=["_sequence", "n"], start_sequence={"0": 25, "1": 35})
    assert narrow.columns == ["_sequence", "n"]
    assert sorted(row.n for row in narrow.collect()) == [25, 26, 28, 29, 35, 36, 38, 39]
    assert sorted(row.n for row in read(start_sequence=35).collect()) == [35, 36, 38, 39]


async def test_the_data_source_alone_respects_the_tasks_option(spark: SparkSession, tmp_path: Path) -> None:
    fleet = Fleet(str(tmp_path))
    await fleet.commit(p0=60, p1=60, p2=60)
    reader = spark.read.format("actorproc").option("name", "numbers").option("tasks", "2")
    assert rows(reader.load(str(tmp_path))) == fleet.expected()
    tasks = reader.load(str(tmp_path)).groupBy(f.spark_partition_id()).count().collect()
    assert len(tasks) == 2
    assert sum(row["count"] for row in tasks) == 162
    assert reader.schema("n long").load(str(tmp_path)).columns == ["n"]
    assert reader.schema("n long").load(str(tmp_path)).count() == 162


async def test_the_log_has_the_columns_of_sparks_kafka_source(spark: SparkSession, tmp_path: Path) -> None:
    url, time = str(tmp_path / "events"), datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    for _ in range(2):  # two files
        async with Producer(url, partitions=2) as producer:
            for n in range(10):
                await producer.send(f"v{n}", key=f"k{n % 3}", headers={"h": b"\xff"}, timestamp=time)
    log = spark.read.format("actorproc").option("kind", "log").load(url)
    kafka = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
    assert (
        log.schema.simpleString()
        == StructType.fromDDL(f"{kafka}, headers array<struct<key: string, value: binary>>").simpleString()
    )
    found = log.withColumn("at", f.date_format("timestamp", "yyyy-MM-dd'T'HH:mm:ss.SSSSSS")).collect()
    assert sorted(bytes(row.value) for row in found) == sorted(2 * [b"v%d" % n for n in range(10)])
    assert {(row.partition, row.offset) for row in found} == {
        (p, n) for p in (0, 1) for n in range(sum(row.partition == p for row in found))
    }
    first = found[0]
    assert (first.topic, first.headers, first["at"]) == ("events", [Row(key="h", value=b"\xff")], time.isoformat()[:-6])
    assert {row.timestampType for row in found} == {0}
    half = spark.read.format("actorproc").options(kind="log", partitions="1", startSequence="2").load(url)
    assert {row.offset for row in half.collect()} == {row.offset for row in found if row.partition == 1} - {0, 1}


async def test_dead_letters_are_read_with_their_causes(spark: SparkSession, tmp_path: Path) -> None:
    fleet = Fleet(str(tmp_path))
    await fleet.commit(p0=20, p1=5)
    letters = spark.read.format("actorproc").options(kind="dead-letters", name="numbers").load(str(tmp_path)).collect()
    assert {(row.partition, row.sequence, int(row.value)) for row in letters} == fleet.expected(dead=True)
    letter = min(letters, key=lambda row: row.sequence)
    assert (letter.error.type, letter.error.message) == ("ValueError", "7 is poison")
    assert (bytes(letter.key), letter.headers, letter.attempts, letter.host, letter.epoch) == (b"0", [], 2, "a", 1)
    assert "row" in letter.error.traceback


async def test_output_on_s3_is_read_without_a_jar_and_no_secret_shows(
    spark: SparkSession, s3_server: S3Server, capfd: pytest.CaptureFixture[str]
) -> None:
    url = await s3_server.new_url()
    fleet = Fleet(url, s3_server.settings)
    await fleet.commit(p0=30, p1=20)
    frame = read_output(spark, url, "numbers", settings=fleet.settings)
    assert rows(frame) == fleet.expected()
    plan = frame._jdf.queryExecution().toString()
    frame.explain("formatted")
    shown = plan + "".join(capfd.readouterr())
    assert s3_server.secret_key not in shown
    assert "s3_access_key" not in shown, "options are in no plan, whatever their names"
    with pytest.raises(errors.UsageError, match=r"Spark's own reader cannot read s3://.*s3a"):
        read_output(spark, url, "numbers", settings=fleet.settings, native=True)


async def test_missing_processors_columns_and_partitions_are_named(spark: SparkSession, tmp_path: Path) -> None:
    await Fleet(str(tmp_path)).commit(p0=5)
    container = str(tmp_path)
    with pytest.raises(errors.UsageError, match=r"no processor 'nmbers' at file://.*there are: numbers"):
        read_output(spark, container, "nmbers")
    with pytest.raises(errors.UsageError, match="no column half; there are: n, _partition, _sequence"):
        read_output(spark, container, "numbers", columns=["half"])
    with pytest.raises(errors.UsageError, match="no partition 7; there are: 0"):
        read_output(spark, container, "numbers", partitions=["7"])
    for options, schema, problem in (
        ({"name": "nmbers"}, None, "no processor 'nmbers'"),
        ({"kind": "log"}, None, "in which processors live (numbers), and no log"),
        (
            {"name": "numbers"},
            "n int, m int",
            "column 'n' is int64, not int32; there is no column 'm'. There are: n, _partition, _sequence",
        ),
    ):
        reader = spark.read.format("actorproc").options(**options)
        with pytest.raises(PySparkException) as caught:
            (reader.schema(schema) if schema else reader).load(container).collect()
        assert problem in str(caught.value)


class Reader:
    """Spark Connect's, of a dataset with one column."""

    schema = StructType().add("n", "long")

    def _same(self, *args: object, **kwargs: object) -> Reader:
        return self

    format = option = options = load = _same


class ConnectSession:
    __module__ = "pyspark.sql.connect.session"
    dataSource = SimpleNamespace(register=lambda source: None)  # noqa: N815
    read = readStream = Reader()  # noqa: N815


async def test_both_readers_refuse_a_wrong_argument(spark: SparkSession, tmp_path: Path) -> None:
    await Fleet(str(tmp_path)).commit(p0=5)
    names = "a list of names, at least one, each once"
    numbers = "a whole number, 0 or more, or such numbers by partition"
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"columns": ["n", "n"]}, rf"columns = \['n', 'n'\]: {names}"),
        ({"columns": []}, rf"columns = \[\]: {names}"),
        ({"columns": "n"}, rf"columns = 'n': {names}"),
        ({"columns": ["n", "nope"]}, "numbers has no column nope; there are: n"),
        ({"partitions": []}, rf"partitions = \[\]: {names}"),
        ({"partitions": "0"}, rf"partitions = '0': {names}"),
        ({"start_sequence": True}, f"start_sequence = True: {numbers}"),
        ({"start_sequence": {"0": 1.5}}, rf"start_sequence = {{'0': 1.5}}: {numbers}"),
        ({"start_sequence": 2**63}, f"start_sequence = {2**63}: {numbers}"),
    ]
    for session, native in ((spark, True), (spark, False), (cast(SparkSession, ConnectSession()), False)):
        for read in (read_output, stream_output):
            for given, problem in wrong:
                with pytest.raises(errors.UsageError, match=problem):
                    read(session, str(tmp_path), "numbers", native=native, **given)
    for kept in ({"partitions": [0]}, {"start_sequence": {0: 3}}):  # a number names a partition as well
        for native in (True, False):
            assert read_output(spark, str(tmp_path), "numbers", native=native, **kept).count() > 0


@pytest.mark.parametrize("native", [True, False])
async def test_filters_find_the_rows_whose_number_is_nan_or_minus_zero(
    spark: SparkSession, tmp_path: Path, native: bool
) -> None:
    class Means(Numbers):
        output_schema = "n long, x double, s struct<f: float>"

        def row(self, n: int) -> dict[str, Any]:
            x = float("nan") if n % 3 == 0 else -0.0
            return {"n": n, "x": x, "s": {"f": x}}

    await Fleet(str(tmp_path)).commit(Means, p0=9)
    frame = read_output(spark, str(tmp_path), "numbers", native=native)
    for filtered in ("x > 5", "x <> 0", "x = double('NaN')", "s.f > 5"):
        assert {row.n for row in frame.where(filtered).collect()} == {0, 3, 6}, "to Spark NaN is the largest number"
    for filtered in ("x = 0", "x in (0, 1)", "s.f between 0 and 1"):
        assert {row.n for row in frame.where(filtered).collect()} == {1, 2, 4, 5, 7, 8}, "-0.0 is 0.0"

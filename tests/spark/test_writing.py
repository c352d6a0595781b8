"""DataFrames into a log with a real Spark, batch and stream: each row once, although tasks and drivers repeat."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import types as t
from pyspark.sql.datasource import WriterCommitMessage

from actorproc import Batch, PartitionContext, PartitionHandler, Processor, Producer, Settings
from actorproc.errors import SourceError, UsageError
from actorproc.log.key_hash import partition_of_key
from actorproc.log.metadata import create_log
from actorproc.produce.transactions import Transaction, Transactions
from actorproc.records import Record
from actorproc.sources.log import LogSource
from actorproc.sources.protocol import list_partitions
from actorproc.spark import read_output
from actorproc.spark.columns import check_record_columns, to_records
from actorproc.spark.log_writer import Message, StreamWriter
from actorproc.spark.options import parse_write_options
from actorproc.spark.query import Sink
from actorproc.storage.document import SharedDocument
from actorproc.storage.names import LOG_STAGED, log_transaction
from actorproc.stores import open_store
from tests.log.reading import batches
from tests.servers import S3Server
from tests.spark.committing import QUICK, Fleet
from tests.spark.jobs import Runs

TIME = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)


async def records(url: str, **settings: Any) -> dict[str, list[Record]]:
    """By partition."""
    source = LogSource(url, settings=Settings.load(**settings))
    await source.open()
    try:
        return {p: [r for batch in await batches(source, p) for r in batch] for p in await list_partitions(source)}
    finally:
        await source.close()


async def values(url: str, **settings: Any) -> Counter[int]:
    return Counter(int(r.value or b"") for found in (await records(url, **settings)).values() for r in found)


async def staged(url: str) -> list[str]:
    async with open_store(url) as store:
        return [entry.key for entry in (await store.list(LOG_STAGED)).entries]


def numbers(spark: SparkSession, count: int, tasks: int = 3, *, first: int = 0) -> DataFrame:
    frame = spark.range(first, first + count, numPartitions=tasks)
    return frame.selectExpr("concat('k', id % 7) AS key", "cast(id AS string) AS value")


def save(frame: DataFrame, url: str, **options: Any) -> None:
    frame.write.format("actorproc").mode("append").options(**options).save(url)


def stream(frame: DataFrame, url: str, checkpoint: Path, **options: Any) -> None:
    """Write all there is."""
    writer = frame.writeStream.format("actorproc").options(checkpointLocation=str(checkpoint), **options)
    query = writer.trigger(availableNow=True).start(url)
    if not query.awaitTermination(90):
        query.stop()
        raise TimeoutError(f"the stream does not end: {query.lastProgress}")


def failing(frame: DataFrame, where: Callable[[TaskContext], bool]) -> DataFrame:
    """Tasks fail at their last row, once `where` says so."""

    def rows(found: Any) -> Any:
        yield from found
        task = TaskContext.get()
        if task is not None and where(task):
            raise RuntimeError("as the test will have it")

    return frame.mapInArrow(rows, frame.schema)


@pytest.mark.slow
async def test_rows_become_records_where_a_producer_would_put_them(spark: SparkSession, tmp_path: Path) -> None:
    url = str(tmp_path / "events")
    rows = [
        Row(key=b"a", value="1", headers=[Row(key="h", value=b"\xff")], timestamp=TIME),
        Row(key=b"b", value="2", headers=None, timestamp=None),
        Row(key=None, value=None, headers=[], timestamp=TIME),
    ]
    schema = "key binary, value string, headers array<struct<key: string, value: binary>>, timestamp timestamp"
    save(spark.createDataFrame(rows, schema), url, logPartitions="4")
    found = {r.key: r for several in (await records(url)).values() for r in several}
    assert {key: int(r.partition) for key, r in found.items() if key} == {
        k: partition_of_key(k, 4) for k in (b"a", b"b")
    }
    a, b, neither = found[b"a"], found[b"b"], found[None]
    assert (a.value, a.headers, a.timestamp) == (b"1", (("h", b"\xff"),), TIME)
    assert (b.value, b.headers) == (b"2", ())
    assert b.timestamp is not None
    assert abs(b.timestamp - datetime.now(UTC)).total_seconds() < 600
    assert (neither.value, neither.headers) == (None, ())

    save(spark.range(5).selectExpr("cast(cast(id AS string) AS binary) AS value"), url)  # a value is enough
    assert sum(map(len, (await records(url)).values())) == 8


@pytest.mark.slow
async def test_a_task_that_fails_and_is_tried_again_repeats_nothing(spark: SparkSession, tmp_path: Path) -> None:
    url = str(tmp_path / "events")
    frame = failing(numbers(spark, 300), lambda task: task.attemptNumber() == 0 and task.partitionId() != 1)
    save(frame, url, logPartitions="2")
    assert await values(url) == Counter(range(300))
    keys: dict[bytes | None, list[int]] = {}
    for found in (await records(url)).values():
        for record in found:
            keys.setdefault(record.key, []).append(int(record.value or b""))
    assert all(several == sorted(several) for several in keys.values())
    assert await staged(url) == []


@pytest.mark.slow
async def test_a_job_that_fails_appends_nothing_and_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    url = str(tmp_path / "events")

    def after_the_others(task: TaskContext) -> bool:  # files staged after the job has failed stay for a week
        while task.partitionId() == 2 and len(list((tmp_path / "events" / LOG_STAGED).rglob("*.arrow"))) < 2:
            time.sleep(0.01)
        return task.partitionId() == 2

    with pytest.raises(PySparkException, match="as the test will have it"):
        save(failing(numbers(spark, 30), after_the_others), url, logPartitions="2")
    assert await values(url) == Counter()
    assert await staged(url) == []


@pytest.mark.slow
async def test_a_job_with_a_transaction_appends_once(spark: SparkSession, tmp_path: Path) -> None:
    url = str(tmp_path / "events")
    for _ in range(2):
        save(numbers(spark, 20, 1), url, logPartitions="2", transaction="daily", batch="3")
    assert await values(url) == Counter(range(20))
    save(numbers(spark, 5, 1, first=20), url, transaction="daily", batch="4")
    assert await values(url) == Counter(range(25))


@pytest.mark.slow
async def test_a_micro_batch_that_is_run_again_repeats_nothing(spark: SparkSession, tmp_path: Path) -> None:
    source, url, checkpoint = str(tmp_path / "source"), str(tmp_path / "events"), tmp_path / "checkpoint"
    async with Producer(source, partitions=3) as producer:
        await producer.send_many([str(n) for n in range(100)], keys=[str(n % 9) for n in range(100)])
    frame = spark.readStream.format("actorproc").option("kind", "log").load(source)
    columns = frame.select("key", "value", "headers", "timestamp")
    stream(failing(columns, lambda task: task.attemptNumber() == 0), url, checkpoint, logPartitions="2")
    assert await values(url) == Counter(range(100))

    # As after a crash between our commit and Spark's note of it, the tasks being cut otherwise this time.
    for note in (checkpoint / "commits").glob("*0"):
        note.unlink()
    (checkpoint / "commits" / ".0.crc").unlink(missing_ok=True)
    stream(columns.repartition(3), url, checkpoint)
    assert await values(url) == Counter(range(100))

    async with Producer(source) as producer:
        await producer.send_many([str(n) for n in range(100, 150)])
    stream(columns, url, checkpoint)
    assert await values(url) == Counter(range(150))
    assert await staged(url) == []

    stream(columns, url, tmp_path / "another checkpoint")  # another query
    assert await values(url) == Counter(dict.fromkeys(range(150), 2))


async def test_a_later_micro_batch_does_not_create_a_missing_log(tmp_path: Path) -> None:
    url = str(tmp_path / "mount" / "events")

    def writer() -> StreamWriter:
        target = parse_write_options({"path": url, "logPartitions": "2", "checkpointLocation": "c"}, stream=True)
        return StreamWriter(target, columns(value=TEXT), overwrite=False)

    first = writer()
    first.commit([first._stage(iter([pa.record_batch({"value": ["0", "1"]})]), "query", 0)], 0)
    (tmp_path / "mount").rename(tmp_path / "away")
    later = writer()
    for step in (later._check_found, partial(later.commit, [Message("query", [])])):
        with pytest.raises(SourceError, match=r"the log .* is gone: micro-batch 1 is not the first of this query"):
            step(1)
    assert not (tmp_path / "mount").exists()
    (tmp_path / "away").rename(tmp_path / "mount")
    later = writer()
    later.commit([later._stage(iter([pa.record_batch({"value": ["2"]})]), "query", 1)], 1)
    assert await values(url) == Counter(range(3))


async def test_a_begun_micro_batch_is_finished_without_rows(tmp_path: Path) -> None:
    url = str(tmp_path / "events")
    async with open_store(url) as store:
        await create_log(store, 2)
    target = parse_write_options({"path": url, "logPartitions": "2", "checkpointLocation": "c"}, stream=True)
    writer = StreamWriter(target, columns(value=TEXT), overwrite=False)
    message = writer._stage(iter([pa.record_batch({"value": ["0", "1", "2"]})]), "query", 7)
    async with open_store(url) as store, Transactions.opened(store) as transactions:
        plan = await transactions._plan(7, message.staged)  # and killed before anything is appended
        await SharedDocument(store, log_transaction("query"), Transaction).swap(plan)
    nothing: list[WriterCommitMessage | None] = [Message("query", []), None]

    writer.commit(nothing, 6)
    assert await values(url) == Counter(), "it comes before what stands there"
    for batch in (7, 7, 8):
        writer.commit(nothing, batch)
        assert await values(url) == Counter(range(3))
    assert await staged(url) == []
    async with open_store(url) as store:
        found = await store.get(log_transaction("query"))
        assert found is not None
        assert Transaction.from_json("", found.body).batch == 7, "nothing is written for what is empty"


class Doubles(PartitionHandler):
    output_schema = "n long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, {"n": 2 * record.json()})


@pytest.mark.slow
async def test_from_spark_to_a_log_to_a_processor_and_back_on_s3(
    spark: SparkSession, s3_server: S3Server, tmp_path: Path
) -> None:
    log, container = await s3_server.new_url(), str(tmp_path)
    save(numbers(spark, 200, 2), log, logPartitions="2", **s3_server.settings)
    settings = {**QUICK, **s3_server.settings}
    await Processor(Doubles, source=log, container=container, host="a", **settings).run(until_end=True)
    output = read_output(spark, container, "Doubles")
    assert sorted(row.n for row in output.collect()) == list(range(0, 400, 2))


def columns(**kinds: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in kinds.items()])


TEXT = t.StringType()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (columns(value=t.LongType()), "column 'value' is bigint. A log takes `value`.*string or binary"),
        (columns(topic=TEXT, key=t.DateType()), "column 'topic' is unknown; column 'key' is date; .*no column 'value'"),
        (columns(value=TEXT, timestamp=t.TimestampNTZType()), "column 'timestamp' is timestamp_ntz"),
        (columns(value=TEXT, headers=t.MapType(TEXT, TEXT)), "column 'headers' is map<string,string>"),
    ],
)  # fmt: skip
def test_columns_that_a_log_does_not_take_are_named(given: t.StructType, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        check_record_columns(given)


@pytest.mark.parametrize(("header", "raised"), [(None, UsageError), ({"key": None, "value": b"x"}, pa.ArrowInvalid)])
def test_a_header_without_a_name_is_refused(header: Any, raised: type[Exception]) -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    batch = pa.record_batch({"value": pa.array([b"v"]), "headers": pa.array([[header]], kind)})
    with pytest.raises(raised, match=r"header that is null|field 'key' of type string has nulls"):
        to_records(batch, pa.scalar(TIME))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"path": ""}, "which log"),
        ({"path": "memory://x"}, "exists in one process"),
        ({"logPartitions": "0"}, "logPartitions = '0': a whole number, 1 or more"),
        ({"partitions": "3"}, r"there is no option partitions; did you mean logPartitions\? There are: path"),
        ({"kind": "output"}, "kind = 'output': Spark can only append to a log"),
        ({"batch": "3"}, "batch needs a transaction"),
        ({"transaction": "a/b"}, "transaction 'a/b' is not usable"),
        ({"transaction": "job-1"}, "does not begin with 'job-'"),
        ({"store_timeout": "soon"}, "store_timeout"),
    ],
)
def test_a_wrong_option_is_refused_with_the_allowed_values(options: dict[str, str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        parse_write_options({"path": "events", **options}, stream=False)


def test_a_stream_has_no_transaction_but_its_own() -> None:
    assert parse_write_options({"path": "events", "checkpointLocation": "here"}, stream=True).transaction is None
    with pytest.raises(UsageError, match="transaction and batch are for batch jobs"):
        parse_write_options({"path": "events", "transaction": "t"}, stream=True)


def test_a_stream_may_have_a_query_name() -> None:
    given = {"path": "events", "checkpointLocation": "here", "queryName": "alerts"}
    assert parse_write_options(given, stream=True).url == f"file://{Path.cwd()}/events"


async def test_a_missing_or_different_log_and_overwriting_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    url = str(tmp_path / "events")
    with pytest.raises(
        PySparkException, match=r'there is no log at file://.*/events: .*create it .*\.option\("logPartitions", 8\)'
    ):
        save(numbers(spark, 3), url)
    async with Producer(url, partitions=2) as producer:
        await producer.send("0")
    with pytest.raises(PySparkException, match="has 2 partitions, not 3"):
        save(numbers(spark, 3), url, logPartitions="3")
    with pytest.raises(PySparkException, match=r"cannot be overwritten: write with mode\(.append.\)"):
        numbers(spark, 3).write.format("actorproc").mode("overwrite").save(url)
    assert await values(url) == Counter([0])


async def test_a_function_writes_to_a_log_from_any_thread(spark: SparkSession, tmp_path: Path) -> None:
    fleet, url = Fleet(str(tmp_path / "state")), str(tmp_path / "events")
    await fleet.commit(p0=30, p1=10)
    sink = Sink("actorproc", url, options={"logPartitions": "2"})
    runs = Runs(spark, fleet, tmp_path / "c", lambda rows: rows.selectExpr("cast(n AS string) AS value"), sink=sink)
    await runs.to_end()
    assert sum((await values(url)).values()) == 36

"""`read_state` with a real Spark: declared and other types, while the processor goes on."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from actorproc import Batch, PartitionContext, PartitionHandler, Processor
from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.spark import read_state
from actorproc.testing import MemorySource
from tests.servers import S3Server
from tests.spark.committing import QUICK

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


class Visit(msgspec.Struct):
    count: int
    at: datetime = NOON
    pages: list[str] = []


class Visits(PartitionHandler):
    State = {"": Visit, "seen": bool}  # noqa: RUF012

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            before = ctx.state.get(record.text) or Visit(0)
            ctx.state[record.text] = Visit(before.count + 1, pages=[*before.pages, "/"])
            ctx.state("seen").set(("user", record.text), True, ttl=3600)


@pytest.mark.slow
async def test_state_is_a_typed_table_of_its_newest_commits(spark: SparkSession, tmp_path: Path) -> None:
    container, source = str(tmp_path), MemorySource(3)

    async def visit(partition: str, *users: str) -> None:
        source.append(partition, [user.encode() for user in users])
        await Processor(Visits, source=source, container=container, **QUICK).run(until_end=True)

    await visit("0", "a", "b", "a")
    await visit("2", "c")
    visits = read_state(spark, container, "Visits")
    counts = visits.select("partition", "key", "value.count", f.size("value.pages").alias("pages"), "value.at")
    first = {("0", "a", 2, 2), ("0", "b", 1, 1), ("2", "c", 1, 1)}
    assert {tuple(row)[:4] for row in counts.collect()} == first
    assert {row["at"].astimezone(UTC) for row in counts.collect()} == {NOON}
    await visit("1", "d")
    assert {tuple(row)[:4] for row in counts.collect()} == first | {("1", "d", 1, 1)}
    seen = read_state(spark, container, "Visits", state="seen").orderBy("key").collect()
    assert [(row.key, row.value) for row in seen][:2] == [('["user","a"]', True), ('["user","b"]', True)]
    assert seen[0].expires is not None
    assert read_state(spark, container, "Visits", state="other").dtypes[3] == ("value", "string")


@pytest.mark.long
@pytest.mark.servers
async def test_state_on_s3_is_read_without_a_jar(spark: SparkSession, seaweedfs: S3Server) -> None:
    container, source = await seaweedfs.new_url(), MemorySource(2)
    settings = Settings.load(**QUICK, **seaweedfs.settings)
    source.append("0", [b"a", b"b", b"a"])
    await Processor(Visits, source=source, container=container, settings=settings).run(until_end=True)
    visits = read_state(spark, container, "Visits", settings=settings)
    assert {tuple(row) for row in visits.select("key", "value.count").collect()} == {("a", 2), ("b", 1)}


def test_state_of_a_processor_that_never_ran_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Visits"):
        read_state(spark, str(tmp_path), "Visits")

"""Errors around a query name the cause, and lose no row once the cause is removed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from anyio.from_thread import start_blocking_portal
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.spark import read_output, stream_output
from actorproc.spark.data_source import plan_tasks
from actorproc.spark.options import parse_read_options
from actorproc.spark.task_reader import read_spans
from actorproc.storage.names import ProcessorLayout
from tests.servers import S3Server
from tests.spark.committing import Fleet
from tests.spark.conftest import minio_is_long
from tests.spark.sink import Sink
from tests.spark.test_streaming import until
from tests.stores.proxy import Proxy, Request, proxied

LAYOUT = ProcessorLayout("numbers")


@pytest.mark.slow
async def test_a_stream_of_a_missing_dataset_is_refused_before_it_starts(spark: SparkSession, tmp_path: Path) -> None:
    await Fleet(str(tmp_path)).commit(p0=5)
    with pytest.raises(UsageError, match=r"no processor 'nmbers' at file://.*there are: numbers"):
        stream_output(spark, str(tmp_path), "nmbers")
    with pytest.raises(UsageError, match=r"no processor 'numbers' at file://.*/nowhere"):
        stream_output(spark, str(tmp_path / "nowhere"), "numbers")
    with pytest.raises(UsageError, match="no partition 7; there are: 0"):
        stream_output(spark, str(tmp_path), "numbers", partitions=["7"])
    for read in (stream_output, read_output):
        with pytest.raises(UsageError, match="no partition 7; there are: 0"):
            read(spark, str(tmp_path), "numbers", start_sequence={"0": 3, "7": 1})
        with pytest.raises(UsageError, match="start_sequence = -1: a whole number, 0 or more"):
            read(spark, str(tmp_path), "numbers", start_sequence=-1)
    with pytest.raises(PySparkException, match=r"(?s)no processor 'numbers' at file://.*/nowhere"):
        spark.readStream.format("actorproc").option("name", "numbers").load(str(tmp_path / "nowhere"))


@pytest.mark.slow
@pytest.mark.parametrize("native", [True, False])
async def test_a_file_with_a_wrong_type_is_named_with_its_column(
    spark: SparkSession, tmp_path: Path, native: bool
) -> None:
    await Fleet(str(tmp_path)).commit(p0=30)
    key = LAYOUT.output_file("0", 1)
    whole = pq.read_table(tmp_path / key, partitioning=None)
    words = pa.array([f"number {n}" for n in whole["n"].to_pylist()])
    pq.write_table(whole.set_column(0, "n", words), tmp_path / key)
    with pytest.raises((PySparkException, Py4JJavaError)) as caught:
        read_output(spark, str(tmp_path), "numbers", native=native).collect()
    said = str(caught.value)
    assert key in said
    assert ("[n]" in said and "bigint" in said) if native else "column 'n' is string, not int64" in said


class Outages:
    """A server that can be away. It is reached through a proxy, which has a thread of its own, as tests wait for
    Spark."""

    def __init__(self, proxy: Proxy, front: S3Server) -> None:
        self.server = front
        self.seen_while_away = 0
        self._proxy = proxy

    def begin(self) -> None:
        self._proxy.on_request = self._silent

    def end(self) -> None:
        self._proxy.on_request = self._proxy.forward

    async def _silent(self, request: Request) -> None:
        self.seen_while_away += 1


@contextmanager
def outages(server: S3Server) -> Iterator[Outages]:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(proxied(server)) as (proxy, front):
        yield Outages(proxy, front)


@pytest.mark.slow
async def test_a_task_that_starts_while_the_store_is_away_waits_for_it(s3_server: S3Server) -> None:
    url = await s3_server.new_url()
    await Fleet(url, s3_server.settings).commit(p0=20)
    with outages(s3_server) as network:
        request = parse_read_options({"path": url, "name": "numbers", **network.server.settings})
        (spans,) = plan_tasks(request, pa.schema([("n", pa.int64())]))[:1]
        network.begin()
        async with anyio.create_task_group() as group:

            async def come_back() -> None:
                await until(lambda: network.seen_while_away > 1)
                network.end()

            group.start_soon(come_back)
            batches = await anyio.to_thread.run_sync(
                lambda: list(read_spans(request, spans, pa.schema([("n", pa.int64())])))
            )
    assert batches[0].column("n").to_pylist() == [0, 1, 2, 3, 4, 5, 6, 8, 9]


@pytest.mark.slow
@minio_is_long
async def test_a_stream_survives_an_unavailable_store_without_loss(
    spark: SparkSession, s3_server: S3Server, tmp_path: Path
) -> None:
    url = await s3_server.new_url()
    fleet, sink = Fleet(url, s3_server.settings), Sink(tmp_path / "out")
    with outages(s3_server) as network:

        def start(patience: str) -> StreamingQuery:
            settings = Settings.load(**network.server.settings, store_patience=patience)
            frame = stream_output(spark, url, "numbers", settings=settings)
            return sink.start(frame, tmp_path / "checkpoint", interval="200 milliseconds")

        await fleet.commit(p0=20)
        query = start("1s")
        await until(lambda: sink.rows() == fleet.expected())
        network.begin()
        await fleet.commit(p0=10, p1=10)
        await until(lambda: query.exception() is not None)
        assert network.server.endpoint in str(query.exception())
        network.end()
        query = start("60s")
        await until(lambda: sink.rows() == fleet.expected())
        query.stop()


@pytest.mark.slow
async def test_a_stream_survives_a_missing_folder_without_loss(spark: SparkSession, tmp_path: Path) -> None:
    folder, away = tmp_path / "state", tmp_path / "away"
    fleet, sink = Fleet(str(folder)), Sink(tmp_path / "out")

    def start() -> StreamingQuery:
        settings = Settings.load(poll_interval="100ms", store_timeout=2, store_patience=5)
        frame = stream_output(spark, str(folder), "numbers", settings=settings)
        return sink.start(frame, tmp_path / "checkpoint", interval="100 milliseconds")

    await fleet.commit(p0=20)
    query = start()
    await until(lambda: sink.rows() == fleet.expected())
    folder.rename(away)
    await until(lambda: query.exception() is not None)
    assert f"numbers at file://{folder}" in str(query.exception())
    with pytest.raises(UsageError, match=f"no processor 'numbers' at file://{folder}"):
        start()
    away.rename(folder)
    await fleet.commit(p0=10)
    query = start()
    await until(lambda: sink.rows() == fleet.expected())
    query.stop()

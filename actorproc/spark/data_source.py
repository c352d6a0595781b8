"""`format("actorproc")`: Spark's Python data source over our datasets, for batches and streams.

Spark starts a Python process beside its driver for each of the calls here, and one that stays for each stream; the readers
are pickled from there to the tasks, settings included. So credentials travel to the executors and show in no plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from actorproc.errors import UsageError
from actorproc.rows.schema import schema_to_ddl
from actorproc.spark.blocking_store import open_blocking
from actorproc.spark.dataset import nullable
from actorproc.spark.log_writer import BatchWriter, StreamWriter
from actorproc.spark.options import ReadOptions, parse_read_options
from actorproc.spark.python_worker import called_by_spark
from actorproc.spark.quick_ack import QuickAck
from actorproc.spark.stream_reader import Stream, plan
from actorproc.spark.target import parse_write_options
from actorproc.spark.task_reader import read_spans

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxFiles,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    LIMITS = True
except ImportError:  # PySpark 4.1: no limits per trigger; it takes what is there with `availableNow`, too
    LIMITS = False

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Not known to PySpark 4.1."""


class ActorprocSource(DataSource):
    """The entry point. Every option is checked when a reader is made, so that an error names it at once."""

    @called_by_spark
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "actorproc"

    @called_by_spark
    def schema(self) -> str:
        request = parse_read_options(self.options)
        with open_blocking(request.url, request.settings) as place:
            schema = place.call(request.dataset.schema, place.store)
        return schema_to_ddl(pa.schema(map(nullable, schema)), exact=True)

    @called_by_spark
    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(parse_read_options(self.options), _arrow(schema))

    @called_by_spark
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        request = parse_read_options(self.options)
        if not LIMITS and (request.max_rows or request.max_files):
            raise UsageError("maxRowsPerTrigger and maxFilesPerTrigger need PySpark 4.2 or newer")
        return StreamReader(request, _arrow(schema))

    @called_by_spark
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(parse_write_options(self.options, stream=False), schema, overwrite)

    @called_by_spark
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return StreamWriter(parse_write_options(self.options, stream=True), schema, overwrite)


class _Reader(QuickAck):
    """What a task does, for a batch or a micro-batch."""

    def __init__(self, request: ReadOptions, schema: pa.Schema) -> None:
        self._request = request
        self._schema = schema

    @called_by_spark
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_spans(self._request, partition.value, self._schema)


class BatchReader(_Reader, DataSourceReader):
    """Reads what was committed when the query was planned."""

    @called_by_spark
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(part) for part in plan(self._request, self._schema)] or [InputPartition([])]


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what is new since the last offset. Its process lives as long as the query, and keeps its connection."""

    def __init__(self, request: ReadOptions, schema: pa.Schema) -> None:
        super().__init__(request, schema)
        self._stream: Stream | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_stream": None}  # tasks need none

    @property
    def _here(self) -> Stream:
        if self._stream is None:
            self._stream = Stream(self._request, self._schema)
        return self._stream

    @called_by_spark
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._here.initial_numbers()

    @called_by_spark
    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        return self._here.latest(start, limited=LIMITS and not isinstance(limit, ReadAllAvailable))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Tells Spark that there is a limit; where both are given, both count."""
        if self._request.max_rows:
            return ReadMaxRows(self._request.max_rows)
        return ReadMaxFiles(self._request.max_files) if self._request.max_files else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._here.stop_at_what_is_there()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._here.seen

    @called_by_spark
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [InputPartition(part) for part in self._here.plan_micro_batch(start, end)]

    def stop(self) -> None:
        if self._stream is not None:
            self._stream.close()


def _arrow(schema: StructType) -> pa.Schema:
    """What Spark expects of a batch, to the letter. Its timestamps are in UTC whatever the session's time zone."""
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:  # PySpark 4.1 knows no `timezone`, and takes UTC
        return to_arrow_schema(schema)

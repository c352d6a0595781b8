"""`format("actorproc")`: the Python data source, for batches and streams, reading and writing.

Spark starts a Python process beside its driver for each of these calls, and one for the life of each stream. The
readers and writers are pickled from there to the tasks, with the settings. So credentials reach the executors, but no
plan.
"""

from __future__ import annotations

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
from actorproc.rows.ddl import schema_to_ddl
from actorproc.rows.output_schema import nullable
from actorproc.spark.blocking_store import open_blocking
from actorproc.spark.columns import check_columns
from actorproc.spark.dataset import Span
from actorproc.spark.log_writer import BatchWriter, StreamWriter
from actorproc.spark.options import ReadOptions, parse_read_options, parse_write_options
from actorproc.spark.planning import plan_batch, split_into_tasks
from actorproc.spark.python_worker import called_by_spark
from actorproc.spark.stream_reader import LIMITS, StreamReader
from actorproc.spark.task_reader import TaskReader


class ActorprocSource(DataSource):
    """The entry point. Making a reader or writer checks every option, so that errors come at once."""

    @called_by_spark
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "actorproc"

    @called_by_spark
    def schema(self) -> str:
        options = parse_read_options(self.options)
        with open_blocking(options.url, options.settings) as blocking:
            schema = blocking.call(options.dataset.schema, blocking.store)
        return schema_to_ddl(pa.schema(map(nullable, schema)), exact=True)

    @called_by_spark
    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(parse_read_options(self.options), _arrow_schema(schema))

    @called_by_spark
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        options = parse_read_options(self.options)
        if not LIMITS and (options.max_rows or options.max_files):
            raise UsageError("maxRowsPerTrigger and maxFilesPerTrigger need PySpark 4.2 or newer")
        return StreamReader(options, _arrow_schema(schema))

    @called_by_spark
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(parse_write_options(self.options, stream=False), schema, overwrite)

    @called_by_spark
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return StreamWriter(parse_write_options(self.options, stream=True), schema, overwrite)


class BatchReader(TaskReader, DataSourceReader):
    """Reads everything that was committed when the query was planned."""

    @called_by_spark
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(part) for part in plan_tasks(self._options, self._schema)] or [InputPartition([])]


def plan_tasks(options: ReadOptions, schema: pa.Schema) -> list[list[Span]]:
    """The part of each task of a batch query.

    Raises:
        UsageError: there is no such dataset, or it has other columns than `schema`.
    """
    with open_blocking(options.url, options.settings) as blocking:
        check_columns(blocking.call(options.dataset.schema, blocking.store), schema, options.title)
        return split_into_tasks(blocking.call(plan_batch, options, blocking.store), options.tasks)


def _arrow_schema(schema: StructType) -> pa.Schema:
    """The exact Arrow schema that Spark expects of a batch. Its timestamps are in UTC, whatever the session's zone."""
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:  # PySpark 4.1 has no `timezone`, and uses UTC
        return to_arrow_schema(schema)

"""`read_state`: the keyed state of a processor as a DataFrame."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from actorproc.admin.state_table import state_batch, table_schema
from actorproc.config.settings import Settings
from actorproc.output.row_reader import partitions_with_state
from actorproc.output.schema_document import read_state_type
from actorproc.rows.ddl import schema_to_ddl
from actorproc.spark.blocking_store import open_blocking
from actorproc.spark.output_dataset import check_processor
from actorproc.state import reading
from actorproc.storage.names import ProcessorLayout


def read_state(
    spark: SparkSession, container: str, name: str, *, state: str = "", settings: Settings | None = None
) -> DataFrame:
    """The keys in `ctx.state` of processor `name`: columns `partition`, `state`, `key`, `value` and `expires`.

    `key` is text; keys that are not text are JSON. `value` has the type that the handler declares as `State`; without
    one it is JSON. Each partition is read as its newest commit has left it, when Spark runs the query, and by one task.

    Args:
        container: URL.
        state: name of the state; "" is `ctx.state` itself.
        settings: how to reach the store; default: environment and `actorproc.toml`.

    Raises:
        UsageError: there is no such processor.
        StoreError: the store could not be read.
    """
    settings, layout = settings or Settings.load(), ProcessorLayout(name)
    with open_blocking(container, settings) as blocking:
        blocking.call(check_processor, blocking.store, layout)
        known = blocking.call(partitions_with_state, blocking.store, layout)
        partitions = blocking.call(reading.without_passed_on, blocking.store, layout, known)
        value = blocking.call(read_state_type, blocking.store, layout, state)
    names = spark.createDataFrame([(partition,) for partition in partitions], "partition string")
    read = partial(_read, container, settings, layout, state, value)
    return names.mapInArrow(read, schema_to_ddl(table_schema(value)))


def _read(
    container: str,
    settings: Settings,
    layout: ProcessorLayout,
    state: str,
    value: pa.DataType | None,
    names: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """In a task: the state of the partitions whose names are given."""
    with open_blocking(container, settings) as blocking:
        for partition in (partition for batch in names for partition in batch.column(0).to_pylist()):
            found = blocking.call(reading.read_state, blocking.store, layout, partition)
            yield state_batch(found, state, value)

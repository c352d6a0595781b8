"""`read_output` and `stream_output`: a processor's committed rows as DataFrames."""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.output.output_files import OutputFiles
from actorproc.output.row_reader import partitions_with_state
from actorproc.records import SEQUENCE
from actorproc.rows.ddl import schema_to_ddl
from actorproc.rows.output_schema import PARTITION_COLUMN, nullable
from actorproc.spark.blocking_store import open_blocking
from actorproc.spark.columns import check_column_names
from actorproc.spark.data_source import ActorprocSource
from actorproc.spark.hadoop import native_place
from actorproc.spark.options import (
    check_partitions,
    check_start_sequence,
    checked_names,
    explicit_settings_as_options,
    settings_as_options,
)
from actorproc.spark.output_dataset import PARTITION, Output
from actorproc.spark.session import is_connect, parallelism
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores import open_store

_NO_MAX_AGE = "36500d"  # by default Spark's file stream skips files a week older than the newest


def read_output(
    spark: SparkSession,
    container: str,
    name: str,
    *,
    columns: Sequence[str] | None = None,
    partitions: Sequence[str] | None = None,
    start_sequence: int | Mapping[str, int] | None = None,
    native: bool | None = None,
    settings: Settings | None = None,
) -> DataFrame:
    """The committed output of processor `name`: the handler's columns, `_partition` and `_sequence`.

    Args:
        container: URL.
        columns: only these, in this order.
        partitions: only these.
        start_sequence: only rows from this `_sequence` on; one number, or numbers by partition. Trimmed rows are
            missing without an error.
        native: True: read with Spark's own Parquet reader. False: read through the data source, which needs no JARs.
            None: use Spark's own reader if it reaches the store (`file://`, or `s3://` with the `s3a` JARs).
        settings: how to reach the store; default: environment and `actorproc.toml`.

    Raises:
        UsageError: an argument is wrong; there is no such processor, column or partition; or `native` is True and Spark
            cannot read the store.
        StoreError: the store could not be read.
    """
    selection = _selection(container, name, columns, partitions, start_sequence)
    if is_connect(spark):
        return selection.load_remotely(spark, spark.read, settings, native)
    settings = settings or Settings.load()
    schema, url, files = selection.look(settings, files=native is not False)
    place = native_place(spark, url, settings)
    if place is None and native:
        raise _unreachable(url)
    if files is None and native:
        raise UsageError(
            f"output of {name} at {url} is trimmed within a compacted file, of which Spark's own reader would show all "
            "rows; leave native out"
        )
    if place is None or not files:
        return selection.load(spark, spark.read, settings, schema, url)
    frames = []
    for folder, keys in files.items():
        reader = spark.read.options(**place.options, basePath=f"{place.url}/{folder}")
        frames.append(reader.schema(_file_schema(schema)).parquet(*(f"{place.url}/{key}" for key in keys)))
    return selection.apply_to(reduce(DataFrame.unionAll, frames), schema)


def stream_output(
    spark: SparkSession,
    container: str,
    name: str,
    *,
    columns: Sequence[str] | None = None,
    partitions: Sequence[str] | None = None,
    start_sequence: int | Mapping[str, int] | None = None,
    max_rows: int | None = None,
    max_files: int | None = None,
    native: bool = False,
    settings: Settings | None = None,
) -> DataFrame:
    """The committed output of processor `name` as a stream: existing rows first, then new ones.

    Args:
        container, name, columns, partitions, start_sequence, settings: as for `read_output`.
        max_rows, max_files: approximate limits of a micro-batch (PySpark 4.2 or newer).
        native: use Spark's own file stream. It is faster per row, but lists the whole output at each trigger, remembers
            each file, and does not notice that output was trimmed before it was read.

    Raises:
        UsageError, StoreError: as `read_output`.
    """
    selection = _selection(container, name, columns, partitions, start_sequence)
    limits = {"maxRowsPerTrigger": max_rows, "maxFilesPerTrigger": max_files}
    stream = spark.readStream.options(**{option: str(limit) for option, limit in limits.items() if limit is not None})
    if is_connect(spark):
        return selection.load_remotely(spark, stream, settings, native)
    settings = settings or Settings.load()
    schema, url, files = selection.look(settings, files=native)
    if not native:
        return selection.load(spark, stream, settings, schema, url)
    if max_rows is not None:
        raise UsageError(
            "max_rows (--max-rows) does not go with native (--native): Spark's own file stream counts files; use "
            "max_files (--max-files)"
        )
    place = native_place(spark, url, settings)
    if place is None:
        raise _unreachable(url)
    if files is not None and not files:
        raise UsageError(f"{name} at {url} has no output yet, and Spark's own file stream needs some; leave native out")
    if files is None or set(files) != {selection.originals}:
        raise UsageError(
            f"output of {name} at {url} was compacted, and Spark's own file stream sees only the original files, until "
            "they are trimmed; leave native out"
        )
    files_below = stream.options(**place.options, maxFileAge=_NO_MAX_AGE).schema(_file_schema(schema))
    return selection.apply_to(files_below.parquet(f"{place.url}/{selection.originals}"), schema)


def _selection(
    container: str,
    name: str,
    columns: Sequence[str] | None,
    partitions: Sequence[str] | None,
    start: int | Mapping[str, int] | None,
) -> _Selection:
    if start is not None:
        check_start_sequence(f"start_sequence = {start!r}", start)
    return _Selection(
        container,
        name,
        columns=None if columns is None else checked_names("columns", columns),
        partitions=None if partitions is None else checked_names("partitions", partitions),
        start={str(name): first for name, first in start.items()} if isinstance(start, Mapping) else start,
    )


@dataclass(frozen=True)
class _Selection:
    """The rows and columns that are wanted of a processor's output, for either reader."""

    container: str
    name: str
    columns: Sequence[str] | None
    partitions: Sequence[str] | None
    start: int | Mapping[str, int] | None

    @property
    def originals(self) -> str:
        """The folder of the files that were committed; compacted ones are in another."""
        return ProcessorLayout(self.name).output.rstrip("/")

    def look(self, settings: Settings, *, files: bool) -> tuple[pa.Schema, str, Mapping[str, Sequence[str]] | None]:
        """The schema of all columns, the absolute URL, and if `files`: the result of `_files`."""
        output = Output(self.name)
        with open_blocking(self.container, settings) as blocking:
            store = blocking.store
            schema = pa.schema(map(nullable, blocking.call(output.schema, store)))
            named = [*(self.partitions or ()), *(self.start if isinstance(self.start, Mapping) else ())]
            if named:
                check_partitions(named, blocking.call(output.partitions, store), output.title(store.url))
            if self.columns is not None:
                check_column_names(self.name, self.columns, schema.names)
            return schema, store.url, blocking.call(self._files, store) if files else {}

    async def _files(self, store: Store) -> Mapping[str, Sequence[str]] | None:
        """Keys of folders and files, by the folder that holds them; empty if nothing was committed.

        None if a compacted file begins with trimmed rows, which Spark's own reader would show.
        """
        layout = ProcessorLayout(self.name)
        output_files = OutputFiles(layout)
        boundaries = (await output_files.look(store)).values()
        if any(boundary.ranges and boundary.ranges[0].first < boundary.lowest for boundary in boundaries):
            return None
        if not any(boundary.originals for boundary in boundaries):
            exists = (await store.list(layout.output, limit=1)).entries
            return {self.originals: [self.originals]} if exists else {}
        partitions = await partitions_with_state(store, layout)
        wanted = [partition for partition in partitions if self.partitions is None or partition in self.partitions]
        within, beside = layout.compacted_within.rstrip("/"), layout.compacted.rstrip("/")
        found: dict[str, list[str]] = {within: [], self.originals: [], beside: []}
        for file in chain(*(await output_files.files(store, dict.fromkeys(wanted, 0))).values()):
            found[next(folder for folder in found if file.key.startswith(f"{folder}/"))].append(file.key)
        return {folder: keys for folder, keys in found.items() if keys}

    def load(self, spark: SparkSession, reader: Any, settings: Settings, schema: pa.Schema, url: str) -> DataFrame:
        """Read through the data source.

        It gets the schema, which it would otherwise look up again, and the absolute URL, since Spark's processes may
        have other working directories.
        """
        wanted = schema if self.columns is None else pa.schema([schema.field(column) for column in self.columns])
        reader = self._configure(spark, reader, settings_as_options(settings)).option("tasks", parallelism(spark))
        return reader.schema(schema_to_ddl(wanted, exact=True)).load(url)  # type: ignore[no-any-return]

    def load_remotely(
        self, spark: SparkSession, reader: Any, settings: Settings | None, native: bool | None
    ) -> DataFrame:
        """Read through the data source on a Spark Connect server."""
        if native:
            raise UsageError("native=True does not go with Spark Connect: only the server knows what it reaches")
        reader = self._configure(spark, reader, explicit_settings_as_options(settings) if settings is not None else {})
        url = open_store(self.container, settings or Settings()).url  # a path is relative to this process
        frame: DataFrame = reader.load(url)
        if self.columns is None:
            return frame
        check_column_names(self.name, self.columns, frame.schema.names)
        chosen = frame.schema.__class__([frame.schema[column] for column in self.columns])
        return reader.schema(chosen).load(url)  # type: ignore[no-any-return]

    def _configure(self, spark: SparkSession, reader: Any, settings: Mapping[str, str]) -> Any:
        """The reader with the options of the data source."""
        if not any(module.name == "pyspark_actorproc" for module in pkgutil.iter_modules()):
            spark.dataSource.register(ActorprocSource)  # an editable installation: Spark does not find it by itself
        options = {**settings, "name": self.name}
        if self.partitions is not None:
            options["partitions"] = json.dumps(self.partitions)
        if self.start is not None:
            options["startSequence"] = json.dumps(self.start)
        return reader.format("actorproc").options(**options)

    def apply_to(self, frame: DataFrame, schema: pa.Schema) -> DataFrame:
        """Select the wanted rows and columns from a frame of Spark's own Parquet reader."""
        if self.partitions is not None:
            frame = frame.where(f"{_PARTITION_NAME} IN ({', '.join(map(_literal, self.partitions))})")
        if isinstance(self.start, int):
            frame = frame.where(f"{SEQUENCE.name} >= {self.start}")
        elif self.start is not None:
            for name, start in self.start.items():
                frame = frame.where(f"{_PARTITION_NAME} <> {_literal(name)} OR {SEQUENCE.name} >= {start}")
        columns = self.columns if self.columns is not None else schema.names
        return frame.selectExpr(
            *(f"{_PARTITION_NAME} AS {c}" if c == PARTITION.name else f"`{c.replace('`', '``')}`" for c in columns)
        )


# Spark decodes each %XX in a folder's name to one character; ours encode bytes of UTF-8. Only names beyond ASCII have
# any, and decoding every row takes longer than the rest of the scan: hence the test.
_PARTITION_NAME = (
    "CASE WHEN octet_length({0}) = length({0}) THEN {0} ELSE decode(encode({0}, 'ISO-8859-1'), 'UTF-8') END"
).format(f"`{PARTITION_COLUMN}`")


def _literal(text: str) -> str:
    """`text` as a SQL expression that does not depend on the session's escaping rules."""
    return f"decode(X'{text.encode().hex()}', 'UTF-8')"


def _file_schema(schema: pa.Schema) -> str:
    """The schema that Spark's own reader finds in the files and in the names of their folders."""
    stored = [field for field in schema if field.name != PARTITION.name]
    return schema_to_ddl(pa.schema([*stored, pa.field(PARTITION_COLUMN, pa.string())]), exact=True)


def _unreachable(url: str) -> UsageError:
    return UsageError(
        f"Spark's own reader cannot read {url}: it needs the JARs of that store (for s3:// the s3a JARs, see "
        "docs/spark.md), or does not know it. Leave native out to read through the data source"
    )

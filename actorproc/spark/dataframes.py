"""`read_output` and `stream_output`: a processor's committed rows as DataFrames."""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Mapping, Sequence
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
from actorproc.rows.schema import PARTITION_COLUMN, schema_to_ddl
from actorproc.spark.blocking_store import open_blocking
from actorproc.spark.cores import cores
from actorproc.spark.dataset import nullable
from actorproc.spark.native import native_options, native_url
from actorproc.spark.options import (
    check_limit,
    check_partitions,
    check_start_sequence,
    checked_names,
    explicit_settings_as_options,
    settings_as_options,
)
from actorproc.spark.output import PARTITION, Output, check_column_names
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores import open_store

_NEVER = "36500d"  # Spark's own file stream passes over files that are a week older than the newest it has seen


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
    """What processor `name` has committed: the handler's columns, `_partition` and `_sequence`.

    Args:
        container: its URL.
        columns: only these, in this order.
        partitions: only these.
        start_sequence: only rows from this `_sequence` on; a number, or one by partition. Where some of them were trimmed,
            those that are left, without an error.
        native: with Spark's own Parquet reader (True), or with the data source, which needs no jar (False); None: with
            Spark's own where Spark reaches the store (`file://`; `s3://` if its `s3a` jars are there).
        settings: how to reach the store; default: environment and `actorproc.toml`.

    Raises:
        UsageError: an argument is wrong; there is no such processor, column or partition; or Spark itself does not reach the
            store.
        StoreError: the store could not be read.
    """
    wanted = _Wanted(container, name, columns, partitions, start_sequence)
    if _is_remote(spark):
        return wanted.remote(spark, spark.read, settings, native)
    settings = settings or Settings.load()
    schema, url, folders = wanted.look(settings, files=native is not False)
    path = native_url(spark, url)
    if path is None and native:
        raise _unreachable(url)
    if folders is None and native:
        raise UsageError(
            f"output of {name} at {url} is trimmed up to amid a compacted file, of which Spark's own reader would show all rows; "
            "leave native out"
        )
    if path is not None and folders:
        frames = []
        for folder, keys in folders.items():
            reader = spark.read.options(**native_options(path, settings), basePath=f"{path}/{folder}")
            frames.append(reader.schema(_in_files(schema)).parquet(*(f"{path}/{key}" for key in keys)))
        return wanted.of_files(reduce(DataFrame.unionAll, frames), schema)
    return wanted.source(spark, spark.read, settings, schema, url)


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
    """The same as a stream: what is there, then what is committed later. Arguments as for `read_output`, and:

    Args:
        max_rows, max_files: about so many rows, or files, in a micro-batch. (PySpark 4.2 or newer.)
        native: with Spark's own file stream: faster per row, but it lists the whole output at each trigger, remembers
            each file, and does not notice that output was trimmed before it was read.

    Raises:
        UsageError, StoreError: as `read_output`.
    """
    wanted = _Wanted(container, name, columns, partitions, start_sequence)
    check_limit("max_rows", max_rows)
    check_limit("max_files", max_files)
    limits = {"maxRowsPerTrigger": max_rows, "maxFilesPerTrigger": max_files}
    given = {option: str(limit) for option, limit in limits.items() if limit is not None}
    if not native or _is_remote(spark):
        stream = spark.readStream.options(**given)
        if _is_remote(spark):
            return wanted.remote(spark, stream, settings, native)
        settings = settings or Settings.load()
        schema, url, _ = wanted.look(settings, files=False)
        return wanted.source(spark, stream, settings, schema, url)
    settings = settings or Settings.load()
    if max_rows is not None:
        raise UsageError(
            "max_rows (--max-rows) does not go with native (--native): Spark's own file stream counts files; use max_files (--max-files)"
        )
    schema, url, folders = wanted.look(settings, files=True)
    path = native_url(spark, url)
    if path is None:
        raise _unreachable(url)
    if folders is not None and not folders:
        raise UsageError(f"{name} at {url} has no output yet, and Spark's own file stream needs some; leave native out")
    if folders is None or len(folders) > 1 or wanted.originals not in folders:
        raise UsageError(
            f"output of {name} at {url} was compacted, and Spark's own file stream sees the originals only, while they are "
            "there; leave native out"
        )
    reader = spark.readStream.options(**given, **native_options(path, settings), maxFileAge=_NEVER)
    return wanted.of_files(reader.schema(_in_files(schema)).parquet(f"{path}/{wanted.originals}"), schema)


class _Wanted:
    """What is asked for, and how either reader is told."""

    def __init__(
        self,
        container: str,
        name: str,
        columns: Sequence[str] | None,
        partitions: Sequence[str] | None,
        start: int | Mapping[str, int] | None,
    ) -> None:
        self._container = container
        self._layout = ProcessorLayout(name)
        self.originals = self._layout.output.rstrip("/")
        self._compacted = self._layout.compacted.rstrip("/")
        self._name = name
        self._columns = None if columns is None else checked_names("columns", columns)
        self._partitions = None if partitions is None else checked_names("partitions", partitions)
        if start is not None:
            check_start_sequence(f"start_sequence = {start!r}", start)
        self._start = {str(name): first for name, first in start.items()} if isinstance(start, Mapping) else start

    def look(self, settings: Settings, *, files: bool) -> tuple[pa.Schema, str, Mapping[str, Sequence[str]] | None]:
        """The schema of all columns, the URL in full, and, if `files` are wanted, what Spark's own reader is to read: keys of
        folders and files by the folder that they are in; nothing if nothing was committed, None if it would read too much."""
        output = Output(self._name)
        with open_blocking(self._container, settings) as place:
            schema = pa.schema(map(nullable, place.call(output.schema, place.store)))
            named = [*(self._partitions or ()), *(self._start if isinstance(self._start, Mapping) else ())]
            if named:
                check_partitions(named, place.call(output.partitions, place.store), output.at(place.store.url))
            folders = place.call(self._folders, place.store) if files else {}
            if self._columns is not None:
                check_column_names(self._name, self._columns, schema)
            return schema, place.store.url, folders

    async def _folders(self, store: Store) -> Mapping[str, Sequence[str]] | None:
        """None: a compacted file begins with rows that were trimmed, which Spark's own reader would show."""
        where = OutputFiles(self._layout)
        boundaries = (await where.look(store)).values()
        if any(boundary.ranges and boundary.ranges[0].first < boundary.lowest for boundary in boundaries):
            return None
        if not any(boundary.originals for boundary in boundaries):
            return (
                {self.originals: [self.originals]} if (await store.list(self._layout.output, limit=1)).entries else {}
            )
        partitions = await partitions_with_state(store, self._layout)
        wanted = [partition for partition in partitions if self._partitions is None or partition in self._partitions]
        found: dict[str, list[str]] = {self.originals: [], self._compacted: []}
        for file in chain(*(await where.files(store, dict.fromkeys(wanted, 0))).values()):
            found[self._compacted if file.compacted else self.originals].append(file.key)
        return {folder: keys for folder, keys in found.items() if keys}

    def source(self, spark: SparkSession, reader: Any, settings: Settings, schema: pa.Schema, url: str) -> DataFrame:
        """Through the data source. Spark is told the schema, which is known: the data source would look for it again; and the
        place in full: its processes may have other working directories."""
        wanted = schema if self._columns is None else pa.schema([schema.field(column) for column in self._columns])
        reader = self._told(spark, reader, settings_as_options(settings)).option("tasks", cores(spark))
        return reader.schema(schema_to_ddl(wanted, exact=True)).load(url)  # type: ignore[no-any-return]

    def remote(self, spark: SparkSession, reader: Any, settings: Settings | None, native: bool | None) -> DataFrame:
        """Through the data source, which runs elsewhere."""
        if native:
            raise UsageError(
                "native=True does not go with Spark Connect: this process cannot tell what the server reaches"
            )
        reader = self._told(spark, reader, explicit_settings_as_options(settings) if settings is not None else {})
        # In full: a path is one of this process, not of the server's.
        place = open_store(self._container, settings or Settings()).url
        frame: DataFrame = reader.load(place)
        if self._columns is None:
            return frame
        check_column_names(self._name, self._columns, frame.schema)
        chosen = frame.schema.__class__([frame.schema[column] for column in self._columns])
        return reader.schema(chosen).load(place)  # type: ignore[no-any-return]

    def _told(self, spark: SparkSession, reader: Any, riding: Mapping[str, str]) -> Any:
        """The reader, with what the data source has to know."""
        _register(spark)
        options = {**riding, "name": self._name}
        if self._partitions is not None:
            options["partitions"] = json.dumps(self._partitions)
        if self._start is not None:
            options["startSequence"] = json.dumps(self._start)
        return reader.format("actorproc").options(**options)

    def of_files(self, frame: DataFrame, schema: pa.Schema) -> DataFrame:
        """What is wanted of what Spark's own Parquet reader finds. In SQL: each call of a function for a column asks Java ten
        times, which for a few of them takes longer than planning does."""
        if self._partitions is not None:
            frame = frame.where(f"{_NAME_IN_PATH} IN ({', '.join(map(_literal, self._partitions))})")
        if isinstance(self._start, int):
            frame = frame.where(f"{SEQUENCE.name} >= {self._start}")
        elif self._start is not None:
            for name, start in self._start.items():
                frame = frame.where(f"{_NAME_IN_PATH} <> {_literal(name)} OR {SEQUENCE.name} >= {start}")
        columns = self._columns if self._columns is not None else schema.names
        return frame.selectExpr(
            *(f"{_NAME_IN_PATH} AS {c}" if c == PARTITION.name else f"`{c.replace('`', '``')}`" for c in columns)
        )


# Spark makes one character of each %XX in a folder's name; ours are bytes of UTF-8.
# (Only names that are not ASCII have any: for each row the way there and back takes longer than the rest of it.)
_NAME_IN_PATH = (
    "CASE WHEN octet_length({0}) = length({0}) THEN {0} ELSE decode(encode({0}, 'ISO-8859-1'), 'UTF-8') END"
).format(f"`{PARTITION_COLUMN}`")


def _literal(text: str) -> str:
    """`text` in Spark's SQL, whatever the session says of backslashes."""
    return f"decode(X'{text.encode().hex()}', 'UTF-8')"


def _in_files(schema: pa.Schema) -> str:
    """What Spark's own reader is to find there: in the files, and in the names of their folders."""
    stored = [field for field in schema if field.name != PARTITION.name]
    return schema_to_ddl(pa.schema([*stored, pa.field(PARTITION_COLUMN, pa.string())]), exact=True)


def _is_remote(spark: SparkSession) -> bool:
    """Whether the session is of Spark Connect: then the driver, and its settings, are elsewhere."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _register(spark: SparkSession) -> None:
    """Spark finds our data source by itself, but not in an editable installation, whose modules no search lists."""
    if not any(module.name == "pyspark_actorproc" for module in pkgutil.iter_modules()):
        from actorproc.spark.data_source import ActorprocSource

        spark.dataSource.register(ActorprocSource)


def _unreachable(url: str) -> UsageError:
    return UsageError(
        f"Spark itself does not reach {url}: for s3:// it needs the jars of s3a (docs/spark.md names them), other stores "
        "it does not know. Leave native out, and the data source reads it"
    )

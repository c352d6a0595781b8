"""Where a DataFrame is appended: the options of `write.format("actorproc")`, checked, and the columns that a log takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructType, TimestampType

from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.log.transactions import UNNAMED
from actorproc.records import RECORD_SCHEMA
from actorproc.spark.options import SETTING_OPTIONS, SETTINGS_ARE_COMPLETE, check_options, settings_from_options
from actorproc.storage.document import whole_number
from actorproc.storage.names import checked_name
from actorproc.stores import open_store

_OPTIONS = ("path", "kind", "logPartitions", "transaction", "batch")
_SPARKS = ("checkpointlocation", "queryname")  # what Spark hands on and needs itself

_ALLOWED = (
    "A log takes `value` (string or binary), and if they are there `key` (string or binary), `headers` "
    "(array<struct<key: string, value: binary>>) and `timestamp` (timestamp). Select these, for instance "
    '.selectExpr("carrier AS key", "to_json(struct(*)) AS value")'
)


@dataclass(frozen=True)
class WriteOptions:
    """`partitions`: with how many a log is created if there is none; None: it must be there. `transaction`, `batch`: what
    makes a batch job idempotent."""

    url: str
    settings: Settings
    partitions: int | None
    transaction: str | None
    batch: int


def parse_write_options(given: Mapping[str, str], *, stream: bool) -> WriteOptions:
    """The target that the options name; their names in any case. Settings that are not given come from this process's
    environment and `actorproc.toml`.

    Raises:
        UsageError, SettingsError: names the option, its value and what is allowed.
    """
    options = {key.lower(): value for key, value in given.items()}
    known = {name.lower(): name for name in (*_OPTIONS, *SETTING_OPTIONS)}
    check_options([name for name in given if name.lower() not in (*_SPARKS, SETTINGS_ARE_COMPLETE.lower())], known)
    url = options.get("path")
    if not url:
        raise UsageError('which log? Say .save("URL"), .start("URL") or .option("path", "URL")')
    if url.startswith("memory:"):
        raise UsageError(f"{url} lives in one process, and Spark has several: use a folder or a bucket")
    if (kind := options.get("kind", "log")) != "log":
        raise UsageError(f"kind = {kind!r}: what Spark can append to is a log; {kind} is a processor's own")
    transaction = options.get("transaction")
    if stream and (transaction or "batch" in options):
        raise UsageError("transaction and batch are for batch jobs: a stream is known by the id in its checkpoint")
    if transaction and checked_name("transaction", transaction).startswith(UNNAMED):
        raise UsageError(f"transaction = {transaction!r}: a name that does not begin with {UNNAMED!r}")
    if "batch" in options and not transaction:
        raise UsageError("batch needs a transaction: the name under which batches count up")
    settings = settings_from_options(options)
    return WriteOptions(
        url=open_store(url, settings).url,  # in full: tasks may have another working directory
        settings=settings,
        partitions=_number(options, "logPartitions", least=1),
        transaction=transaction,
        batch=_number(options, "batch", least=0) or 0,
    )


def _number(options: Mapping[str, str], name: str, least: int) -> int | None:
    value = options.get(name.lower())
    if value is None:
        return None
    number = whole_number(value.strip())
    if number is None or number < least:
        raise UsageError(f"{name} = {value!r:.100}: a whole number, {least} or more, and of 64 bits")
    return number


def check_record_columns(schema: StructType) -> None:
    """Check that the columns are those of records.

    Raises:
        UsageError: names each that is not, its type, and what a log takes.
    """
    wrong = []
    for field in schema:
        fits = _FITTING.get(field.name)
        if fits is None:
            wrong.append(f"there is no place for a column {field.name!r}")
        elif not fits(field.dataType):
            wrong.append(f"column {field.name!r} is {field.dataType.simpleString()}")
    if "value" not in schema.names:
        wrong.append("there is no column 'value'")
    if wrong:
        raise UsageError(f"{'; '.join(wrong)}. {_ALLOWED}")


def _is_bytes(kind: DataType) -> bool:
    return isinstance(kind, StringType | BinaryType)


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    header = kind.elementType
    return header.names == ["key", "value"] and (
        isinstance(header["key"].dataType, StringType) and isinstance(header["value"].dataType, BinaryType)
    )


_FITTING: dict[str, Callable[[DataType], bool]] = {
    "key": _is_bytes,
    "value": _is_bytes,
    "headers": _is_headers,
    "timestamp": lambda kind: isinstance(kind, TimestampType),
}


def to_records(batch: pa.RecordBatch, now: pa.Scalar) -> pa.RecordBatch:
    """The columns of a log; `now` where there is no timestamp.

    Raises:
        UsageError: a header has no name.
    """
    columns = []
    for field in RECORD_SCHEMA:
        if field.name not in batch.schema.names:
            column = pa.nulls(batch.num_rows, field.type)
        else:
            column = batch.column(field.name)
        if field.name == "headers":
            column = _headers(column, field.type)
        columns.append(column.cast(field.type))
    columns[-1] = columns[-1].fill_null(now)
    return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)


def _headers(column: pa.ListArray, kind: pa.ListType) -> pa.ListArray:
    if column.null_count < len(column) and column.flatten().null_count:
        raise UsageError("column 'headers' has a header that is null")
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        raise UsageError("column 'headers' has a header whose key is null: each has a name") from None

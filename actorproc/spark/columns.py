"""Schemas: the columns that a reader asks for, and the columns that a log takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.types import StructType

from actorproc.errors import UsageError
from actorproc.records import RECORD_SCHEMA
from actorproc.rows.output_schema import nullable

_LOG_TYPES = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp",),
}
_LOG_COLUMNS = (
    "A log takes `value` (string or binary), and optionally `key` (string or binary), `headers` "
    "(array<struct<key: string, value: binary>>) and `timestamp` (timestamp). Select these, for example "
    '.selectExpr("carrier AS key", "to_json(struct(*)) AS value")'
)


def check_columns(schema: pa.Schema, wanted: pa.Schema, title: str) -> None:
    """Check that the dataset has the wanted columns, with the same types, and NOT NULL only where it has no nulls.

    Raises:
        UsageError: names each wrong column, and the columns that exist.
    """
    wrong = []
    for field in wanted:
        if field.name not in schema.names:
            wrong.append(f"there is no column {field.name!r}")
            continue
        actual = schema.field(field.name)
        if same_type(actual.type, field.type):
            # Spark trusts NOT NULL: it would count no nulls where there are some, or fail in Java.
            wrong += [
                f"column {p!r} may be null, and is declared NOT NULL" for p in _not_null(field.name, actual, field)
            ]
        else:
            wrong.append(f"column {field.name!r} is {actual.type}, not {field.type}")
    if wrong:
        raise UsageError(
            f"the schema does not fit {title}: {'; '.join(wrong)}. There are: {', '.join(schema.names)}. "
            "Use the existing names and types (NOT NULL may be left out), and cast in Spark"
        )


def _not_null(path: str, actual: pa.Field, wanted: pa.Field) -> Iterator[str]:
    """Paths of the column and its parts that only `wanted` declares NOT NULL. Both have the same type."""
    if actual.nullable and not wanted.nullable:
        yield path
    for (name, part), (_, wanted_part) in zip(_parts(actual.type), _parts(wanted.type), strict=True):
        yield from _not_null(f"{path}.{name}", part, wanted_part)


def _parts(kind: pa.DataType) -> list[tuple[str, pa.Field]]:
    if pa.types.is_struct(kind):
        return [(field.name, field) for field in kind]
    if pa.types.is_list(kind):
        return [("element", kind.value_field)]
    if pa.types.is_map(kind):
        return [("key", kind.key_field), ("value", kind.item_field)]
    return []


def same_type(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether the types are equal, apart from nullability and the names that Arrow gives to elements."""
    return bool(nullable(pa.field("", left)).type.equals(nullable(pa.field("", right)).type))


def check_column_names(processor: str, columns: Sequence[str], existing: Sequence[str]) -> None:
    """Check that the processor's output has these columns.

    Raises:
        UsageError: lists the unknown columns and the existing ones.
    """
    if unknown := [column for column in columns if column not in existing]:
        raise UsageError(f"{processor} has no column {', '.join(unknown)}; there are: {', '.join(existing)}")


def check_record_columns(schema: StructType) -> None:
    """Check that a log takes these columns.

    Raises:
        UsageError: names each wrong column, its type, and the columns that a log takes.
    """
    wrong = []
    for field in schema:
        kind = field.dataType.simpleString()
        if field.name not in _LOG_TYPES:
            wrong.append(f"column {field.name!r} is unknown")
        elif kind not in _LOG_TYPES[field.name]:
            wrong.append(f"column {field.name!r} is {kind}")
    if "value" not in schema.names:
        wrong.append("there is no column 'value'")
    if wrong:
        raise UsageError(f"{'; '.join(wrong)}. {_LOG_COLUMNS}")


def to_records(batch: pa.RecordBatch, now: pa.Scalar) -> pa.RecordBatch:
    """The batch with the columns of a log. A missing timestamp becomes `now`.

    Raises:
        UsageError: a header is null.
        pa.ArrowInvalid: a header has no name.
    """
    columns = []
    for field in RECORD_SCHEMA:
        if field.name not in batch.schema.names:
            column = pa.nulls(batch.num_rows, field.type)
        else:
            column = batch.column(field.name)
        if field.name == "headers" and column.null_count < len(column) and column.flatten().null_count:
            raise UsageError("column 'headers' has a header that is null")
        columns.append(column.cast(field.type))
    columns[-1] = columns[-1].fill_null(now)
    return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)

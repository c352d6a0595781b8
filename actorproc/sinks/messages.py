"""Rows as records of a topic or a log: key, value, headers and time. For sinks whose target has such records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.types as pt
from pydantic import Field, model_validator

from actorproc.records import SEQUENCE
from actorproc.rows.json_values import plain_rows, to_json
from actorproc.sinks.options import Names
from actorproc.sinks.protocol import Delivery, SinkRefused
from actorproc.sinks.row_encoder import JSON, EncoderOptions, RowEncoder, RowRefused

PARTITION = pa.field("_partition", pa.string())
"""A column that key and headers may name, as `_sequence`: the partition that the row comes from."""

_AT_ONCE = 10_000
"""Rows that are Python objects at once."""


class MessageOptions(EncoderOptions):
    """Options of a sink whose target has records."""

    key: Names = Field((), description="Columns of the key, which decides the partition. Default: no key.")
    value: str | None = Field(
        None, description="Column that is the value as it is: text or bytes. Default: the encoded row."
    )
    headers: Names = Field((), description="Columns that are headers; also `_sequence` and `_partition`.")
    timestamp: str | None = Field(None, description="Column with the time of the record. Default: now.")
    deleted: str | None = Field(None, description="Boolean column: a row in which it is true has no value.")

    @model_validator(mode="after")
    def _fit_together(self) -> MessageOptions:
        """Rows are added here, with keys and without: in place of the rule of tables."""
        if self.value is not None and self.encode != JSON:
            raise ValueError("value is a column that is the value as it is: it goes without encode")
        return self


class Messages(NamedTuple):
    """Some rows, by column."""

    keys: pa.BinaryArray
    values: pa.BinaryArray
    headers: list[list[tuple[str, bytes]]] | None
    times: pa.TimestampArray | None
    """In microseconds, UTC; null: now."""


async def prepare(options: MessageOptions, schema: pa.Schema, encoder: RowEncoder) -> None:
    """Check the columns that the options name, and open the encoder for the others.

    Raises:
        SinkRefused, SinkError: a column is missing, or has another type; or see `RowEncoder.open`.
    """
    _check_columns(options, schema)
    await encoder.open(schema.remove(schema.get_field_index(SEQUENCE.name)))


def _check_columns(options: MessageOptions, schema: pa.Schema) -> None:
    """Check that the columns that the options name are there, with a fitting type.

    Raises:
        SinkRefused: one is not.
    """
    schema = schema.append(PARTITION)
    named = {"key": options.key, "headers": options.headers}
    named |= {name: (got,) for name in ("value", "timestamp", "deleted") if (got := getattr(options, name)) is not None}
    for option, columns in named.items():
        for column in columns:
            if column not in schema.names:
                raise SinkRefused(
                    f"{option} = {column}: the output has no such column; it has {', '.join(schema.names)}"
                )
    fits = {"value": _is_bytes, "timestamp": pt.is_timestamp, "deleted": pt.is_boolean}
    for option, has_type in fits.items():
        if option in named and not has_type(kind := schema.field(named[option][0]).type):
            wanted = {"value": "text or binary", "timestamp": "a timestamp", "deleted": "a boolean"}[option]
            raise SinkRefused(f"{option} = {named[option][0]}: the column is {kind}, not {wanted}")


def messages_of(delivery: Delivery, options: MessageOptions, encoder: RowEncoder) -> Iterator[Messages]:
    """The rows of a delivery as messages, some at once. CPU-heavy: run it off the loop.

    Raises:
        SinkRefused: a row cannot be encoded. Names its record.
    """
    rows = delivery.rows
    origin = pa.repeat(pa.scalar(delivery.partition, PARTITION.type), rows.num_rows)
    for batch in rows.append_column(PARTITION, origin).combine_chunks().to_batches(_AT_ONCE):
        yield Messages(
            _keys(batch, options.key), _values(batch, delivery, options, encoder), _headers(batch, options.headers),
            None if options.timestamp is None else _times(batch.column(options.timestamp)),
        )  # fmt: skip


def _values(batch: pa.RecordBatch, delivery: Delivery, options: MessageOptions, encoder: RowEncoder) -> pa.BinaryArray:
    if options.value is not None:
        values = batch.column(options.value).cast(pa.binary())
    else:
        try:
            values = encoder.encode(batch.drop_columns([SEQUENCE.name, PARTITION.name]))
        except RowRefused as refused:
            sequence = batch.column(SEQUENCE.name)[refused.number]
            raise SinkRefused(f"the row of record {sequence} of partition {delivery.partition}: {refused}") from None
    if options.deleted is None:
        return values
    gone = batch.column(options.deleted).fill_null(False)
    return pa.compute.if_else(gone, pa.scalar(None, pa.binary()), values)


def _keys(batch: pa.RecordBatch, columns: tuple[str, ...]) -> pa.BinaryArray:
    if not columns:
        return pa.nulls(batch.num_rows, pa.binary())
    if len(columns) == 1:
        return _texts(batch, columns[0])
    rows = plain_rows(batch.select(columns))
    return pa.array([to_json(list(row.values())) for row in rows], pa.binary())


def _texts(batch: pa.RecordBatch, name: str) -> pa.BinaryArray:
    """A column as keys or headers: text and bytes as they are, numbers as digits, anything else as JSON."""
    column = batch.column(name)
    if _is_bytes(column.type):
        return column.cast(pa.binary())
    if pt.is_integer(column.type):
        return column.cast(pa.string()).cast(pa.binary())
    values = [row[name] for row in plain_rows(batch.select([name]))]
    return pa.array([None if value is None else to_json(value) for value in values], pa.binary())


def _headers(batch: pa.RecordBatch, columns: tuple[str, ...]) -> list[list[tuple[str, bytes]]] | None:
    if not columns:
        return None
    texts = [_texts(batch, name).to_pylist() for name in columns]
    return [
        [(name, text) for name, text in zip(columns, row, strict=True) if text is not None]
        for row in zip(*texts, strict=True)
    ]


def _times(column: pa.Array) -> pa.TimestampArray:
    return column.cast(pa.timestamp("us"), safe=False).cast(pa.timestamp("us", "UTC"))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_binary(kind))

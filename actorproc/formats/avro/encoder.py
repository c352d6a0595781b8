"""Encodes rows as Avro values with a schema registry, in Confluent's wire format, by fastavro."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from fastavro import parse_schema, schemaless_writer

from actorproc.errors import SchemaError, SourceError
from actorproc.formats.avro.row_schema import check_fit, name_from, schema_of_rows
from actorproc.formats.avro.schema import parsed_avro
from actorproc.formats.registry.client import RegistrySchema, SchemaRegistry
from actorproc.formats.registry.wire_format import header_of
from actorproc.runtime.error_text import format_error
from actorproc.sinks.protocol import SinkError, SinkRefused
from actorproc.sinks.row_encoder import RowEncoder, RowRefused

Form = Callable[[Any], Any]


class AvroEncoder(RowEncoder):
    """Each row as a record.

    Args:
        subject: of the schema.
        target: names the record.
        register: the schema of the rows is registered. Otherwise the latest version of the subject is used.
    """

    def __init__(self, registry: SchemaRegistry, subject: str, target: str, *, register: bool) -> None:
        self._registry, self._subject, self._target, self._register = registry, subject, target, register
        self._schema: Any = None
        self._header = b""

    async def open(self, schema: pa.Schema) -> None:
        """See `RowEncoder.open`."""
        try:
            found = await (self._registered(schema) if self._register else self._latest(schema))
        except SchemaError as error:
            raise SinkRefused(f"subject {self._subject}: {error}") from None
        except SourceError as error:
            raise SinkError(str(error)) from None
        self._schema, self._header = _parsed(found), header_of(found.id)

    async def _registered(self, columns: pa.Schema) -> RegistrySchema:
        text = schema_of_rows(columns, name_from(self._target))
        return RegistrySchema(await self._registry.register(self._subject, "AVRO", text), "AVRO", text)

    async def _latest(self, columns: pa.Schema) -> RegistrySchema:
        found = await self._registry.version(self._subject)
        if found is None:
            raise SchemaError("there is no such subject; register a schema, or leave out register_schema")
        if found.kind != "AVRO":
            raise SchemaError(f"its schema is {found.kind}, not AVRO")
        try:
            check_fit(columns, parsed_avro(found.text, found.references))
        except (ValueError, SchemaError) as error:
            raise SchemaError(f"schema id {found.id}: {error}") from None
        return found

    def encode(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        """See `RowEncoder.encode`."""
        values, schema, header = list[bytes](), self._schema, self._header
        try:
            for row in _records(rows):
                buffer = BytesIO()
                buffer.write(header)
                schemaless_writer(buffer, schema, row)
                values.append(buffer.getvalue())
        except Exception as error:  # whatever fastavro raises for a value
            if rows.num_rows == 1:
                raise RowRefused(0, format_error(error)) from error
            return self._one_by_one(rows)
        return pa.array(values, pa.binary())

    def _one_by_one(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        """For a batch with a row that cannot be encoded, or is no Python object, as a time after the year 9999."""
        values = []
        for number in range(rows.num_rows):
            try:
                values.append(self.encode(rows.slice(number, 1)))
            except RowRefused as refused:
                raise RowRefused(number, str(refused)) from None
        return pa.concat_arrays(values)

    async def close(self) -> None:
        """See `RowEncoder.close`."""
        await self._registry.close()


def _parsed(schema: RegistrySchema) -> Any:
    """The schema as fastavro takes it."""
    named: dict[str, Any] = {}
    try:
        for reference in schema.references.values():
            parse_schema(json.loads(reference), named_schemas=named)
        return parse_schema(json.loads(schema.text), named_schemas=named)
    except Exception as error:  # noqa: BLE001  # whatever it raises for a schema of somebody else
        raise SinkRefused(f"schema id {schema.id}: {format_error(error)}") from None


def _records(rows: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows as fastavro takes them."""
    names = rows.schema.names
    columns = [_items(column) for column in rows.columns]
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def _items(column: pa.Array) -> list[Any]:
    values, form = column.to_pylist(), _form(column.type)
    return values if form is None else [None if value is None else form(value) for value in values]


def _form(kind: pa.DataType) -> Form | None:
    """A function from a value of `to_pylist` to one for fastavro. None: no change."""
    if pt.is_timestamp(kind) and kind.tz is None:
        return lambda value: value.replace(tzinfo=UTC)  # fastavro would take it as a time of this machine's zone
    if pt.is_list(kind):
        return None if (form := _form(kind.value_type)) is None else _of_list(form)
    if pt.is_struct(kind):
        forms = {field.name: form for field in kind if (form := _form(field.type)) is not None}
        return _of_struct(forms) if forms else None
    return _of_map(kind) if pt.is_map(kind) else None


def _of_list(form: Form) -> Form:
    return lambda values: [None if value is None else form(value) for value in values]


def _of_struct(forms: dict[str, Form]) -> Form:
    return lambda row: row | {name: form(row[name]) for name, form in forms.items() if row[name] is not None}


def _of_map(kind: pa.MapType) -> Form:
    key_form, item_form = _form(kind.key_type) or _same, _form(kind.item_type) or _same
    make = dict if pt.is_string(kind.key_type) else _pairs

    def of_map(pairs: list[tuple[Any, Any]]) -> Any:
        return make((key_form(key), None if item is None else item_form(item)) for key, item in pairs)

    return of_map


def _pairs(pairs: Iterator[tuple[Any, Any]]) -> list[dict[str, Any]]:
    return [{"key": key, "value": item} for key, item in pairs]


def _same(value: Any) -> Any:
    return value

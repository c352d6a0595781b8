"""The Avro schema of rows, and whether columns fit a schema that somebody else wrote."""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from actorproc.errors import SchemaError
from actorproc.formats.avro.schema import NO_DEFAULT, AvroType

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_PLAIN: dict[pa.DataType, Any] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.timestamp("us", "UTC"): {"type": "long", "logicalType": "timestamp-micros"},
    pa.timestamp("us"): {"type": "long", "logicalType": "local-timestamp-micros"},
}
_FITS: dict[pa.DataType, tuple[str, ...]] = {
    pa.bool_(): ("boolean",),
    pa.int8(): ("int", "long", "float", "double"),
    pa.int16(): ("int", "long", "float", "double"),
    pa.int32(): ("int", "long", "double"),
    pa.int64(): ("long",),
    pa.float32(): ("float", "double"),
    pa.float64(): ("double",),
    pa.string(): ("string", "enum"),
    pa.binary(): ("bytes", "fixed"),
}
"""Types that hold every value of a column: a double does not hold all longs."""


def name_from(text: str) -> str:
    """A name of Avro that resembles the text."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", text)
    return name if _NAME.fullmatch(name) else f"_{name}"


def schema_of_rows(columns: pa.Schema, name: str) -> str:
    """The Avro schema of a record with these columns, as JSON.

    What may be null is a union with null, with the default null: so a column can be added under the registry's usual
    compatibility (BACKWARD).

    Raises:
        SchemaError: a column has a name that Avro does not allow.
    """
    return json.dumps(_record(list(columns), name, ""))


def check_fit(columns: pa.Schema, kind: AvroType) -> None:
    """Check that rows with these columns can be written with the schema, and lose nothing.

    Raises:
        SchemaError: names the first column or field that does not fit.
    """
    _check_fields(list(columns), kind, "")


def _record(fields: list[pa.Field], name: str, within: str) -> dict[str, Any]:
    declared = []
    for field in fields:
        path = within + field.name
        if not _NAME.fullmatch(field.name):
            raise SchemaError(
                f"column {path!r}: a name in Avro has only letters, digits and _, and does not begin with a digit; "
                "choose the columns of the sink with the option columns"
            )
        kind = _type(field.type, f"{name}.{field.name}", path)
        declared.append(
            {"name": field.name, "type": ["null", kind], "default": None}
            if field.nullable
            else {"name": field.name, "type": kind}
        )
    return {"type": "record", "name": name, "fields": declared}


def _type(kind: pa.DataType, name: str, path: str) -> Any:
    if kind in _PLAIN:
        return _PLAIN[kind]
    if pt.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pt.is_struct(kind):
        return _record(list(kind), name, f"{path}.")
    if pt.is_list(kind):
        return {"type": "array", "items": ["null", _type(kind.value_type, name, path)]}
    if not pt.is_map(kind):
        raise SchemaError(f"column {path!r} is {kind}, which Avro does not have")
    if pt.is_string(kind.key_type):
        return {"type": "map", "values": ["null", _type(kind.item_type, name, path)]}
    pair = [pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type)]
    return {"type": "array", "items": _record(pair, name, f"{path}.")}


def _check_fields(fields: list[pa.Field], kind: AvroType, within: str) -> None:
    if kind.kind != "record":
        raise SchemaError(f"the schema is {kind}, not a record" if not within else f"{within[:-1]} is no record there")
    declared = {field.name: field for field in kind.fields}
    for field in fields:
        if field.name not in declared:
            raise SchemaError(f"it has no field {within + field.name}; choose the columns of the sink with `columns`")
        path = within + field.name
        if not _fits(field.type, declared[field.name].type, path):
            raise SchemaError(
                f"the column {path} is {field.type}, the field is {_described(declared[field.name].type)}"
            )
    given = {field.name for field in fields}
    for name, wanted in declared.items():
        if name not in given and wanted.default is NO_DEFAULT:
            raise SchemaError(f"the rows have no column {within + name}, and the field has no default")


def _fits(kind: pa.DataType, field: AvroType, path: str) -> bool:
    if field.kind == "union":
        return any(_fits(kind, branch, path) for branch in field.branches if branch.kind != "null")
    if pt.is_timestamp(kind):
        return field.logical is not None and "timestamp" in field.logical
    if pt.is_date(kind):
        return field.logical == "date"
    if pt.is_decimal(kind):
        whole = field.precision - field.scale >= kind.precision - kind.scale
        return field.logical == "decimal" and whole and field.scale >= kind.scale
    if pt.is_struct(kind):
        if field.kind == "record":
            _check_fields(list(kind), field, f"{path}.")
        return field.kind == "record"
    if pt.is_list(kind):
        return field.kind == "array" and field.inner is not None and _fits(kind.value_type, field.inner, path)
    if pt.is_map(kind):
        strings = pt.is_string(kind.key_type)
        return strings and field.kind == "map" and field.inner is not None and _fits(kind.item_type, field.inner, path)
    return field.logical is None and field.kind in _FITS.get(kind, ())


def _described(kind: AvroType) -> str:
    if kind.kind == "union":
        return " or ".join(map(_described, kind.branches))
    return kind.logical or str(kind)

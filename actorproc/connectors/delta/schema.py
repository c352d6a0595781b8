"""The columns of an output as a Delta schema."""

from __future__ import annotations

from typing import Any

import orjson
import pyarrow as pa
import pyarrow.types as pt

from actorproc.sinks.protocol import SinkRefused

PARTITION = "partition"
"""The partition column: its values are in the log only, as Delta has it, and in the names of the folders."""

_NOT_IN_NAMES = frozenset(" ,;{}()\n\t=")
"""Characters that Delta allows in names with column mapping only, which few writers have."""

_TYPES = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}

Field = dict[str, Any]


def delta_fields(schema: pa.Schema) -> list[Field]:
    """The columns of a table with these rows: theirs, and the partition.

    Raises:
        SinkRefused: Delta has no such column. Names it.
    """
    return [*(_field(field, field.name) for field in schema), _described(PARTITION, "string")]


def merged(known: list[Field], wanted: list[Field]) -> list[Field]:
    """The columns of a table that has to take rows with `wanted`: its own, and those that it lacks, nullable.

    Raises:
        SinkRefused: a column has another type.
    """
    by_name = {field["name"].lower(): field for field in known}
    for field in wanted:
        there = by_name.get(field["name"].lower())
        if there is not None and (there["name"], _type_of(there)) != (field["name"], _type_of(field)):
            raise SinkRefused(
                f"the Delta table has column {there['name']!r} as {_text(there['type'])}, and the output has "
                f"{field['name']!r} as {_text(field['type'])}"
            )
    return known + [{**field, "nullable": True} for field in wanted if field["name"].lower() not in by_name]


def needs_feature(fields: list[Field]) -> bool:
    """Whether a column is a timestamp without zone, which is a feature of its own in Delta."""
    return "timestamp_ntz" in orjson.dumps(fields).decode()


def _field(field: pa.Field, path: str) -> Field:
    if wrong := sorted(_NOT_IN_NAMES & set(field.name)):
        raise SinkRefused(f"column {path!r}: a Delta table cannot have {wrong[0]!r} in the name of a column")
    return _described(field.name, _type(field.type, path), nullable=field.nullable)


def _described(name: str, kind: Any, *, nullable: bool = True) -> Field:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": {}}


def _type(kind: pa.DataType, path: str) -> Any:
    if kind in _TYPES:
        return _TYPES[kind]
    if pt.is_decimal(kind) and kind.precision <= 38:
        return f"decimal({kind.precision},{kind.scale})"
    if pt.is_struct(kind) and kind.num_fields:
        return {"type": "struct", "fields": [_field(part, f"{path}.{part.name}") for part in kind]}
    if pt.is_list(kind):
        element = _type(kind.value_type, f"{path}.element")
        return {"type": "array", "elementType": element, "containsNull": kind.value_field.nullable}
    if pt.is_map(kind):
        key, value = _type(kind.key_type, f"{path}.key"), _type(kind.item_type, f"{path}.value")
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": kind.item_field.nullable}
    raise SinkRefused(f"column {path!r} is {kind}: Delta has no such type")


def _type_of(field: Field) -> Any:
    """The type without what does not matter: comments, and whether parts may be null."""

    def bare(kind: Any) -> Any:
        if not isinstance(kind, dict):
            return kind
        if kind.get("type") == "struct":
            return "struct", [(part["name"], bare(part["type"])) for part in kind["fields"]]
        return kind["type"], [bare(kind[name]) for name in ("elementType", "keyType", "valueType") if name in kind]

    return bare(field["type"])


def _text(kind: Any) -> str:
    return kind if isinstance(kind, str) else orjson.dumps(kind).decode()

"""Output schemas: which columns a handler may declare, and how a schema may change."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.types as pt

from actorproc.errors import SchemaError
from actorproc.records import SEQUENCE
from actorproc.rows.ddl import COMMENT, parse_ddl, type_ddl
from actorproc.rows.type_schema import columns_of_type

RESERVED = ("_sequence", "_partition")
"""Prefixes that columns cannot have: actorproc and its readers add such columns."""

PARTITION_COLUMN = "partition"
"""Spark takes this column from the folder name `partition=<p>`, and ignores one of that name in the file."""

_KEPT = frozenset(
    {
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
        pa.date32(),
    }
)  # fmt: skip
_REPLACED = {  # by types that Spark reads without loss
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}


def parse_schema(declared: str | pa.Schema | type | None) -> pa.Schema:
    """The columns that a handler declares, as Spark maps them to Arrow; None and "" declare no columns.

    Args:
        declared: Spark DDL ("carrier string, minutes double NOT NULL"); a pyarrow schema, in which types that Spark
            does not read are replaced (large strings, dictionaries, unsigned integers, timestamps not in microseconds);
            or a class (see `columns_of_type`).

    Raises:
        SchemaError: it does not parse, or a column cannot be stored. Names the column or position, and allowed types.
    """
    if declared is None:
        fields = []
    elif isinstance(declared, str):
        fields = parse_ddl(declared)
    elif isinstance(declared, type):
        fields = columns_of_type(declared)
    elif isinstance(declared, pa.Schema):
        fields = [_normal_field(field, field.name) for field in declared]
    else:
        raise SchemaError(
            f"output_schema is {declared!r}; give Spark DDL such as 'carrier string', a pyarrow schema, or a class"
        )
    for field in fields:
        name = field.name.lower()
        if name.startswith(RESERVED):
            raise SchemaError(f"column {field.name!r}: names that start with {' or '.join(RESERVED)} are reserved")
        if name == PARTITION_COLUMN:
            raise SchemaError(
                f"column {field.name!r}: readers get 'partition' from the output's folders; choose another name"
            )
    _check_names(fields, "")
    return pa.schema(fields)


def output_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of output files: the declared columns, then `_sequence`."""
    return schema.append(SEQUENCE)


def nullable(field: pa.Field) -> pa.Field:
    """The field and all its parts as nullable, like the columns of Spark's own Parquet reader."""
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([nullable(part) for part in kind])
    elif pa.types.is_list(kind):
        kind = pa.list_(nullable(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(nullable(kind.key_field).type, nullable(kind.item_field).type)
    return pa.field(field.name, kind, True, field.metadata)


def check_change(old: pa.Schema, new: pa.Schema) -> None:
    """Check that `new` may follow `old` in one dataset. Only nullable columns may be added; comments may change.

    Raises:
        SchemaError: names each column, its old and new type, and the alternatives.
    """
    wrong = [f"column {field.name!r}, {_describe(field)}, is gone" for field in old if field.name not in new.names]
    wrong += [
        f"column {field.name!r} was {_describe(field)}, is now {_describe(now)}"
        for field in old
        if field.name in new.names and not field.equals(now := new.field(field.name))
    ]
    if len(old):  # else no row was ever written
        wrong += [
            f"column {field.name!r} is new and NOT NULL, but stored rows have nothing in it"
            for field in new
            if field.name not in old.names and not field.nullable
        ]
    kept = [name for name in new.names if name in old.names]
    if not wrong and kept != old.names:
        wrong.append(f"the columns {', '.join(old.names)} now come in the order {', '.join(kept)}")
    if wrong:
        raise SchemaError(
            f"output_schema does not go with the stored output: {'; '.join(wrong)}. Ways out: leave stored columns as "
            "they are and add nullable ones under new names; or use a new processor name, which starts a new output"
        )


def _describe(field: pa.Field) -> str:
    return type_ddl(field.type) + ("" if field.nullable else " NOT NULL")


def _check_names(fields: Iterable[pa.Field], within: str) -> None:
    seen: dict[str, str] = {}
    for field in fields:
        path = within + field.name
        if not field.name:
            raise SchemaError(f"a column{f' in {within[:-1]!r}' if within else ''} has no name")
        if (other := seen.get(field.name.lower())) is not None:
            raise SchemaError(
                f"columns {other!r} and {path!r}: names must differ in more than case, which Spark ignores"
            )
        seen[field.name.lower()] = path
        for part, nested in _children(field.type, path):
            _check_names(part, nested)


def _children(kind: pa.DataType, path: str) -> list[tuple[list[pa.Field], str]]:
    """The nearest structs in a type: fields and path of each."""
    if pt.is_struct(kind):
        return [(list(kind), path + ".")]
    inner = [kind.key_type, kind.item_type] if pt.is_map(kind) else [kind.value_type] if pt.is_list(kind) else []
    return [child for each in inner for child in _children(each, path)]


def _normal_field(field: pa.Field, path: str) -> pa.Field:
    comment = (field.metadata or {}).get(COMMENT)
    metadata = {COMMENT: comment} if comment else None
    return pa.field(field.name, _normal(field.type, path), field.nullable, metadata)


def _normal(kind: pa.DataType, path: str) -> pa.DataType:
    """The type that replaces `kind`, so that Spark can read it."""
    if kind in _KEPT:
        return kind
    if kind in _REPLACED:
        return _REPLACED[kind]
    if pt.is_fixed_size_binary(kind):
        return pa.binary()
    if pt.is_dictionary(kind):
        return _normal(kind.value_type, path)
    if pt.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pt.is_decimal(kind) and kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
        return pa.decimal128(kind.precision, kind.scale)
    if pt.is_struct(kind) and kind.num_fields:
        return pa.struct([_normal_field(field, f"{path}.{field.name}") for field in kind])
    if pt.is_map(kind) and kind.item_field.nullable:
        return pa.map_(_normal(kind.key_type, path), _normal(kind.item_type, path))
    if _is_list(kind) and kind.value_field.nullable:
        return pa.list_(pa.field("element", _normal(kind.value_type, path)))
    if _is_list(kind) or pt.is_map(kind):
        raise SchemaError(f"column {path!r} is {kind}: make its elements nullable; Spark's DDL cannot say otherwise")
    raise SchemaError(f"column {path!r} is {kind}, which Spark does not read from Parquet; use another type")


def _is_list(kind: pa.DataType) -> bool:
    lists = (pt.is_list, pt.is_large_list, pt.is_fixed_size_list, pt.is_list_view, pt.is_large_list_view)
    return any(is_list(kind) for is_list in lists)

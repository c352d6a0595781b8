"""`RowColumns`: columns from values that a library decodes one by one into Python objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from actorproc.errors import DecodeError
from actorproc.handler.decoder import Columns, Parsed, Values
from actorproc.rows.casting import short_repr
from actorproc.rows.encoder import RowEncoder


class RowColumns(Columns):
    """Encodes the fields that the schema names, as `ctx.emit` does."""

    def __init__(self, values: Values[Any], schema: pa.Schema) -> None:
        self._values = values
        self._encoder = RowEncoder(schema)
        self._fields = [(field.name, _selection(field.type)) for field in schema]

    def parse(self, values: pa.Array, sequences: pa.Int64Array) -> Parsed:
        rows: list[dict[str, Any]] = []
        parsed: list[int] = []
        errors: dict[int, Exception] = {}
        for value, sequence in zip(values.to_pylist(), sequences.to_pylist(), strict=True):
            try:
                row = self._values.parse(value)
                if not isinstance(row, dict):
                    raise DecodeError(f"the value is {short_repr(row)}, which has no fields")
            except ValueError as error:
                errors[sequence] = error
                continue
            rows.append(row)
            parsed.append(sequence)
        columns = [[select(row.get(name)) for row in rows] for name, select in self._fields]
        batch, misfits = self._encoder.encode_columns(columns, parsed)
        return pa.Table.from_batches([batch]), {**errors, **misfits}


def _selection(kind: pa.DataType) -> Callable[[Any], Any]:
    """A function that leaves out the fields of structs that `kind` does not name."""
    if pt.is_struct(kind):
        fields = [(field.name, _selection(field.type)) for field in kind]
        return lambda v: {name: select(v.get(name)) for name, select in fields} if isinstance(v, dict) else v
    if pt.is_list(kind) and _has_struct(kind):
        element = _selection(kind.value_type)
        return lambda v: [element(each) for each in v] if isinstance(v, list) else v
    if pt.is_map(kind) and _has_struct(kind):
        item = _selection(kind.item_type)
        return lambda v: {key: item(each) for key, each in v.items()} if isinstance(v, dict) else v
    return _same


def _has_struct(kind: pa.DataType) -> bool:
    return any(pt.is_struct(kind.field(at).type) or _has_struct(kind.field(at).type) for at in range(kind.num_fields))


def _same(value: Any) -> Any:
    return value

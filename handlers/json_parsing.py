"""JSON objects to typed columns: all at once through Arrow's parser, one by one where that is refused.

What a record gives never depends on the records beside it: it is a row if Arrow's parser takes its value alone, or else
if orjson does and every column fits; whichever takes it, the row is the same.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.types as pt

from actorproc.errors import RowMismatch, SchemaError
from actorproc.handlers.json_lines import join_lines
from actorproc.records import SEQUENCE
from actorproc.rows.casting import cast_columns, short_repr
from actorproc.rows.ddl import type_ddl
from actorproc.rows.encoder import RowEncoder
from actorproc.rows.schema import output_schema

Pick = Callable[[Any], Any]

_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_LONG = re.compile(rb"[0-9.]{17}|[0-9][eE]")
"""A number that a double may not hold as it is written: of 16 digits or more, or with an exponent."""

_MINUS_ZERO = re.compile(rb"[:\[,]\s*-0\s*[,}\]]")
_INFINITY = re.compile(rb"([:\[,]\s*)-?Inf(?:inity)?")
"""As Arrow takes it for a number; within a text it may be anything."""

_HINTS = {
    pa.timestamp("us", "UTC"): "ISO 8601 with a zone is read (2013-01-01T05:00:00Z); without one declare timestamp_ntz",
    pa.timestamp("us"): "ISO 8601 without a zone is read (2013-01-01T05:00:00); with one declare timestamp",
    pa.date32(): "YYYY-MM-DD is read",
}


class JsonParser:
    """Reads JSON objects into the columns of a schema; fields that it does not name are passed over.

    Numbers go into numeric columns, strings into string, timestamp, date (ISO 8601) and decimal, objects into struct and
    map, and null or nothing into nullable columns. An integer column takes 1.0 but not 1.5, nothing is cut or guessed.

    Raises:
        SchemaError: a column's type has no counterpart in JSON.
    """

    def __init__(self, schema: pa.Schema) -> None:
        for field in schema:
            _check(field.type, field.name)
        self._schema = output_schema(schema)
        read = pa.schema([pa.field(field.name, _as_read(field.type)) for field in schema])
        self.at_once = all(_arrow_reads(field.type) for field in read)
        """All values are parsed in one go, unless one is against it."""
        self._options = pyarrow.json.ParseOptions(explicit_schema=read, unexpected_field_behavior="ignore")
        self._encoder = RowEncoder(read)
        self._pick = _picker(pa.struct(list(read)))
        exact = any(_contains_decimal(field.type) for field in read)
        self._loads = _loads_exactly if exact else _loads
        self._is_rounded = _finder(pa.struct(list(read))) if not exact else None

    def parse(self, values: pa.Array, sequences: pa.Int64Array) -> tuple[pa.Table, dict[int, Exception]]:
        """Rows of the values that fit, and why the others do not.

        Args:
            values: binary, one JSON object each.
            sequences: int64, what names each value.

        Returns:
            A table of the schema's columns and `_sequence`, and errors by sequence: a RowMismatch, or ValueError: it is no JSON object.
        """
        table = self._parse_at_once(values, sequences)
        errors: dict[int, Exception] = {}
        if table is None:
            table, errors = self._parse_each(values, sequences)
        fitting, unfit = cast_columns(table, self._schema)
        for index, (column, value, why) in unfit.items():
            if why.startswith("Failed to parse"):
                why = _HINTS.get(self._schema.field(column).type, why)  # noqa: PLW2901
            errors[table.column(SEQUENCE.name)[index].as_py()] = RowMismatch(column, f"{value} does not fit: {why}")
        return fitting, errors

    def _parse_at_once(self, values: pa.Array, sequences: pa.Int64Array) -> pa.Table | None:
        """All values in one go; None if one of them is against it."""
        if not self.at_once:
            return None
        joined = join_lines(values) or join_lines(_trimmed(values))
        if joined is None:
            return None
        try:
            table = self._read(joined)
            if _holds_infinity(table):
                # Arrow makes infinity of numbers just beyond all doubles, too; only what is far beyond it refuses.
                without = _INFINITY.sub(rb"\1null", joined.to_pybytes())
                table = table if not _holds_infinity(self._read(pa.py_buffer(without))) else None
        except pa.ArrowException:
            return None
        # Each line gave at least one row, so as many rows as lines means one of each.
        return table.append_column(SEQUENCE, sequences) if table is not None and table.num_rows == len(values) else None

    def _read(self, lines: pa.Buffer) -> pa.Table:
        return pyarrow.json.read_json(
            pa.BufferReader(lines),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=lines.size + 1),
            parse_options=self._options,
        )

    def _parse_each(self, values: pa.Array, sequences: pa.Int64Array) -> tuple[pa.Table, dict[int, Exception]]:
        rows, kept = [], []
        errors: dict[int, Exception] = {}
        for value, sequence in zip(values.to_pylist(), sequences.to_pylist(), strict=True):
            try:
                document = self._loads(value) if value is not None else None
                if self._is_rounded is not None and self._is_rounded(document) and _LONG.search(value):
                    document = _loads_exactly(value)
            except ArithmeticError:
                errors[sequence] = ValueError(
                    "the value is no JSON that can be read: a number in it has an exponent beyond all bounds"
                )
                continue
            except (ValueError, RecursionError) as error:
                errors[sequence] = ValueError(f"the value is no JSON: {error}")
                continue
            if isinstance(document, dict):
                rows.append(self._pick(document))
                kept.append(sequence)
            else:
                what = "none (a tombstone)" if value is None else short_repr(document)
                errors[sequence] = ValueError(f"the value is {what}, not a JSON object")
        batch, misfits = self._encoder.encode(rows, kept)
        errors |= {sequence: self._in_json(misfit) for sequence, misfit in misfits.items()}
        tables = [pa.Table.from_batches([batch])]
        if self.at_once and errors:
            refused = pc.is_in(sequences, pa.array(list(errors), pa.int64()))
            again = pc.and_(refused, pc.starts_with(_trimmed(values), "{"))
            for table in self._search(values.filter(again), sequences.filter(again)):
                tables.append(table)
                for sequence in table.column(SEQUENCE.name).to_pylist():
                    del errors[sequence]
        return pa.concat_tables(tables), errors

    def _in_json(self, misfit: RowMismatch) -> RowMismatch:
        """The encoder's advice is for Python's types, which JSON has not."""
        index = self._schema.get_field_index(misfit.column)
        hint = _HINTS.get(self._schema.field(index).type) if index >= 0 else None
        if hint is None and index >= 0 and pt.is_decimal(self._schema.field(index).type):
            hint = 'a number is read, or one as text ("1.25")'
        what, _, _ = str(misfit).removeprefix(f"column {misfit.column!r}: ").partition("; give ")
        return RowMismatch(misfit.column, what if hint is None else f"{what}; {hint}")

    def _search(self, values: pa.Array, sequences: pa.Int64Array) -> list[pa.Table]:
        """What Arrow's parser takes: halves until what it refuses stands alone."""
        table = self._parse_at_once(values, sequences)
        if table is not None:
            return [table]
        half = len(values) // 2
        if not half:
            return []
        return self._search(values[:half], sequences[:half]) + self._search(values[half:], sequences[half:])


def _holds_infinity(table: pa.Table) -> bool:
    return any(map(_is_somewhere_infinite, table.columns))


def _is_somewhere_infinite(column: pa.ChunkedArray) -> bool:
    if pt.is_struct(column.type):
        return any(map(_is_somewhere_infinite, column.flatten()))
    if pt.is_list(column.type):
        return _is_somewhere_infinite(pc.list_flatten(column))
    return bool(pt.is_floating(column.type) and pc.any(pc.is_inf(column)).as_py())


def _trimmed(values: pa.Array) -> pa.Array:
    """Without the white space that JSON allows around a value."""
    return pc.ascii_trim(values.view(pa.string()), " \t\r\n").view(pa.binary())


def _check(kind: pa.DataType, path: str) -> None:
    if pt.is_binary(kind):
        raise SchemaError(f"column {path!r} is binary, which JSON has not: declare it string, or write a handler")
    if pt.is_map(kind):
        if not pt.is_string(kind.key_type):
            raise SchemaError(
                f"column {path!r} is a map by {type_ddl(kind.key_type)}: keys of JSON objects are strings; "
                f"declare map<string, {type_ddl(kind.item_type)}>"
            )
        _check(kind.item_type, path)
    elif pt.is_list(kind):
        _check(kind.value_type, path)
    elif pt.is_struct(kind):
        for field in kind:
            _check(field.type, f"{path}.{field.name}")


def _as_read(kind: pa.DataType) -> pa.DataType:
    """The type that is parsed first, and then cast. Nulls are looked for at the end.

    Arrow's JSON parser guesses a missing zone, takes numbers for dates, and rounds straight to float, unlike orjson.
    """
    if pt.is_timestamp(kind) or pt.is_date(kind):
        return pa.string()
    if pt.is_float32(kind):
        return pa.float64()
    if pt.is_map(kind):
        return pa.map_(kind.key_type, _as_read(kind.item_type))
    if pt.is_list(kind):
        return pa.list_(pa.field("element", _as_read(kind.value_type)))
    if pt.is_struct(kind):
        return pa.struct([pa.field(field.name, _as_read(field.type)) for field in kind])
    return kind


def _arrow_reads(kind: pa.DataType) -> bool:
    """Does Arrow's JSON parser read this type, and rightly? (Not decimals: 1000 fits its decimal(5,2), and 1e-42 is 0.)"""
    if pt.is_list(kind):
        return _arrow_reads(kind.value_type)
    if pt.is_struct(kind):
        return all(_arrow_reads(field.type) for field in kind)
    return not pt.is_map(kind) and not pt.is_decimal(kind)


def _contains_decimal(kind: pa.DataType) -> bool:
    if pt.is_struct(kind):
        return any(_contains_decimal(field.type) for field in kind)
    if pt.is_map(kind):
        return _contains_decimal(kind.item_type)
    return _contains_decimal(kind.value_type) if pt.is_list(kind) else bool(pt.is_decimal(kind))


def _finder(kind: pa.DataType) -> Callable[[Any], bool] | None:
    """A test whether orjson made a float of what may be an integer: then it may be another one by now. None: there is none in
    `kind`."""
    if pt.is_struct(kind):
        found = [(field.name, _finder(field.type)) for field in kind]
        fields = [(name, test) for name, test in found if test is not None]
        return (lambda v: isinstance(v, dict) and any(test(v.get(name)) for name, test in fields)) if fields else None
    if pt.is_map(kind):
        item = _finder(kind.item_type)
        return item and (lambda v: isinstance(v, dict) and any(map(item, v.values())))
    if pt.is_list(kind):
        element = _finder(kind.value_type)
        return element and (lambda v: isinstance(v, list) and any(map(element, v)))
    return (lambda v: type(v) is float and v.is_integer()) if pt.is_integer(kind) else None


def _loads(value: bytes) -> Any:
    """As orjson, but -0 keeps its sign, as it does with Arrow."""
    document = orjson.loads(value)
    if _MINUS_ZERO.search(value) is None:
        return document
    return json.loads(value.decode(), parse_int=lambda text: -0.0 if text == "-0" else int(text))


def _loads_exactly(value: bytes) -> Any:
    """Like orjson, but with fractions, and the sign of zero, as they are written."""
    return json.loads(
        value.decode(),
        parse_float=Decimal,
        parse_int=lambda text: Decimal(text) if text == "-0" else int(text),
        parse_constant=_no_constant,
    )


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _picker(kind: pa.DataType) -> Pick:
    """A function from parsed JSON to what `RowEncoder` takes for `kind`: named fields only, numbers as doubles for doubles.

    It leaves alone what does not fit, so that the encoder says why.
    """
    if pt.is_struct(kind):
        fields = [(field.name, _picker(field.type)) for field in kind]
        return lambda v: {name: pick(v.get(name)) for name, pick in fields} if isinstance(v, dict) else v
    if pt.is_map(kind):
        item = _picker(kind.item_type)
        return lambda v: {key: item(each) for key, each in v.items()} if isinstance(v, dict) else v
    if pt.is_list(kind):
        element = _picker(kind.value_type)
        return lambda v: [element(each) for each in v] if isinstance(v, list) else v
    if pt.is_decimal(kind):
        return _as_decimal
    return _as_double if pt.is_floating(kind) else lambda v: v


def _as_double(value: Any) -> Any:
    """In JSON every number is decimal text, so an integer beyond 2^53 is rounded as any fraction is."""
    if type(value) is not int and type(value) is not Decimal:
        return value
    try:
        number = float(value)
    except OverflowError:
        return value
    return number if math.isfinite(number) else value


def _as_decimal(value: Any) -> Any:
    """Decimals also come as strings, from those who do not trust every reader's numbers."""
    try:
        return Decimal(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
    except ArithmeticError:  # an exponent beyond any bounds
        return value

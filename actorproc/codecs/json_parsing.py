"""Parses JSON objects into the columns of a schema.

Python's `json` decides for each value whether it is a row. Arrow's parser is only a faster way for values that it takes
all at once: it takes fewer documents, and makes the same values of them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.types as pt

from actorproc.codecs.json_limits import deep_values, has_loose_numbers, too_deep
from actorproc.codecs.json_lines import join_lines
from actorproc.errors import RowMismatch, SchemaError
from actorproc.handler.decoder import Columns, Parsed
from actorproc.records import SEQUENCE
from actorproc.rows.casting import cast_columns, short_repr
from actorproc.rows.ddl import type_ddl
from actorproc.rows.encoder import RowEncoder
from actorproc.rows.output_schema import output_schema

Convert = Callable[[Any], Any]

_DIGITS = 1_000  # of an integer, from which on it is a Decimal
_BLOCK = 256  # values; smaller blocks save little and cost more calls of Arrow's parser
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)

_HINTS = {
    pa.timestamp("us", "UTC"): (
        "ISO 8601 with a zone and at most 6 decimals is read (2013-01-01T05:00:00.123456Z); without a zone declare "
        "timestamp_ntz"
    ),
    pa.timestamp("us"): (
        "ISO 8601 without a zone, with at most 6 decimals, is read (2013-01-01T05:00:00.123456); with a zone declare "
        "timestamp"
    ),
    pa.date32(): "YYYY-MM-DD is read",
}


class JsonParser(Columns):
    """Parses JSON objects into the columns of a schema; fields that the schema does not name are ignored.

    Numbers go into numeric columns, strings into string, timestamp, date (ISO 8601) and decimal, objects into struct
    and map, and null or a missing field into nullable columns. An integer column takes 1.0 but not 1.5; nothing is
    rounded or cut.

    Attributes:
        is_columnar: Arrow's parser can read all of the schema's types.

    Raises:
        SchemaError: a column's type has no counterpart in JSON.
    """

    def __init__(self, schema: pa.Schema) -> None:
        for field in schema:
            _check(field.type, field.name)
        self._schema = output_schema(schema)
        parsed = pa.schema([pa.field(field.name, _parsed_type(field.type)) for field in schema])
        self.is_columnar = all(_is_columnar(field.type) for field in parsed)
        self._options = pyarrow.json.ParseOptions(explicit_schema=parsed, unexpected_field_behavior="ignore")
        self._encoder = RowEncoder(parsed)
        self._convert = _converter(pa.struct(list(parsed)))

    def parse(self, values: pa.Array, sequences: pa.Int64Array) -> Parsed:
        """Rows of the values that fit, and the reasons why others do not.

        Args:
            values: binary, one JSON object each.
            sequences: int64, the sequence of each value's record.

        Returns:
            A table of the schema's columns and `_sequence`, and errors by sequence: a RowMismatch, or a ValueError if
            the value is not a JSON object.
        """
        errors: dict[int, Exception] = {}
        if deep := deep_values(values):
            errors.update({sequences[index].as_py(): too_deep() for index in deep})
            rest = np.delete(np.arange(len(values)), deep)
            values, sequences = values.take(pa.array(rest)), sequences.take(pa.array(rest))
        table = pa.concat_tables(self._parse_blocks(values, sequences, errors))
        fitting, unfit = cast_columns(table, self._schema)
        for index, (column, value, why) in unfit.items():
            reason = _HINTS.get(self._schema.field(column).type, why) if why.startswith("Failed to parse") else why
            errors[table.column(SEQUENCE.name)[index].as_py()] = RowMismatch(column, f"{value} does not fit: {reason}")
        return fitting, errors

    def _parse_blocks(self, values: pa.Array, sequences: pa.Int64Array, errors: dict[int, Exception]) -> list[pa.Table]:
        """Rows of the values, parsed one by one only in small blocks around those that Arrow's parser does not take."""
        if self.is_columnar and (table := self._parse_columns(values, sequences)) is not None:
            return [table]
        if not self.is_columnar or len(values) <= _BLOCK:
            return [self._parse_each(values, sequences, errors)]
        half = len(values) // 2
        first = self._parse_blocks(values[:half], sequences[:half], errors)
        return first + self._parse_blocks(values[half:], sequences[half:], errors)

    def _parse_columns(self, values: pa.Array, sequences: pa.Int64Array) -> pa.Table | None:
        """All values in one go, or None if Arrow's parser does not take all of them."""
        lines = join_lines(values) or join_lines(_trimmed(values))
        if lines is None or has_loose_numbers(lines):
            return None
        try:
            table = pyarrow.json.read_json(
                pa.BufferReader(lines),
                read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=lines.size + 1),
                parse_options=self._options,
            )
        except pa.ArrowException:
            return None
        # Arrow rounds numbers just beyond the largest double to infinity, which Python's `json` decides about.
        if table.num_rows != len(values) or any(map(_contains_infinity, table.columns)):
            return None
        # Each line made at least one row, so as many rows as lines means one of each.
        return table.append_column(SEQUENCE, sequences)

    def _parse_each(self, values: pa.Array, sequences: pa.Int64Array, errors: dict[int, Exception]) -> pa.Table:
        rows, parsed = [], []
        for value, sequence in zip(values.to_pylist(), sequences.to_pylist(), strict=True):
            try:
                rows.append(self._convert(_load_object(value)))
                parsed.append(sequence)
            except ValueError as error:
                errors[sequence] = error
        batch, misfits = self._encoder.encode(rows, parsed)
        errors.update({sequence: self._with_json_hint(misfit) for sequence, misfit in misfits.items()})
        return pa.Table.from_batches([batch])

    def _with_json_hint(self, misfit: RowMismatch) -> RowMismatch:
        """The misfit without the encoder's advice, which is about Python types."""
        reason = (
            str(misfit)
            .removeprefix(f"column {misfit.column!r}: ")
            .partition("; give ")[0]
            .replace("(Decimal)", "(number)")
        )
        kind = self._schema.field(misfit.column).type
        hint = 'a number is read, or one as text ("1.25")' if pt.is_decimal(kind) else _HINTS.get(kind)
        return RowMismatch(misfit.column, reason if hint is None else f"{reason}; {hint}")


def _load_object(value: bytes | None) -> dict[str, Any]:
    """The JSON object in a value, with exact numbers.

    Raises:
        ValueError: the value is not a JSON object.
    """
    if value is None:
        raise ValueError("the value is null (a tombstone), not a JSON object")
    try:
        document = _DECODER.decode(value.decode())
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"the value is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ValueError(f"the value is {short_repr(document)}, not a JSON object")  # noqa: TRY004
    return document


def _exact_integer(text: str) -> int | Decimal:
    if text == "-0" or len(text) > _DIGITS:  # an int has no sign of zero, and Python limits its digits
        return Decimal(text)
    return int(text)


def _exact_fraction(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent beyond those of Decimal
        mantissa, _, exponent = text.lower().partition("e")
        digits = Decimal(mantissa)
        return (
            digits if not digits else Decimal((digits.is_signed(), (1,), MIN_EMIN if exponent[0] == "-" else MAX_EMAX))
        )


_DECODER = json.JSONDecoder(parse_float=_exact_fraction, parse_int=_exact_integer)


def _converter(kind: pa.DataType) -> Convert:
    """A function from parsed JSON to values that `RowEncoder` takes for `kind`. Other values stay unchanged."""
    if pt.is_struct(kind):
        fields = [(field.name, _converter(field.type)) for field in kind]
        return lambda v: {name: convert(v.get(name)) for name, convert in fields} if isinstance(v, dict) else v
    if pt.is_map(kind):
        item = _converter(kind.item_type)
        return lambda v: {key: item(each) for key, each in v.items()} if isinstance(v, dict) else v
    if pt.is_list(kind):
        element = _converter(kind.value_type)
        return lambda v: [element(each) for each in v] if isinstance(v, list) else v
    if pt.is_decimal(kind):
        return _to_decimal
    return _to_double if pt.is_floating(kind) else lambda v: v


def _to_double(value: Any) -> Any:
    """JSON numbers are decimal text, so an integer beyond 2^53 is rounded as any fraction is."""
    if type(value) is not int and type(value) is not Decimal:
        return value
    try:
        number = float(value)
    except OverflowError:
        return value
    return number if math.isfinite(number) else value


def _to_decimal(value: Any) -> Any:
    """Decimals also come as strings, since some JSON parsers round numbers."""
    try:
        return Decimal(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
    except ArithmeticError:  # an exponent beyond all bounds
        return value


def _check(kind: pa.DataType, path: str) -> None:
    if pt.is_binary(kind):
        raise SchemaError(f"column {path!r} is binary, which JSON does not have: declare it string, or write a handler")
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


def _parsed_type(kind: pa.DataType) -> pa.DataType:
    """The type that values are parsed into before they are cast to `kind`. NOT NULL is checked by the cast.

    Arrow's JSON parser guesses a missing zone, takes numbers for dates, and rounds floats in one step.
    """
    if pt.is_timestamp(kind) or pt.is_date(kind):
        return pa.string()
    if pt.is_float32(kind):
        return pa.float64()
    if pt.is_map(kind):
        return pa.map_(kind.key_type, _parsed_type(kind.item_type))
    if pt.is_list(kind):
        return pa.list_(pa.field("element", _parsed_type(kind.value_type)))
    if pt.is_struct(kind):
        return pa.struct([pa.field(field.name, _parsed_type(field.type)) for field in kind])
    return kind


def _is_columnar(kind: pa.DataType) -> bool:
    """Whether Arrow's JSON parser reads this type correctly. It reads 1000 as decimal(5,2), and 1e-42 as 0."""
    if pt.is_list(kind):
        return _is_columnar(kind.value_type)
    if pt.is_struct(kind):
        return all(_is_columnar(field.type) for field in kind)
    return not pt.is_map(kind) and not pt.is_decimal(kind)


def _contains_infinity(column: pa.ChunkedArray) -> bool:
    if pt.is_struct(column.type):
        return any(map(_contains_infinity, column.flatten()))
    if pt.is_list(column.type):
        return _contains_infinity(pc.list_flatten(column))
    return bool(pt.is_floating(column.type) and pc.any(pc.is_inf(column)).as_py())


def _trimmed(values: pa.Array) -> pa.Array:
    """The values without the white space that JSON allows around them."""
    return pc.ascii_trim(values.view(pa.string()), " \t\r\n").view(pa.binary())

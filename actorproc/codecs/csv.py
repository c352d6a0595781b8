"""Values that are a line of CSV each, with Arrow's parser."""

from __future__ import annotations

import re
from decimal import Context, Decimal, Inexact, InvalidOperation

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.types as pt

from actorproc.codecs.tables import TableDecoder
from actorproc.errors import DecodeError, SchemaError
from actorproc.rows.casting import cast, short_repr
from actorproc.rows.ddl import type_ddl

_BOM = b"\xef\xbb\xbf"
_DIGITS = 38
_EXACT = Context(prec=_DIGITS, traps=[Inexact, InvalidOperation])
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_HEXADECIMAL = re.compile(rb"0[xX]")


class CsvDecoder(TableDecoder):
    """Decodes lines with commas between fields and double quotes around those that contain one.

    An empty field, quoted or not, is null, unless its column is a string or binary. A value without a field is no row.

    Args:
        schema: names and types of the fields, in their order.

    Raises:
        SchemaError: a type is nested, which a field of CSV cannot be.
    """

    format = "CSV"

    def __init__(self, schema: pa.Schema) -> None:
        for field in schema:
            if pt.is_nested(field.type):
                raise SchemaError(f"field {field.name!r} is {type_ddl(field.type)}: a field of CSV has no parts")
        self._names = schema.names
        self._decimals = [(at, field) for at, field in enumerate(schema) if pt.is_decimal(field.type)]
        self._floats = [(at, field) for at, field in enumerate(schema) if pt.is_floating(field.type)]
        self._integers = [field.name for field in schema if pt.is_integer(field.type)]
        self._convert = _conversion({field.name: _parsed_as(field.type) for field in schema})

    def table(self, values: pa.Array) -> pa.Table:
        values = pc.ascii_rtrim(values.view(pa.string()), "\r\n").view(pa.binary())
        quotes = pc.count_substring(values.view(pa.string()), '"')
        if pc.any(pc.not_equal(pc.bit_wise_and(quotes, 1), 0)).as_py():  # Arrow takes the end for the missing quote
            raise DecodeError("a quote is not closed")
        several = pc.any(pc.match_substring_regex(values, "[\r\n]")).as_py()  # line ends, which quotes may contain
        if several and len(values) > 1:  # neighbours could be taken for one
            raise DecodeError("one by one")
        if len(self._names) > 1 and pc.any(pc.equal(pc.binary_length(values), 0)).as_py():
            raise DecodeError("the value is empty")
        lines = b"\n".join([*values.to_pylist(), b""])  # without the last line end Arrow reads an empty field wrongly
        if lines.startswith(_BOM):
            lines = _BOM + lines  # Arrow drops the first; a value must not depend on its place
        table = self._read(lines, self._convert, bool(several))
        if table.num_rows != len(values):
            raise DecodeError(f"the value has {table.num_rows} lines of CSV, not one")
        self._check_numbers(table, lines, bool(several))
        for at, field in self._decimals:
            table = table.set_column(at, field, _decimals(table.column(at), field.type))
        for at, field in self._floats:
            table = table.set_column(at, field, cast(table.column(at), field.type))
        return table

    def _read(self, lines: bytes, convert: pyarrow.csv.ConvertOptions, several: bool) -> pa.Table:
        return pyarrow.csv.read_csv(
            pa.BufferReader(lines),
            read_options=pyarrow.csv.ReadOptions(
                column_names=self._names, use_threads=False, block_size=len(lines) + 1
            ),
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=several, ignore_empty_lines=False),
            convert_options=convert,
        )

    def _check_numbers(self, table: pa.Table, lines: bytes, several: bool) -> None:
        """Arrow makes infinity of a number beyond all doubles, and -1 of the integer 0xFFFFFFFF."""
        odd = {field.name: "[0-9]" for at, field in self._floats if pc.any(pc.is_inf(table.column(at))).as_py()}
        if self._integers and _HEXADECIMAL.search(lines):
            odd |= dict.fromkeys(self._integers, "0[xX]")
        if not odd:
            return
        texts = self._read(lines, _conversion(dict.fromkeys(self._names, pa.string()), list(odd)), several)
        for name, sign in odd.items():
            column, written = table.column(name), texts.column(name)
            is_wrong = pc.match_substring_regex(written, sign)
            if pt.is_floating(column.type):
                is_wrong = pc.and_kleene(is_wrong, pc.is_inf(column))
            for text in written.filter(is_wrong).slice(0, 1).to_pylist():
                raise DecodeError(f"column {name!r}: {short_repr(text)} is out of range, or not a decimal number")


def _conversion(types: dict[str, pa.DataType], only: list[str] | None = None) -> pyarrow.csv.ConvertOptions:
    return pyarrow.csv.ConvertOptions(
        column_types=types,
        null_values=[""],
        strings_can_be_null=False,
        quoted_strings_can_be_null=True,  # Python's QUOTE_ALL writes None so; of strings the line above decides
        include_columns=only,
    )


def _parsed_as(kind: pa.DataType) -> pa.DataType:
    """Arrow's CSV reader does not notice that a decimal has too many digits, or that a float is out of range: the
    casts that follow do."""
    if pt.is_decimal(kind):
        return pa.string()
    return pa.float64() if pt.is_float32(kind) else kind


def _decimals(texts: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Exact decimals. Arrow reads text modulo 2^128, so those with many digits or an exponent are read by Python.

    Raises:
        ValueError: a text is no number, or does not fit.
    """
    texts = pc.ascii_trim_whitespace(texts)
    texts = pc.if_else(pc.equal(texts, ""), None, texts)
    is_hard = pc.match_substring_regex(texts, f"[eE]|^.{{{_DIGITS + 1},}}")
    easy = cast(pc.if_else(is_hard, None, texts).cast(pa.decimal256(2 * _DIGITS, kind.scale)), kind)
    if not pc.any(is_hard).as_py():
        return easy
    hard = [text if text is None else _exact(text, kind) for text in pc.if_else(is_hard, texts, None).to_pylist()]
    return pc.if_else(is_hard, pa.chunked_array([pa.array(hard, kind)]), easy)


def _exact(text: str, kind: pa.DataType) -> Decimal:
    try:
        if _NUMBER.fullmatch(text) is None:
            raise DecodeError(f"{short_repr(text)} is no number")
        return Decimal(text).quantize(Decimal((0, (1,), -kind.scale)), context=_EXACT)
    except ArithmeticError:
        raise DecodeError(f"{short_repr(text)} does not fit {type_ddl(kind)}") from None

"""Values that are a line of CSV each, with Arrow's parser."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.types as pt

from actorproc.codecs.tables import TableDecoder
from actorproc.errors import DecodeError, SchemaError
from actorproc.rows.ddl import type_ddl

_BOM = b"\xef\xbb\xbf"


class CsvDecoder(TableDecoder):
    """Decodes lines with commas between fields and double quotes around those that contain one.

    An empty field is null, unless its column is a string or binary. A value without a field is no row.

    Args:
        schema: names and types of the fields, in their order.

    Raises:
        SchemaError: a type is nested, which a field of CSV cannot be.
    """

    def __init__(self, schema: pa.Schema) -> None:
        for field in schema:
            if pt.is_nested(field.type):
                raise SchemaError(f"field {field.name!r} is {type_ddl(field.type)}: a field of CSV has no parts")
        self._names = schema.names
        self._decimals = [(at, field) for at, field in enumerate(schema) if pt.is_decimal(field.type)]
        self._convert = pyarrow.csv.ConvertOptions(
            column_types={field.name: _parsed_as(field.type) for field in schema},
            null_values=[""],
            strings_can_be_null=False,
            quoted_strings_can_be_null=False,
        )

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
            lines = _BOM + lines  # Arrow drops the first; what a value is must not depend on its place
        parse = pyarrow.csv.ParseOptions(newlines_in_values=bool(several), ignore_empty_lines=False)
        read = pyarrow.csv.ReadOptions(column_names=self._names, use_threads=False, block_size=len(lines) + 1)
        table = pyarrow.csv.read_csv(
            pa.BufferReader(lines), read_options=read, parse_options=parse, convert_options=self._convert
        )
        if table.num_rows != len(values):
            raise DecodeError(f"the value has {table.num_rows} lines of CSV, not one")
        for at, field in self._decimals:
            texts = pc.ascii_trim_whitespace(table.column(at))
            table = table.set_column(at, field, pc.if_else(pc.equal(texts, ""), None, texts).cast(field.type))
        return table


def _parsed_as(kind: pa.DataType) -> pa.DataType:
    """Arrow's CSV reader does not notice that a decimal has too many digits, or that a float is out of range: the
    casts that follow do."""
    if pt.is_decimal(kind):
        return pa.string()
    return pa.float64() if pt.is_float32(kind) else kind

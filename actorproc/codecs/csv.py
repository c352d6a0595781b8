"""Values that are a line of CSV each, with Arrow's parser."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.types as pt

from actorproc.codecs.tables import TableDecoder
from actorproc.errors import DecodeError, SchemaError
from actorproc.rows.ddl import type_ddl


class CsvDecoder(TableDecoder):
    """Decodes lines with commas between fields and double quotes around those that contain one.

    An empty field is null, unless its column is a string.

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
        self._convert = pyarrow.csv.ConvertOptions(
            column_types=schema, null_values=[""], strings_can_be_null=False, quoted_strings_can_be_null=False
        )

    def table(self, values: pa.Array) -> pa.Table:
        values = pc.ascii_rtrim(values.view(pa.string()), "\r\n").view(pa.binary())
        quotes = pc.count_substring(values.view(pa.string()), '"')
        if pc.any(pc.not_equal(pc.bit_wise_and(quotes, 1), 0)).as_py():  # Arrow takes the end for the missing quote
            raise DecodeError("a quote is not closed")
        several = pc.any(pc.match_substring_regex(values, "[\r\n]")).as_py()  # line ends, which quotes may contain
        if several and len(values) > 1:  # neighbours could be taken for one
            raise DecodeError("one by one")
        lines = b"\n".join(values.to_pylist())
        parse = pyarrow.csv.ParseOptions(newlines_in_values=bool(several), ignore_empty_lines=False)
        read = pyarrow.csv.ReadOptions(column_names=self._names, use_threads=False, block_size=len(lines) + 1)
        table = pyarrow.csv.read_csv(
            pa.BufferReader(lines), read_options=read, parse_options=parse, convert_options=self._convert
        )
        if table.num_rows != len(values):
            raise DecodeError(f"the value has {table.num_rows} lines of CSV, not one")
        return table

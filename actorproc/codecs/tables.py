"""`TableDecoder`: formats of which a library decodes many values into columns at once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.types as pt

from actorproc.codecs.converted_values import ConvertedValues
from actorproc.errors import DecodeError, RowMismatch
from actorproc.handler.decoder import Columns, Decoder, Parsed, Values
from actorproc.records import SEQUENCE
from actorproc.rows.casting import can_cast, cast_columns, nulls
from actorproc.rows.ddl import type_ddl
from actorproc.rows.output_schema import output_schema


class TableDecoder(Decoder):
    """Decodes values into the columns that they have by themselves; those are then cast to the output's."""

    format: ClassVar[str]
    """Its name, for messages."""

    @abstractmethod
    def table(self, values: pa.Array) -> pa.Table:
        """One row for each value; values are binary, and none is null.

        Raises:
            ValueError: at least one does not decode. pyarrow's errors are ValueErrors.
        """

    def values(self, kind: Any = Any) -> Values[Any]:
        return _TableValues(self, kind)

    def columns(self, schema: pa.Schema) -> Columns:
        return TableColumns(self._sequenced, schema, self.format)

    def objects(self, table: pa.Table) -> list[Any]:
        """The rows as plain Python objects."""
        return table.to_pylist(maps_as_pydicts="strict")  # type: ignore[no-any-return]

    def _sequenced(self, values: pa.Array, sequences: pa.Int64Array) -> list[pa.Table]:
        return [self.table(values).append_column(SEQUENCE, sequences)]


class _TableValues(ConvertedValues):
    def __init__(self, decoder: TableDecoder, kind: Any) -> None:
        super().__init__(kind, decoder.format)
        self._decoder = decoder

    def load(self, value: bytes) -> Any:
        [loaded] = self._decoder.objects(self._decoder.table(pa.array([value], pa.binary())))
        return loaded

    def load_all(self, values: pa.Array) -> list[Any]:
        return self._decoder.objects(self._decoder.table(values))


class TableColumns(Columns):
    """Casts the tables that `decode` makes to a schema.

    Args:
        decode: from binary values without nulls and their sequences to tables with the column `_sequence`, in order. It
            raises ValueError if at least one value does not decode. pyarrow's errors are ValueErrors.
        name: of the format, named in the reason of a value that does not decode.
    """

    is_columnar = True

    def __init__(
        self, decode: Callable[[pa.Array, pa.Int64Array], list[pa.Table]], schema: pa.Schema, name: str
    ) -> None:
        self._decode = decode
        self._schema = schema
        self._format = name

    def parse(self, values: pa.Array, sequences: pa.Int64Array) -> Parsed:
        errors: dict[int, Exception] = {}
        if values.null_count:
            missing = sequences.filter(values.is_null()).to_pylist()
            errors = dict.fromkeys(missing, DecodeError("the record has no value"))
            values, sequences = values.drop_null(), sequences.filter(values.is_valid())
        tables = self._tables(values, sequences, errors)
        parts = [fit(table, self._schema) for table in tables]
        for _, misfits in parts:
            errors.update(misfits)
        return pa.concat_tables([fitting for fitting, _ in parts]), errors

    def _tables(self, values: pa.Array, sequences: pa.Int64Array, errors: dict[int, Exception]) -> list[pa.Table]:
        """The values that decode. Halves the array until one that does not is alone."""
        try:
            return self._decode(values, sequences) if len(values) else [_EMPTY]
        except ValueError as error:
            if len(values) == 1:
                errors[sequences[0].as_py()] = DecodeError(f"{self._format}: {error}")
                return [_EMPTY]
        half = len(values) // 2
        first = self._tables(values[:half], sequences[:half], errors)
        return first + self._tables(values[half:], sequences[half:], errors)


_EMPTY = pa.table([pa.array([], pa.int64())], schema=pa.schema([SEQUENCE]))


def fit(table: pa.Table, schema: pa.Schema) -> tuple[pa.Table, dict[int, Exception]]:
    """The columns that `schema` names, cast to its types, and `_sequence`; and the misfits by sequence.

    A column that the table lacks is null. Fields of structs that the schema does not name are left out.
    """
    target = output_schema(schema)
    columns, why = [], None
    for field in target:
        try:
            columns.append(_column(table, field))
        except RowMismatch as error:
            why = error
    if why is not None:
        return target.empty_table(), dict.fromkeys(table.column(SEQUENCE.name).to_pylist(), why)
    fitting, unfit = cast_columns(pa.Table.from_arrays(columns, names=target.names), target)
    sequences = table.column(SEQUENCE.name)
    return fitting, {
        sequences[index].as_py(): RowMismatch(misfit.column, f"{misfit.value} does not fit: {misfit.why}")
        for index, misfit in unfit.items()
    }


def _column(table: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    if field.name not in table.column_names:
        if not field.nullable and table.num_rows:
            raise RowMismatch(field.name, "it is NOT NULL, and the value has no such field")
        return pa.chunked_array([nulls(table.num_rows, field.type)])
    column = table.column(field.name)
    kind = narrowed(column.type, field.type)
    if not can_cast(kind, field.type):
        raise RowMismatch(field.name, f"it is {type_ddl(field.type)}, and the field of the value is {column.type}")
    return column if kind == column.type else column.cast(kind)


def narrowed(kind: pa.DataType, target: pa.DataType) -> pa.DataType:
    """The type without those fields of structs that `target` does not name."""
    if pt.is_struct(kind) and pt.is_struct(target):
        wanted = {field.name: field.type for field in target}
        kept = [field for field in kind if field.name in wanted]
        return pa.struct([field.with_type(narrowed(field.type, wanted[field.name])) for field in kept])
    if pt.is_map(kind) and pt.is_map(target):
        return pa.map_(kind.key_type, kind.item_field.with_type(narrowed(kind.item_type, target.item_type)))
    if pt.is_list(kind) and pt.is_list(target):
        return pa.list_(kind.value_field.with_type(narrowed(kind.value_type, target.value_type)))
    return kind

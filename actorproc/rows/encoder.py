"""Encodes the rows that a handler emits as Arrow, by the handler's schema, and names the rows that do not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from operator import countOf, itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from actorproc.errors import HandlerError, HandlerMisuse, RowMismatch
from actorproc.records import SEQUENCE
from actorproc.rows.casting import can_cast, cast, cast_columns, needs_checks, short_repr
from actorproc.rows.coercion import converts_natively, unknown_name, value_coercer
from actorproc.rows.ddl import type_ddl
from actorproc.rows.fields import ObjectWithFields, fields_of
from actorproc.rows.output_schema import output_schema
from actorproc.rows.plain_rows import plain_rows
from actorproc.rows.sequence_order import in_order

Row = Mapping[str, Any] | tuple[Any, ...] | ObjectWithFields
"""Values by column, or all of them in the schema's order."""


class _Column:
    """Encodes the values of one column."""

    def __init__(self, field: pa.Field) -> None:
        self.name: str = field.name
        self._kind = field.type
        self._required = not field.nullable
        self._checked = needs_checks(field.type)
        self._plain = converts_natively(field.type)
        self._coerce = value_coercer(field.type, required=self._required)
        self.is_fast = True
        """Whether the latest values were encoded without coercing each one."""

    def encode(self, values: Sequence[Any]) -> tuple[pa.Array, dict[int, str]]:
        """The values as an array with null for those that do not fit, and the reasons for these by index."""
        try:
            # Never without the type: when Arrow has to infer one, some values end the process.
            array = self._array(values) if self._plain(values) else None
            self.is_fast = array is not None and not (self._required and array.null_count)
            if self.is_fast:
                return array, {}
        except (pa.ArrowException, ArithmeticError, TypeError, ValueError):
            self.is_fast = False  # a value does not fit; it is found below
        fitting, unfit = [], {}
        for index, value in enumerate(values):
            try:
                fitting.append(self._coerce(value))
            except ValueError as error:
                fitting.append(None)
                unfit[index] = str(error)
        return self._array(fitting), unfit

    def _array(self, values: Sequence[Any]) -> pa.Array:
        array: pa.Array | pa.ChunkedArray = pa.array(values, self._kind)
        if isinstance(array, pa.ChunkedArray):
            raise HandlerError(f"column {self.name!r} has more than 2 GiB in one batch; lower max_batch_records")
        if self._checked:
            cast(pa.chunked_array([array]), self._kind)  # only checks
        return array


class RowEncoder:
    """Encodes emitted rows.

    Args:
        schema: the declared columns (see `parse_schema`); `_sequence` may be the last one.

    Attributes:
        schema: of the encoded rows: the declared columns, then `_sequence` (int64, NOT NULL).
        width: number of declared columns.
    """

    def __init__(self, schema: pa.Schema) -> None:
        if SEQUENCE.name in schema.names:
            schema = schema.remove(schema.get_field_index(SEQUENCE.name))
        self.schema = output_schema(schema)
        self._declared = schema
        self._names = frozenset(schema.names)
        self._columns = [_Column(field) for field in schema]
        self.width = len(self._columns)
        self.is_plain = plain_rows(schema)
        """Whether a row is known to fit by the types of its values: quick, and False for some rows that fit."""

    @property
    def is_fast(self) -> bool:
        """Whether the latest rows were encoded without coercing each value, which takes many times as long."""
        return all(column.is_fast for column in self._columns)

    def encode(self, rows: Sequence[Row], sequences: Sequence[int]) -> tuple[pa.RecordBatch, dict[int, RowMismatch]]:
        """The rows that fit, ordered by `_sequence`, and the reasons why others do not.

        Rows of one record keep their order. A missing column is null; an unknown column is refused, since it may be a
        typo. Nothing is rounded, cut or guessed: 1.5 does not fit an int, "1" a number, or a datetime without a zone a
        timestamp.

        Args:
            sequences: of the record that each row came from.

        Returns:
            The batch (columns as in `schema`), and by sequence the first misfit of each record that has one. The other
            rows of such a record are in the batch; the caller drops them.
        """
        values = self.columns(rows)
        if values is not None:
            return self.encode_columns(values, sequences)
        misshapen = self._misshapen(rows)
        others = [index for index in range(len(rows)) if index not in misshapen]
        by_name = self._by_name([self._as_dict(rows[i]) for i in others]) or [[] for _ in self._columns]
        batch, unfit = self._encode(by_name, [sequences[i] for i in others])
        return batch, _firsts(misshapen | {others[index]: why for index, why in unfit.items()}, sequences)

    def misfit(self, row: Row) -> RowMismatch | None:
        """Why this row does not fit; None: it does."""
        if self.is_plain(row):
            return None
        _, unfit = self.encode([row], [0])
        return unfit.get(0)

    def encode_columns(
        self, values: Sequence[Sequence[Any]], sequences: Sequence[int] | npt.NDArray[np.int64]
    ) -> tuple[pa.RecordBatch, dict[int, RowMismatch]]:
        """Like `encode`, for the values of each declared column, from `columns`."""
        batch, unfit = self._encode(values, sequences)
        return batch, _firsts(unfit, sequences)

    def _encode(
        self, values: Sequence[Sequence[Any]], sequences: Sequence[int] | npt.NDArray[np.int64]
    ) -> tuple[pa.RecordBatch, dict[int, RowMismatch]]:
        """Like `encode_columns`, with misfits by index."""
        columns = []
        unfit: dict[int, RowMismatch] = {}
        for column, its_values in zip(self._columns, values, strict=True):
            array, reasons = column.encode(its_values)
            columns.append(array)
            for index, why in reasons.items():
                unfit.setdefault(index, RowMismatch(column.name, why))
        batch = pa.RecordBatch.from_arrays([*columns, pa.array(sequences, pa.int64())], schema=self.schema)
        if unfit:
            keep = np.ones(len(sequences), dtype=bool)
            keep[list(unfit)] = False
            batch = batch.filter(pa.array(keep))
        return in_order(batch), unfit

    def encode_table(self, table: pa.Table) -> tuple[pa.Table, dict[int, RowMismatch]]:
        """The rows of a table that fit, ordered by `_sequence`, and the reasons why others do not, by sequence.

        Columns may have any order, and types that can be cast to the schema's without loss. Missing columns are null.

        Raises:
            HandlerError, HandlerMisuse: `_sequence` or a NOT NULL column is missing, or a column is unknown, duplicate
                or of another type.
        """
        table = self._arranged(table)
        fitting, unfit = cast_columns(table, self.schema)
        if not unfit:
            return in_order(fitting), {}
        sequences = table.column(SEQUENCE.name).take(pa.array(sorted(unfit), pa.int64())).to_pylist()
        misfits: dict[int, RowMismatch] = {}
        for sequence, index in zip(sequences, sorted(unfit), strict=True):
            column, value, why = unfit[index]
            misfits.setdefault(sequence, RowMismatch(column, f"{value} does not fit: {why}"))
        return in_order(fitting), misfits

    # Rows

    def columns(self, rows: Sequence[Row]) -> list[Sequence[Any]] | None:
        """Values of each declared column. None if rows have different shapes, or unknown columns."""
        if not rows:
            return [[] for _ in self._columns]
        kind = type(rows[0])
        if not self._columns or countOf(map(type, rows), kind) != len(rows):
            return None
        if kind is dict:
            return self._by_name(rows)  # type: ignore[arg-type]
        if fields_of(rows[0]) is not None:
            return self._by_name([fields_of(row) or {} for row in rows])
        names = self._declared.names if kind is tuple else getattr(kind, "_fields", None)
        if not isinstance(names, list | tuple) or not self._names.issuperset(names):
            return None
        try:
            by_name = dict(zip(names, zip(*rows, strict=True), strict=True))
        except ValueError:  # rows of different lengths, or not one value for each name
            return None
        return [by_name.get(column.name) or [None] * len(rows) for column in self._columns]

    def _by_name(self, rows: Sequence[dict[str, Any]]) -> list[Sequence[Any]] | None:
        values: list[Sequence[Any]] = []
        whole = sum(map(len, rows)) == len(self._columns) * len(rows)
        for column in self._columns:
            try:
                values.append(list(map(itemgetter(column.name), rows)))
            except KeyError:
                whole = False
                values.append([row.get(column.name) for row in rows])
        # Rows that have every column, and as many keys in total as columns, have no unknown key.
        return values if whole or self._names.issuperset(chain.from_iterable(rows)) else None

    def _misshapen(self, rows: Sequence[object]) -> dict[int, RowMismatch]:
        """Values that are not rows, and rows with unknown columns, by index."""
        misfits = {}
        declared = self._declared.names
        for index, row in enumerate(rows):
            if not self._is_row(row):
                given = f"{short_repr(row)} ({type(row).__name__})"
                why = f"a row is a dict of column to value, or a tuple in the order of the columns, not {given}"
                if row is None:
                    why += ". ctx.map returns None for a record that failed: skip it"
                misfits[index] = RowMismatch("", why)
            elif not self._columns:
                misfits[index] = RowMismatch("", "a row was emitted, but the handler declares no output_schema")
            elif type(row) is tuple:
                if len(row) != len(declared):
                    what = (
                        f"a tuple is one row, with a value for each of {', '.join(declared)}: this one has {len(row)}"
                    )
                    misfits[index] = RowMismatch("", f"{what}. Several rows go in a list")
            elif unknown := [name for name in self._as_dict(row) if name not in self._names]:  # type: ignore[arg-type]
                misfits[index] = RowMismatch("", unknown_name(unknown[0], declared, "column"))
        return misfits

    @staticmethod
    def _is_row(row: object) -> bool:
        if isinstance(row, tuple):
            return type(row) is tuple or hasattr(row, "_fields")
        return isinstance(row, Mapping) or fields_of(row) is not None

    def _as_dict(self, row: Row) -> dict[str, Any]:
        if isinstance(row, tuple):
            names = getattr(row, "_fields", self._declared.names)  # a NamedTuple names its values
            return dict(zip(names, row, strict=True))
        return dict(row) if isinstance(row, Mapping) else fields_of(row) or {}

    # Tables

    def _arranged(self, table: pa.Table) -> pa.Table:
        """The table with the schema's columns in their order, each of a type that can be cast to the schema's."""
        names = table.column_names
        if SEQUENCE.name not in names:
            raise HandlerMisuse(
                f"emit_arrow: the table has no column {SEQUENCE.name}; keep the one of batch.to_arrow(), which "
                f"assigns each row to a record. It has: {', '.join(names)}"
            )
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise HandlerError(f"emit_arrow: the table has {', '.join(map(repr, twice))} more than once")
        for name in names:
            if name not in self._names and name != SEQUENCE.name:
                raise HandlerError(f"emit_arrow: {unknown_name(name, self._declared.names, 'column')}")
        columns = []
        for field in self.schema:
            if field.name in names:
                column = table.column(field.name)
                if not can_cast(column.type, field.type):
                    raise HandlerError(
                        f"emit_arrow: column {field.name!r} is {column.type}, the schema says {type_ddl(field.type)}; "
                        "cast it in the handler"
                    )
            elif field.nullable:
                column = pa.chunked_array([pa.nulls(table.num_rows, field.type)])
            else:
                raise HandlerError(f"emit_arrow: column {field.name!r} is NOT NULL, but the table does not have it")
            columns.append(column)
        if columns[-1].null_count or not pt.is_integer(columns[-1].type):
            raise HandlerMisuse(f"emit_arrow: {SEQUENCE.name} must be int64 without nulls, as batch.to_arrow() gave it")
        return pa.Table.from_arrays(columns, names=self.schema.names)


def _firsts(
    unfit: Mapping[int, RowMismatch], sequences: Sequence[int] | npt.NDArray[np.int64]
) -> dict[int, RowMismatch]:
    """The first misfit of each record, by sequence, from misfits by index."""
    return {int(sequences[index]): unfit[index] for index in sorted(unfit, reverse=True)}

"""Which rows and columns of the output a sink gets, by its options, and whether the options fit the output."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from actorproc.config.validation import did_you_mean
from actorproc.errors import UsageError
from actorproc.records import SEQUENCE
from actorproc.sinks.options import SinkOptions
from actorproc.sinks.row_filter import RowFilter


class RowShape:
    """What a sink gets of each delivery.

    Args:
        schema: of the output, with `_sequence`.
        can: what the sink can, see `Sink.can`.

    Raises:
        UsageError: the options do not fit the output, or the sink cannot do what they ask for.
    """

    def __init__(self, options: SinkOptions, schema: pa.Schema, can: Collection[str]) -> None:
        _check_can(options, can)
        _check_names(options, schema)
        self._filter = None if options.where is None else RowFilter(options.where, schema)
        wanted = schema.names if options.columns is None else (*options.columns, SEQUENCE.name)
        self.schema = pa.schema([schema.field(name) for name in dict.fromkeys(wanted)])
        """Of the rows that the sink gets."""
        self._is_whole = self._filter is None and self.schema.names == schema.names

    @property
    def is_heavy(self) -> bool:
        """Whether `apply` takes long enough for a thread."""
        return self._filter is not None

    def apply(self, rows: pa.Table, counts: Sequence[int]) -> tuple[pa.Table, list[int]]:
        """The rows that the sink gets, and how many of each commit."""
        if self._is_whole:
            return rows, list(counts)
        if self._filter is not None and rows.num_rows:
            kept = self._filter.indexes(rows)
            ends = np.searchsorted(kept.to_numpy(), np.cumsum(counts))
            rows, counts = rows.take(kept), np.diff(ends, prepend=0).tolist()
        return rows.select(self.schema.names), list(counts)


def _check_can(options: SinkOptions, can: Collection[str]) -> None:
    asked = {
        "upsert": (options.mode == "upsert", "mode = upsert"),
        "replace": (options.on_reset == "replace", "on_reset = replace"),
        "keep": (options.on_refused == "keep", "on_refused = keep"),
    }
    for ability, (is_asked, text) in asked.items():
        if is_asked and ability not in can:
            raise UsageError(f"this sink cannot do {text}")


def _check_names(options: SinkOptions, schema: pa.Schema) -> None:
    names = [name for name in schema.names if name != SEQUENCE.name]
    deleted = () if options.deleted is None else (options.deleted,)
    for option, given in (("columns", options.columns or ()), ("key", options.key), ("deleted", deleted)):
        if len({*given}) < len(given):
            raise UsageError(f"{option} = {', '.join(given)}: a column is there twice")
        if unknown := [name for name in given if name not in names]:
            raise UsageError(
                f"{option}: the output has no column {unknown[0]!r}{did_you_mean(unknown[0], names)} "
                f"(it has {', '.join(names)})"
            )
        if options.columns is not None and (missing := [name for name in given if name not in options.columns]):
            raise UsageError(f"{option}: {missing[0]} must be among the columns of the sink")
    for name in options.key:
        if pt.is_nested(kind := schema.field(name).type) or pt.is_floating(kind):
            raise UsageError(f"key: {name} is {kind}, and a key cannot be a list, map, struct or float")
    if deleted and not pt.is_boolean(schema.field(deleted[0]).type):
        raise UsageError(f"deleted: {deleted[0]} is {schema.field(deleted[0]).type}, not boolean")

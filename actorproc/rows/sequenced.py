"""Tables of rows with `_sequence`, their record's position: joined, put in order, cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from actorproc.records import SEQUENCE


def in_order(rows: Any) -> Any:
    """Rows of a table or batch by `_sequence`; those of one record stay as they are."""
    column = rows.column(SEQUENCE.name)
    sequences = column.to_numpy()
    if bool(np.all(sequences[1:] >= sequences[:-1])):
        return rows
    return rows.take(pc.sort_indices(pa.array(sequences)))


def joined(tables: list[pa.Table]) -> pa.Table:
    """All rows in order; those of each table are."""
    return tables[0] if len(tables) == 1 else in_order(pa.concat_tables(tables))


def rows_after(table: pa.Table, sequence: int) -> pa.Table:
    """Those of the records behind `sequence`."""
    return table.filter(pc.greater(table[SEQUENCE.name], sequence))


def rows_upto(table: pa.Table, sequence: int) -> pa.Table:
    """The others."""
    return table.filter(pc.less_equal(table[SEQUENCE.name], sequence))

"""Rows with keys: the commit number of each row, and the last row of each key.

Rules: tests/protocol/sink_keyed_model.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from actorproc.sinks.protocol import Delivery


def commit_numbers(delivery: Delivery) -> pa.Int64Array:
    """The number of the commit of each row."""
    numbers = np.arange(delivery.since, delivery.since + len(delivery.counts), dtype=np.int64)
    return pa.array(np.repeat(numbers, delivery.counts))


def last_of_keys(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The last row of each key, in order (rule `last`)."""
    at = pa.array(np.arange(rows.num_rows, dtype=np.int64))
    names = [str(index) for index in range(len(key))]  # a key column may have any name
    table = pa.Table.from_arrays([*(rows[name] for name in key), at], [*names, "at"])
    last = table.group_by(names, use_threads=False).aggregate([("at", "max")])["at_max"]
    return rows if len(last) == rows.num_rows else rows.take(last.take(pc.array_sort_indices(last)))


def deletes(rows: pa.Table, deleted: str | None) -> pa.BooleanArray:
    """Which rows delete their key."""
    if deleted is None:
        return pa.array(np.zeros(rows.num_rows, bool))
    return pc.fill_null(rows[deleted], fill_value=False).combine_chunks()

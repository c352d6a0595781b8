"""`where`: the rows for which an expression is true."""

from __future__ import annotations

import pyarrow as pa

from actorproc.sinks.row_filter import RowFilter


def test_a_row_for_which_the_expression_fails_is_left_out_alone() -> None:
    rows = pa.table({"k": ["1", "abc", "5", None]})
    assert RowFilter("CAST(k AS BIGINT) > 1", rows.schema).indexes(rows).to_pylist() == [2]

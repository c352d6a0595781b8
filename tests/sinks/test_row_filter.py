"""`where`: the rows for which an expression is true."""

from __future__ import annotations

import pyarrow as pa
import pytest

from actorproc.errors import UsageError
from actorproc.sinks.row_filter import RowFilter


def test_a_row_for_which_the_expression_fails_is_left_out_alone() -> None:
    rows = pa.table({"k": ["1", "abc", "5", None]})
    assert RowFilter("CAST(k AS BIGINT) > 1", rows.schema).indexes(rows).to_pylist() == [2]


@pytest.mark.parametrize(
    "expression",
    [
        "ts > now()", "ts > 'now'", "ts > TIMESTAMP 'today'", "ts > 'TODAY'::date",
        "age(ts) < INTERVAL 1 DAY",
        "ts < localtimestamp", "ts < current_timestamp", "pg_postmaster_start_time() < ts", "txid_current() > 1",
        "random() > 0.5", "ts > (SELECT max(ts) FROM x)",
    ],
)  # fmt: skip
def test_an_expression_that_changes_between_deliveries_is_refused(expression: str) -> None:
    with pytest.raises(UsageError):
        RowFilter(expression, pa.schema([("ts", pa.timestamp("us"))]))


def test_steady_expressions_are_taken() -> None:
    schema = pa.schema([("ts", pa.timestamp("us")), ("current", pa.int64())])
    for expression in (
        "ts > TIMESTAMP '2026-01-01'",
        "year(ts) = 2026 AND current > 1",
        "date_diff('day', ts, ts) = 0",
    ):
        RowFilter(expression, schema)

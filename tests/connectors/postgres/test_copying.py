"""Rows as COPY takes them."""

from __future__ import annotations

import pyarrow as pa

from actorproc.connectors.postgres.copying import csv_of


def test_an_empty_commit_between_others_repeats_no_rows() -> None:
    """pyarrow's writer does, for a batch without rows."""
    rows = pa.table({"word": ["a", "b"], "n": [1, 2]})
    empty = rows.slice(0, 0)
    assert bytes(csv_of(pa.concat_tables([empty, rows, empty, rows.slice(1), empty]))) == b'"a",1\n"b",2\n"b",2\n'
    assert bytes(csv_of(empty)) == b""

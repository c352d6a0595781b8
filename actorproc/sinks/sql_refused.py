"""Rows that a SQL database refuses: found by halving within savepoints, and kept in a table of their own.

Rules `same`, `retry`: tests/protocol/sink_model.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from actorproc.rows.json_values import rows_to_json
from actorproc.sinks.protocol import Delivery, SinkRefused

REFUSED = "actorproc_sink_refused"
"""Table of the rows that were refused, with `on_refused = keep`."""

NUMBER = "_number"
"""Column of the commit number, while rows are sorted out."""

_COLUMNS = ("sink", "home", "part", "number", "sequence", "reason", "fields")

_REASON = 1000
"""Characters of a reason that are kept: some databases quote the whole value."""


class Refused(NamedTuple):
    row: pa.Table
    """One row."""
    reason: str


def columns(types: Mapping[str, str]) -> str:
    """Its columns, as SQL declares them."""
    text, number = types["text"], types["number"]
    return (
        f"sink {text} NOT NULL, home {text} NOT NULL, part {text} NOT NULL, number {number} NOT NULL, "
        f"sequence {number} NOT NULL, reason {types.get('long', text)}, fields {types.get('long', text)}"
    )


def put_or_refuse(cursor: Any, rows: pa.Table, put: Callable[[pa.Table], None]) -> list[Refused]:
    """Put all rows that the database takes. Halves the rows until those that it refuses are alone."""
    if not rows.num_rows or (reason := _refusal(cursor, rows, put)) is None:
        return []
    if rows.num_rows == 1:
        return [Refused(rows, reason)]
    half = rows.num_rows // 2
    return put_or_refuse(cursor, rows[:half], put) + put_or_refuse(cursor, rows[half:], put)


def first_refused(cursor: Any, rows: pa.Table, put: Callable[[pa.Table], None]) -> pa.Table | None:
    """The first row that the database refuses. None: it takes each by itself."""
    while rows.num_rows > 1:
        half = rows.num_rows // 2
        rows = rows[half:] if takes(cursor, rows[:half], put) else rows[:half]
    return None if takes(cursor, rows, put) else rows


def takes(cursor: Any, rows: pa.Table, put: Callable[[pa.Table], None]) -> bool:
    """Put the rows. False: one is refused, and none was put."""
    return _refusal(cursor, rows, put) is None


def _refusal(cursor: Any, rows: pa.Table, put: Callable[[pa.Table], None]) -> str | None:
    cursor.execute("SAVEPOINT actorproc")
    try:
        put(rows)
    except SinkRefused as error:
        cursor.execute("ROLLBACK TO SAVEPOINT actorproc")
        cursor.execute("RELEASE SAVEPOINT actorproc")
        return str(error)
    cursor.execute("RELEASE SAVEPOINT actorproc")
    return None


class RefusedRows(NamedTuple):
    """The rows of a sink in the table, within a transaction."""

    cursor: Any
    mark: str
    table: str
    sink: str

    def keep(self, delivery: Delivery, refused: Sequence[Refused], storable: Callable[[str], str]) -> None:
        """Add refused rows, which have the column `_number`.

        Args:
            storable: see `SqlSink.storable`.
        """
        if not refused:
            return
        rows = pa.concat_tables([each.row for each in refused]).combine_chunks()
        numbers, sequences = rows[NUMBER].to_pylist(), rows["_sequence"].to_pylist()
        (batch,) = rows.select(delivery.rows.schema.names).to_batches()
        texts = [storable(line.decode()) for line in rows_to_json(batch).to_pylist()]
        reasons = [storable(_short(each.reason)) for each in refused]
        origin = (self.sink, delivery.now.home, delivery.partition)
        self.cursor.executemany(
            f"INSERT INTO {self.table} ({', '.join(_COLUMNS)}) VALUES ({', '.join([self.mark] * len(_COLUMNS))})",
            [(*origin, *found) for found in zip(numbers, sequences, reasons, texts, strict=True)],
        )

    def forget(self, delivery: Delivery) -> None:
        """Delete those that this delivery replaces, or delivers once more."""
        mark, conditions = self.mark, []
        if delivery.begins:
            conditions.append(("number >= ", delivery.since))
        if delivery.replace_after is not None:
            conditions.append(("sequence > ", delivery.replace_after))
        for condition, value in conditions:
            self.cursor.execute(
                f"DELETE FROM {self.table} WHERE sink = {mark} AND home = {mark} AND part = {mark} "
                f"AND {condition}{mark}",
                (self.sink, delivery.now.home, delivery.partition, value),
            )


def _short(reason: str) -> str:
    return " ".join(reason.replace("\0", " ").split())[:_REASON]

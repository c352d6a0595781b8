"""What an attempt emitted, as Arrow: rows that fit, in the order of their records, and why others do not fit."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from actorproc.errors import HandlerMisuse, RowsLost
from actorproc.handler.attempt import Attempt
from actorproc.records import SEQUENCE
from actorproc.rows.emitted import VALUES_AT_ONCE, Emitted
from actorproc.rows.encoder import RowEncoder
from actorproc.rows.sequenced import joined
from actorproc.runtime.clock import Clock

Encoded = tuple[list[pa.Table], dict[int, Exception]]
"""Rows that fit, as tables in order; and why others do not, by the sequence of their record."""

_SMALL = VALUES_AT_ONCE  # so few values are encoded on the event loop


class AttemptEncoder:
    """Turns what attempts emitted into rows of one schema."""

    def __init__(self, schema: pa.Schema, clock: Clock) -> None:
        self._rows = RowEncoder(schema)
        self._clock = clock

    def new_emitted(self) -> Emitted:
        """Where the next attempt puts its rows."""
        return Emitted(self._rows)

    def encoded(self, attempt: Attempt) -> Encoded:
        """At once, in this thread."""
        return self._encoded(attempt.emitted, attempt.tables)

    async def encode(self, attempt: Attempt) -> Encoded:
        """What is there now, in a thread if it is much. With `ctx.commit` more may come meanwhile."""
        emitted, tables = attempt.emitted.copy(), list(attempt.tables)
        values = emitted.waiting * self._rows.width + sum(table.num_rows * table.num_columns for table in tables)
        if values <= _SMALL:
            return self._encoded(emitted, tables)
        return await self._clock.run_in_thread(self._encoded, emitted, tables)

    def _encoded(self, emitted: Emitted, given: list[pa.Table]) -> Encoded:
        misfits: dict[int, Exception] = {}
        tables, unfit = emitted.encode()
        misfits.update(unfit)
        for one in given:
            table, unfit = self._rows.encode_table(one)
            misfits.update(unfit)
            tables.append(table)
        return tables, misfits

    def settle(self, attempt: Attempt, encoded: Encoded) -> tuple[pa.Table | None, dict[int, Exception]]:
        """Rows of the records that neither failed nor were given up, and the failures, rows that do not fit
        among them; those are noted in the attempt as hopeless.

        Raises:
            HandlerMisuse: there are rows and no columns, or a row belongs to a record that is not at hand.
            RowsLost: a row belongs to a record that was committed without it.
        """
        tables, misfits = encoded
        if misfits and not self._rows.width:
            raise HandlerMisuse(
                "a row was emitted, and the handler declares no output_schema, such as 'carrier string, n long'"
            )
        if misfits:
            _check_origin(attempt, pa.array(sorted(misfits), pa.int64()))
        attempt.hopeless |= misfits.keys() - attempt.failures.keys()  # the same record makes the same row
        failures = misfits | attempt.uncommitted(attempt.failures)  # the reason that was given
        if not tables:
            return None, failures
        table = joined(tables)
        _check_origin(attempt, table[SEQUENCE.name])
        unwanted = failures.keys() | attempt.letters.keys()
        if unwanted:
            given_up = pc.is_in(table[SEQUENCE.name], value_set=pa.array(sorted(unwanted), pa.int64()))
            table = table.filter(pc.invert(given_up))
        return table, failures


def _check_origin(attempt: Attempt, sequences: pa.Array | pa.ChunkedArray) -> None:
    """Rows, those that do not fit as well, must belong to records that are still at hand. `sequences` are in order."""
    if len(sequences) == 0:
        return
    batch = attempt.batch
    first, last = sequences[0].as_py(), sequences[-1].as_py()
    outside = first < batch.first or last > batch.last
    if outside or batch.last - batch.first >= len(batch):  # or there are gaps
        foreign = sequences.filter(pc.invert(pc.is_in(sequences, value_set=batch.sequence_array)))
        if len(foreign):
            raise HandlerMisuse(
                f"a row was emitted for record {foreign[0]}, which is not among those at hand ({batch.first} to {batch.last}): it was "
                "done before, or is tried apart from them. A row belongs to a record of the batch; what comes of records of "
                "several batches is emitted for the last of them"
            )
    if first <= attempt.committed:
        raise RowsLost(
            f"a row was emitted for a record up to {attempt.committed}, which ctx.commit had committed already, and is "
            "lost: emit first, or commit up to an earlier record with ctx.commit(record)"
        )

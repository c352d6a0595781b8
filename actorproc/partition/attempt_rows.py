"""The rows of an attempt as Arrow: which belong to records at hand, which do not fit, and which are dropped."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from actorproc.errors import HandlerMisuse, RowMismatch, RowsLost
from actorproc.handler.attempt import Attempt
from actorproc.records import SEQUENCE
from actorproc.rows.sequence_order import joined


def add_encoded(attempt: Attempt, tables: list[pa.Table], misfits: dict[int, RowMismatch]) -> None:
    """Add encoded rows to the attempt. A record with a row that does not fit has failed, and would fail again.

    Raises:
        HandlerMisuse: a row belongs to a record that is not at hand.
        RowsLost: a row belongs to a record that was committed without it.
    """
    _check_records(attempt, pa.array(sorted(misfits), pa.int64()))
    for table in tables:
        _check_records(attempt, table[SEQUENCE.name])
    attempt.hopeless |= misfits.keys() - attempt.failures.keys()
    attempt.failures = misfits | attempt.failures
    attempt.encoded += tables


def good_rows(attempt: Attempt) -> pa.Table | None:
    """The encoded rows, ordered by sequence, without those of records that failed or were given up."""
    if not attempt.encoded:
        return None
    table = joined(attempt.encoded)
    if dropped := attempt.failures.keys() | attempt.letters.keys():
        unwanted = pc.is_in(table[SEQUENCE.name], value_set=pa.array(sorted(dropped), pa.int64()))
        table = table.filter(pc.invert(unwanted))
    return table


def _check_records(attempt: Attempt, sequences: pa.Array | pa.ChunkedArray) -> None:
    """`sequences` are ordered."""
    if len(sequences) == 0:
        return
    batch = attempt.batch
    first, last = sequences[0].as_py(), sequences[-1].as_py()
    has_gaps = batch.last - batch.first >= len(batch)
    if first < batch.first or last > batch.last or has_gaps:
        foreign = sequences.filter(pc.invert(pc.is_in(sequences, value_set=batch.sequence_array)))
        if len(foreign):
            raise HandlerMisuse(
                f"a row was emitted for record {foreign[0]}, which is not among those at hand ({batch.first} to "
                f"{batch.last}): it was done before, or is tried apart from them. A row belongs to a record of the "
                "batch; a row for records of several batches is emitted for the last of them"
            )
    if first <= attempt.committed:
        raise RowsLost(
            f"a row was emitted for a record up to {attempt.committed}, which ctx.commit had committed already, and is "
            "lost: emit first, or commit up to an earlier record with ctx.commit(record)"
        )

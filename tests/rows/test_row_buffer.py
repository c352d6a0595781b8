"""Rows while they come: encoded piece by piece, by one thread or several, each once and in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorproc.errors import HandlerMisuse
from actorproc.rows.encoder import RowEncoder
from actorproc.rows.row_buffer import PIECE, RowBuffer
from tests.rows.encoding import encoder

ROWS = st.one_of(
    st.tuples(st.integers(0, 9), st.sampled_from(["x", "y", 1])),
    st.fixed_dictionaries({"a": st.integers(0, 9)}, optional={"b": st.just("z"), "c": st.just(1)}),
    st.sampled_from([(1,), 5, {}]),
)


@given(st.lists(st.tuples(ROWS, st.booleans(), st.booleans())), st.integers(0, 60), st.integers(1, 8))
def test_gathered_rows_are_encoded_as_if_at_once(
    given_rows: list[tuple[Any, bool, bool]], detached_at: int, together: int
) -> None:
    whole = encoder("a int, b string")
    rows, sequences, parts = list[Any](), list[int](), []
    with patch("actorproc.rows.row_buffer._TOGETHER", together):
        buffer = RowBuffer(whole)
        for row, gather, grow in given_rows:
            if len(rows) == detached_at:
                parts.append(buffer.detach())
                assert len(buffer) == 0
            sequences.append((sequences[-1] if sequences else 0) + grow)
            rows.append(row)
            buffer.rows.append(row)
            buffer.sequences.append(sequences[-1])
            if gather:
                buffer.gather()
        encoded = [part.encode() for part in (*parts, buffer)]
    expected, unfit = whole.encode(rows, sequences)
    assert [row for tables, _ in encoded for table in tables for row in table.to_pylist()] == expected.to_pylist()
    misfits = {sequence: str(misfit) for _, found in reversed(encoded) for sequence, misfit in found.items()}
    assert misfits == {sequence: str(misfit) for sequence, misfit in unfit.items()}


@pytest.mark.parametrize("size", [1, 100, PIECE, 3 * PIECE])
@pytest.mark.parametrize("odd", [None, 7, 2 * PIECE])
def test_rows_added_in_bulk_are_encoded_as_single_rows_are(size: int, odd: int | None) -> None:
    rows: list[Any] = [(index, "x") for index in range(5 * PIECE)]
    if odd is not None:
        rows[odd] = (odd,)
    whole, sequences = encoder("a int, b string"), list(range(100, 100 + len(rows)))
    emitted = RowBuffer(whole)
    for at in range(0, len(rows), size):
        emitted.add(rows[at : at + size], pa.array(sequences[at : at + size]))
        assert len(emitted) == min(at + size, len(rows))
    tables, misfits = emitted.encode()
    expected, unfit = whole.encode(rows, sequences)
    assert pa.concat_tables(tables).to_pylist() == expected.to_pylist()
    assert list(misfits) == list(unfit) == ([] if odd is None else [100 + odd])


def test_rows_are_encoded_while_they_are_emitted() -> None:
    emitted = RowBuffer(encoder("a int, b string"))
    for index in range(20 * PIECE):
        emitted.rows.append((index, "x"))
        emitted.sequences.append(index)
        if len(emitted.rows) >= PIECE:
            emitted.gather()
        assert emitted.values <= 2 * 4 * PIECE


def filled(emitted: RowBuffer, count: int, value: Any = 1) -> RowBuffer:
    for index in range(count):
        emitted.rows.append((value, "x"))
        emitted.sequences.append(index)
        if len(emitted.rows) >= PIECE:
            emitted.gather()
    return emitted


def test_encoding_that_fails_early_is_retried_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encode_columns, failed = RowEncoder.encode_columns, list[int]()

    def short_of_memory(self: RowEncoder, values: Any, sequences: Any) -> Any:
        if not failed:
            failed.append(len(sequences))
            raise MemoryError
        return encode_columns(self, values, sequences)

    monkeypatch.setattr(RowEncoder, "encode_columns", short_of_memory)
    tables, _ = filled(RowBuffer(encoder("a int, b string")), 20 * PIECE).encode()
    assert failed == [4 * PIECE]
    assert pa.concat_tables(tables)["_sequence"].to_pylist() == list(range(20 * PIECE))


def test_rows_that_need_coercion_are_not_encoded_early() -> None:
    slow = filled(RowBuffer(encoder("a double, b string")), 20 * PIECE, np.float64(1))
    assert slow.values == 2 * 16 * PIECE, "after the first piece, which showed it"
    many = RowBuffer(encoder("a int, b string"))
    many.add([(1, "x")] * 20 * PIECE, pa.array(range(20 * PIECE)))
    assert many.values == 2 * 20 * PIECE


def test_very_wide_rows_are_not_encoded_while_they_come() -> None:
    wide = RowBuffer(encoder(", ".join(f"c{number} int" for number in range(200))))
    for sequence in range(3 * PIECE):
        wide.rows.append((1,) * 200)
        wide.sequences.append(sequence)
        if len(wide.rows) >= PIECE:
            wide.gather()
    assert wide.values == 200 * 3 * PIECE


SEVERAL = "by several threads at once"


def crossed(emitted: RowBuffer) -> None:
    emitted.sequences.append(5)  # of a thread that is just about to add its row


def busy(emitted: RowBuffer) -> None:
    emitted._busy.acquire()


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("collision", [crossed, busy])
def test_threads_that_emit_at_once_are_noticed_and_not_forgotten(
    collision: Callable[[RowBuffer], None], alike: bool
) -> None:
    for emit in (
        RowBuffer.gather,
        lambda emitted: emitted.add([(1, "x")] * PIECE, pa.array(range(PIECE))),
        RowBuffer.encode,
    ):
        emitted = filled(RowBuffer(encoder("a int, b string")), 5)
        if not alike:
            emitted.rows[2] = {"a": 2}
            emitted.gather()
        emitted.check()
        collision(emitted)
        with pytest.raises(HandlerMisuse, match=SEVERAL):
            emit(emitted)
        with pytest.raises(HandlerMisuse, match=SEVERAL):
            emitted.check()


def test_rows_added_by_another_thread_are_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    columns, emitted = RowEncoder.columns, RowBuffer(encoder("a int, b string"))

    def beside(self: RowEncoder, rows: Any) -> Any:
        emitted.sequences.append(99)
        emitted.rows.append((99, "late"))
        return columns(self, rows)

    filled(emitted, 5)
    monkeypatch.setattr(RowEncoder, "columns", beside)
    emitted.gather()
    monkeypatch.undo()
    tables, _ = emitted.encode()
    assert pa.concat_tables(tables)["_sequence"].to_pylist() == [0, 1, 2, 3, 4, 99]


def test_rows_are_ordered_by_sequence() -> None:
    batch, _ = encoder("n int").encode([{"n": n} for n in range(6)], [5, 3, 5, 4, 3, 5])
    assert [(row["_sequence"], row["n"]) for row in batch.to_pylist()] == [
        (3, 1),
        (3, 4),
        (4, 3),
        (5, 0),
        (5, 2),
        (5, 5),
    ]


def test_no_rows_make_an_empty_batch() -> None:
    batch, misfits = encoder("a int, b array<string>").encode([], [])
    assert (batch.num_rows, batch.schema.names, misfits) == (0, ["a", "b", "_sequence"], {})

"""Rows while they come: encoded piece by piece, by one thread or several, each once and in order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorproc.errors import HandlerMisuse
from actorproc.rows.emitted import PIECE, Emitted
from actorproc.rows.encoder import RowEncoder
from tests.rows.encoding import encoder

ROWS = st.one_of(
    st.tuples(st.integers(0, 9), st.sampled_from(["x", "y", 1])),
    st.fixed_dictionaries({"a": st.integers(0, 9)}, optional={"b": st.just("z"), "c": st.just(1)}),
    st.sampled_from([(1,), 5, {}]),
)


@given(
    st.lists(st.tuples(ROWS, st.booleans(), st.booleans())), st.integers(-1, 60), st.integers(0, 60), st.booleans(),
    st.integers(1, 8),
)  # fmt: skip
def test_rows_that_are_gathered_encoded_and_forgotten_become_what_they_would_have_become_at_once(
    given_rows: list[tuple[Any, bool, bool]], upto: int, count: int, copied: bool, together: int
) -> None:
    whole = encoder("a int, b string")
    rows, sequences = list[Any](), list[int]()
    with patch("actorproc.rows.emitted._TOGETHER", together), ExitStack() as stack:
        emitted = Emitted(whole)
        for row, gather, grow in given_rows:
            if len(rows) == count:
                stack.enter_context(emitted.still())
            sequences.append((sequences[-1] if sequences else 0) + grow)
            rows.append(row)
            emitted.rows.append(row)
            emitted.sequences.append(sequences[-1])
            if gather:
                emitted.gather()
    _, unfit = whole.encode(rows, sequences)
    upto = min([upto, *(sequence - 1 for sequence in unfit)])  # nobody commits beyond a record that fails
    emitted.forget(upto, count)
    keep = [index for index, sequence in enumerate(sequences) if index >= count or sequence > upto]
    assert len(emitted) == len(keep)
    tables, misfits = (emitted.copy() if copied else emitted).encode()
    expected, unfit = whole.encode([rows[index] for index in keep], [sequences[index] for index in keep])
    assert [row for table in tables for row in table.to_pylist()] == expected.to_pylist()
    assert {s: str(m) for s, m in misfits.items()} == {s: str(m) for s, m in unfit.items()}


@pytest.mark.parametrize("size", [1, 100, PIECE, 3 * PIECE])
@pytest.mark.parametrize("odd", [None, 7, 2 * PIECE])
def test_rows_that_are_added_many_at_once_become_what_they_would_have_become_one_by_one(
    size: int, odd: int | None
) -> None:
    rows: list[Any] = [(index, "x") for index in range(5 * PIECE)]
    if odd is not None:
        rows[odd] = (odd,)
    whole, sequences = encoder("a int, b string"), list(range(100, 100 + len(rows)))
    emitted = Emitted(whole)
    for at in range(0, len(rows), size):
        emitted.add(rows[at : at + size], pa.array(sequences[at : at + size]))
        assert len(emitted) == min(at + size, len(rows))
    tables, misfits = emitted.encode()
    expected, unfit = whole.encode(rows, sequences)
    assert pa.concat_tables(tables).to_pylist() == expected.to_pylist()
    assert list(misfits) == list(unfit) == ([] if odd is None else [100 + odd])


def test_rows_are_encoded_while_they_come_and_not_all_kept_as_objects() -> None:
    emitted = Emitted(encoder("a int, b string"))
    for index in range(20 * PIECE):
        emitted.rows.append((index, "x"))
        emitted.sequences.append(index)
        if len(emitted.rows) >= PIECE:
            emitted.gather()
        assert emitted.waiting <= 4 * PIECE


def filled(emitted: Emitted, count: int, value: Any = 1) -> Emitted:
    for index in range(count):
        emitted.rows.append((value, "x"))
        emitted.sequences.append(index)
        if len(emitted.rows) >= PIECE:
            emitted.gather()
    return emitted


def test_encoding_that_fails_while_rows_come_is_tried_again_in_the_end_and_repeats_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encode_columns, failed = RowEncoder.encode_columns, list[int]()

    def short_of_memory(self: RowEncoder, values: Any, sequences: Any) -> Any:
        if not failed:
            failed.append(len(sequences))
            raise MemoryError
        return encode_columns(self, values, sequences)

    monkeypatch.setattr(RowEncoder, "encode_columns", short_of_memory)
    tables, _ = filled(Emitted(encoder("a int, b string")), 20 * PIECE).encode()
    assert failed == [4 * PIECE]
    assert pa.concat_tables(tables)["_sequence"].to_pylist() == list(range(20 * PIECE))


def test_values_that_take_a_look_at_each_and_rows_added_by_the_thousand_are_not_encoded_while_they_come() -> None:
    slow = filled(Emitted(encoder("a double, b string")), 20 * PIECE, np.float64(1))
    assert slow.waiting == 16 * PIECE, "after the first piece, which showed it"
    many = Emitted(encoder("a int, b string"))
    many.add([(1, "x")] * 20 * PIECE, pa.array(range(20 * PIECE)))
    assert many.waiting == 20 * PIECE


def test_very_wide_rows_are_not_encoded_while_they_come() -> None:
    wide = Emitted(encoder(", ".join(f"c{number} int" for number in range(200))))
    for sequence in range(3 * PIECE):
        wide.rows.append((1,) * 200)
        wide.sequences.append(sequence)
        if len(wide.rows) >= PIECE:
            wide.gather()
    assert wide.waiting == 3 * PIECE


def test_committing_record_by_record_leaves_nothing_behind_that_the_next_commit_has_to_go_through() -> None:
    emitted = Emitted(encoder("a int, b string"))
    for sequence in range(6 * PIECE):
        emitted.rows.append((1, "x"))
        emitted.sequences.append(sequence)
        if sequence % PIECE == 0:
            filled(emitted, 3 * PIECE, sequence)
        with emitted.still():
            assert len(emitted.copy().encode()[0]) <= 1
            emitted.forget(max(sequence, 3 * PIECE), len(emitted))
        assert len(emitted) == 0


SEVERAL = "by several threads at once"


def crossed(emitted: Emitted) -> None:
    emitted.sequences.append(5)  # of a thread that is just about to add its row


def busy(emitted: Emitted) -> None:
    emitted._at_work.acquire()


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("collision", [crossed, busy])
def test_threads_that_emit_at_once_are_noticed_and_not_forgotten(
    collision: Callable[[Emitted], None], alike: bool
) -> None:
    for emit in (
        Emitted.gather,
        lambda emitted: emitted.add([(1, "x")] * PIECE, pa.array(range(PIECE))),
        Emitted.encode,
    ):
        emitted = filled(Emitted(encoder("a int, b string")), 5)
        if not alike:
            emitted.rows[2] = {"a": 2}
            emitted.gather()
        emitted.check()
        collision(emitted)
        with pytest.raises(HandlerMisuse, match=SEVERAL):
            emit(emitted)
        with pytest.raises(HandlerMisuse, match=SEVERAL):
            emitted.check()


def test_what_another_thread_adds_while_rows_are_gathered_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    columns, emitted = RowEncoder.columns, Emitted(encoder("a int, b string"))

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


def test_rows_come_by_sequence_and_those_of_one_record_as_they_were_emitted() -> None:
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

"""`Sessions`, `Dedupe` and `Latest`, which need options only."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest

from actorproc import Batch, Dedupe, Latest, Record, Sessions, Settings
from actorproc.handlers.sessions import Session as SessionState
from actorproc.testing import run_handler

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SIZES = [1, 2, 1000]


def at(*events: tuple[str | None, float, Any]) -> list[Record]:
    """Records of key, seconds after noon, and value as JSON."""
    keys, times = [k and k.encode() for k, _, _ in events], [NOON + timedelta(seconds=s) for _, s, _ in events]
    values = [None if value is None else orjson.dumps(value) for _, _, value in events]
    return list(Batch.of("0", values, range(len(events)), keys=keys, timestamps=times))  # type: ignore[arg-type]


def after(time: datetime) -> float:
    return (time - NOON).total_seconds()


@pytest.mark.parametrize("size", SIZES)
async def test_sessions_end_after_the_gap_wherever_batches_end(size: int) -> None:
    events = at(("a", 0, {}), ("b", 5, {}), ("a", 9, {}), ("a", 20, {}), ("b", 21, {}), ("a", 22, {}))
    result = await run_handler(
        Sessions, events, options={"gap": "10s"}, settings=Settings(max_batch_records=size), advance="10s"
    )
    rows = sorted((row["key"], after(row["start"]), after(row["end"]), row["records"]) for row in result.rows)
    assert rows == [("a", 0, 9, 2), ("a", 20, 22, 2), ("b", 5, 5, 1), ("b", 21, 21, 1)]
    assert (result.state, result.timers) == ({}, {})


@pytest.mark.parametrize("size", SIZES)
async def test_a_record_right_at_the_end_of_the_gap_begins_a_session(size: int) -> None:
    events = at(("a", 0, {}), ("b", 10, {}), ("a", 10, {}), ("b", 0, {}))
    settings = Settings(max_batch_records=size)
    result = await run_handler(Sessions, events, options={"gap": "10s"}, settings=settings, advance="10s")
    rows = sorted((row["key"], after(row["start"]), row["records"]) for row in result.rows)
    assert rows == [("a", 0, 1), ("a", 10, 1), ("b", 0, 1), ("b", 10, 1)]


async def test_a_sum_that_is_added_counts_from_0_in_open_sessions() -> None:
    open_session = SessionState(NOON, NOON, 3, [])
    result = await run_handler(
        Sessions, at(("a", 5, {"n": 2})), options={"gap": 10, "sum": ["n"]},
        state={"a": open_session, "b": open_session}, advance="1h",
    )  # fmt: skip
    assert [(row["key"], row["records"], row["n"]) for row in result.rows] == [("a", 4, 2)]
    assert not result.dead_letters


async def test_sessions_by_a_field_with_sums_and_late_records() -> None:
    events = at(
        (None, 100, {"u": 7, "n": 1}),
        (None, 95, {"u": 7, "n": 2.5}),  # late, and within the gap of the open session
        (None, 10, {"u": 7, "n": 4}),  # too late for it
        (None, 101, {"u": 7, "n": "x"}),
        (None, 102, {"n": 1}),
    )
    result = await run_handler(Sessions, events, options={"gap": 10, "key": "u", "sum": ["n"]}, advance="1h")
    rows = [(row["key"], after(row["start"]), after(row["end"]), row["records"], row["n"]) for row in result.rows]
    assert rows == [("7", 10, 10, 1, 4), ("7", 95, 100, 2, 3.5)]
    assert [letter["error"]["message"] for letter in result.dead_letters] == [
        "field 'n', which the option sum names, is 'x', not a number",
        "the value has no field 'u', which the option key names",
    ]


@pytest.mark.parametrize("size", SIZES)
async def test_dedupe_passes_the_first_of_a_key_within_a_time(size: int) -> None:
    events = at(("a", 0, 1), ("a", 9.9, 2), ("b", 9.95, 3), ("a", 10, 4), ("b", 12, 5), ("a", 19, 6), ("a", 21, 7))
    result = await run_handler(Dedupe, events, options={"within": 10}, settings=Settings(max_batch_records=size))
    assert [(row["key"], row["value"]) for row in result.rows] == [
        (b"a", b"1"), (b"b", b"3"), (b"a", b"4"), (b"a", b"7")
    ]  # fmt: skip
    assert (await run_handler(Dedupe, events, options={"within": 10}, advance=11)).state == {}


async def test_dedupe_may_emit_typed_rows_by_a_field() -> None:
    events = at((None, 0, {"id": "x", "n": 1}), (None, 1, {"id": "x", "n": 2}), (None, 2, {"id": "y", "n": "no"}))
    options = {"key": "id", "output_schema": "id string, n int"}
    result = await run_handler(Dedupe, events, options=options)
    assert [(row["id"], row["n"]) for row in result.rows] == [("x", 1)]
    assert [letter["sequence"] for letter in result.dead_letters] == [2]
    assert list(result.state) == ["x"]


@pytest.mark.parametrize("size", SIZES)
async def test_latest_emits_changed_values(size: int) -> None:
    events = at(
        ("a", 0, {"n": 1, "s": "x"}), ("b", 1, {"n": 1}), ("a", 2, {"n": 1, "s": "x", "other": 5}),
        ("a", 3, {"n": 2, "s": "x"}), ("a", 4, None), ("a", 5, None), ("a", 6, {"n": 2, "s": "x"}), ("b", 7, {"n": 1}),
    )  # fmt: skip
    result = await run_handler(
        Latest, events, options={"output_schema": "n int, s string"}, settings=Settings(max_batch_records=size)
    )
    assert [(row["_sequence"], row["key"], row["n"], row["s"]) for row in result.rows] == [
        (0, "a", 1, "x"), (1, "b", 1, None), (3, "a", 2, "x"), (4, "a", None, None), (6, "a", 2, "x")
    ]  # fmt: skip
    assert result.state == {"a": [2, "x"], "b": [1, None]}


async def test_latest_keeps_the_value_as_text_by_default() -> None:
    result = await run_handler(Latest, at(("a", 0, 1), ("a", 1, 1), ("a", 2, 2), (None, 3, 4)))
    assert [(row["key"], row["value"]) for row in result.rows] == [("a", "1"), ("a", "2")]
    assert "the record has no key" in result.dead_letters[0]["error"]["message"]


async def test_latest_compares_dates_and_decimals() -> None:
    columns = "k string, d date, p decimal(10,2), t timestamp_ntz"
    lines = [b"k,2020-01-01,1.50,2020-01-01T01:02:03", b"k,2020-01-01,1.50,2020-01-01T01:02:03", b"k,2020-01-02,1.50,"]
    result = await run_handler(
        Latest, Batch.of("0", lines, range(3), keys=[b"k"] * 3),
        options={"output_schema": columns.removeprefix("k string, ")},
        settings=Settings(decode="csv", decode_schema=columns),
    )  # fmt: skip
    assert [row["_sequence"] for row in result.rows] == [0, 2]


async def test_latest_gives_up_a_tombstone_without_a_key() -> None:
    result = await run_handler(Latest, Batch.of("0", [b"a", None], range(2), keys=[b"k", None]))
    assert [row["value"] for row in result.rows] == ["a"]
    assert [letter["sequence"] for letter in result.dead_letters] == [1]


LAST = (datetime.max.replace(tzinfo=UTC) - NOON).total_seconds() - 1


@pytest.mark.parametrize("handler", [Sessions, Dedupe])
async def test_a_time_at_the_end_of_all_dates_fails_its_record_alone(handler: Any) -> None:
    result = await run_handler(handler, at(("a", 0, {}), ("b", LAST, {}), ("a", 1, {})))
    assert [letter["sequence"] for letter in result.dead_letters] == [1]
    assert set(result.states["" if "" in result.states else "state"]) == {"a"}


@pytest.mark.parametrize("key", [[1], {"a": 1}, None])
async def test_a_field_that_is_no_key_fails_its_record_alone(key: Any) -> None:
    events = at((None, 0, {"k": "a", "n": 1}), (None, 1, {"k": key, "n": 2}), (None, 2, {"k": "a", "n": 3}))
    result = await run_handler(Latest, events, options={"key": "k", "output_schema": "n bigint"})
    assert ([row["n"] for row in result.rows], len(result.dead_letters)) == ([1, 3], 1)


async def test_sums_of_numbers_beyond_64_bits_fail_alone_or_are_added() -> None:
    events = at(("a", 0, {"n": 2**63}), ("a", 1, {"n": 2**63}), ("a", 2, {"n": 1e308}), ("a", 3, {"n": 1}))
    result = await run_handler(Sessions, events, options={"sum": ["n"]}, advance="1h")
    assert [(row["records"], row["n"]) for row in result.rows] == [(4, 2.0**64 + 1e308)]

"""Mutated values of each format: any bytes give a value or a dead letter of their record, and never harm neighbours."""

from __future__ import annotations

import time
from contextlib import suppress
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from actorproc.errors import RowMismatch
from actorproc.handler.decoder import columns_of, values_of
from tests.formats.samples import FIRST, FORMATS, Format, arrow_stream, handlers, process
from tests.partition.running import letters

EXTREMES = [b"\x00", b"\xff", b"\x7f", b"\x80", b"\x00" * 8, b"\xff" * 8, b"\xff" * 7 + b"\x7f", b"\x80" * 9 + b"\x01"]
EXTREMES += [
    b"[" * 3000,
    b'{"a":' * 1500,
    b'"',
    b"\\",
    b"\n",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"1e999",
    b"-0",
    b"NaN",
]
EXTREMES += [bytes([0x0A, 0xFB, *[0xFF] * 8, 0x01]), b'"\\ud800"', b"9" * 400, b",,,,", b"\r\n", b"null", b"\x00\x00"]
LONGEST = 2.0
"""Seconds for one value. They take milliseconds; the machine may be busy."""
VIEWS = pa.list_(pa.binary_view())
MOST_MEMORY = 300 * 2**20


def mutated(value: bytes, others: list[bytes], random: Random) -> bytes:
    """The value with a few changes, or other bytes."""
    if random.random() < 0.05:
        return random.randbytes(random.randrange(40))
    for _ in range(random.choice((1, 1, 1, 2, 4, 8))):
        start = random.randrange(len(value) + 1)
        end = min(len(value), start + random.choice((0, 1, 1, 2, 4, 8, 40)))
        new = random.choice(
            (
                b"",
                random.randbytes(end - start),
                bytes(byte ^ 1 << random.randrange(8) for byte in value[start:end]),
                random.choice(EXTREMES),
                value[start:end] * random.choice((2, 3, 50)),
                random.randrange(2**33).to_bytes(8, "little"),
                random.choice(others)[start:end],
            )
        )
        value = value[:start] + new + value[end:]
        if random.random() < 0.1:
            value = value[: random.randrange(len(value) + 1)]
    return value


def samples(name: str, made: Format) -> list[bytes]:
    """Good values to mutate."""
    found = [made.value(n) for n in (0, 1, 7, 10**6)]
    if name == "arrow":
        table = pa.table(
            {
                "name": pa.array(["a", "b", None]).dictionary_encode(),
                "n": [1, None, 2**40],
                "more": [[{"x": 1.5}], [], None],
                "pairs": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int32())),
            }
        )
        views = pa.table(
            {"name": pa.array(["a" * 20, None, "b"], pa.string_view()), "more": pa.array([[b"c"], [None], None], VIEWS)}
        )
        found += [
            arrow_stream(views),
            arrow_stream(table),
            arrow_stream(table, compression="zstd"),
            arrow_stream(table, compression="lz4"),
        ]
    return found


def fuzzed(name: str, count: int, seed: int) -> list[bytes]:
    random, good = Random(f"{name} {seed}"), samples(name, FORMATS[name])
    return [mutated(random.choice(good), good, random) for _ in range(count)]


def check_alone(name: str, values: list[bytes]) -> None:
    """Each value gives an object or a ValueError, and rows or a ValueError, in little time and memory."""
    made = FORMATS[name]
    objects, columns = values_of(made.decoder, Any), columns_of(made.decoder, made.schema)
    for value in values:
        begun = time.perf_counter()
        before = pa.total_allocated_bytes()
        with suppress(ValueError):
            objects.parse(value)
        table, errors = columns.parse(pa.array([value], pa.binary()), pa.array([FIRST]))
        table.validate(full=True)
        assert all(isinstance(error, ValueError | RowMismatch) for error in errors.values()), value
        assert errors.keys() <= {FIRST}
        assert pa.total_allocated_bytes() - before < MOST_MEMORY, value
        assert time.perf_counter() - begun < LONGEST, value


async def check_among_others(name: str, values: list[bytes], way: str, delivery: str) -> None:
    """Every second value of the batch is good and has a row. Each other value has the same result as alone."""
    made, handler = FORMATS[name], handlers(FORMATS[name].schema)[way]
    given = [part for n, value in enumerate(values) for part in (made.value(n), value)]
    outcome = await process(handler, made.decoder, given, delivery=delivery)
    failed = letters(outcome)
    rows = {number for table in outcome.tables for number in table["_sequence"].to_pylist()}
    numbers = range(FIRST, FIRST + len(given))
    assert rows >= set(numbers[::2])
    assert not rows & failed.keys()
    kinds = {letter["error"]["type"] for letter in failed.values()}
    assert all(letter["attempts"] == 1 for letter in failed.values())
    assert not kinds & {"KeyError", "RecursionError", "PanicException", "HandlerError", "HandlerMisuse"}, kinds
    for number, value in zip(numbers[1::2], values, strict=True):
        own = await process(handler, made.decoder, [value], delivery=delivery)
        [message] = [letter["error"] for letter in letters(own).values()] or [None]
        assert (message is None) == (number not in failed), value
        assert any(table.num_rows for table in own.tables) == (number in rows), value


@pytest.mark.parametrize("name", FORMATS)
def test_any_bytes_give_a_value_or_an_error(name: str) -> None:
    check_alone(name, fuzzed(name, 300, 1))


@pytest.mark.parametrize("delivery", ["at-least-once", "at-most-once"])
@pytest.mark.parametrize("way", handlers())
@pytest.mark.parametrize("name", FORMATS)
async def test_any_bytes_leave_their_neighbours_alone(name: str, way: str, delivery: str) -> None:
    await check_among_others(name, fuzzed(name, 12, 2), way, delivery)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 14))
@pytest.mark.parametrize("name", FORMATS)
async def test_any_bytes_of_many(name: str, seed: int) -> None:
    values = fuzzed(name, 5_000, seed)
    check_alone(name, values)
    for way in handlers():
        await check_among_others(name, values[:200], way, "at-least-once")

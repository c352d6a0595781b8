"""`SequenceHandler`: each sequence is processed once, as a whole, or becomes one dead letter."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import anyio
import pytest

from actorproc import Batch, PartitionContext, Record, SequenceHandler, Settings, WakeContext
from actorproc.errors import HandlerDefinitionError
from actorproc.simulation.clock import EPOCH, VirtualClock
from actorproc.simulation.loop import START, run
from actorproc.testing import run_handler
from tests.partition.world import World

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Orders(SequenceHandler):
    """A sequence is `key<`, `key...`, `key>`; the key is one character."""

    output_schema = "key string, values string, sequences array<bigint>"
    deadline = "60s"

    def key_of(self, record: Record) -> str:
        return record.text[0]

    def is_first(self, record: Record) -> bool:
        return "<" in record.text

    def is_last(self, record: Record) -> bool:
        return ">" in record.text

    def process_sequence(self, key: str, records: Batch, ctx: WakeContext) -> Any:
        return (key, " ".join(record.text for record in records), records.sequences)


def records(*values: str, step: float = 1) -> list[Record]:
    return at([step * index for index in range(len(values))], *values)


def at(seconds: Sequence[float], *values: str) -> list[Record]:
    """Records so many seconds after noon."""
    times = [NOON + timedelta(seconds=after) for after in seconds]
    made = Batch.of(
        "0", [value.encode() for value in values], range(len(values)), timestamps=times,
        keys=[b"k"] * len(values), headers=[[("h", value.encode())] for value in values],
    )  # fmt: skip
    return list(made)


def found(rows: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(row["key"], row["values"]) for row in rows]


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_sequences_of_several_keys_are_processed_whole_and_in_order(size: int) -> None:
    given = records("a<", "b<", "a1", "b>", "a2", "c<>", "a>", "b<")
    result = await run_handler(Orders, given, settings=Settings(max_batch_records=size))
    assert sorted(found(result.rows)) == [("a", "a< a1 a2 a>"), ("b", "b< b>"), ("c", "c<>")]
    assert not result.dead_letters
    assert result.states["sequences.open"] == {"b": ["0/7", 1, True, NOON + timedelta(seconds=67), 6]}
    assert result.timers == {("0/7", 1, "b"): NOON + timedelta(seconds=67)}


async def test_a_late_sequence_is_one_dead_letter_with_all_records() -> None:
    result = await run_handler(Orders, records("a<", "a1", "a2"), advance="59s")
    assert not result.rows
    (letter,) = result.dead_letters
    assert letter["error"]["type"] == "IncompleteSequence"
    assert "its last record did not come before the deadline" in letter["error"]["message"]
    assert (letter["sequence"], letter["value"]) == (2, "a2")
    assert [(r["sequence"], r["value"], r["headers"]) for r in letter["earlier"]] == [
        (0, "a<", [{"key": "h", "value": "a<"}]),
        (1, "a1", [{"key": "h", "value": "a1"}]),
    ]
    assert result.states == {}
    assert result.timers == {}


async def test_a_record_after_the_deadline_begins_in_the_middle() -> None:
    result = await run_handler(Orders, records("a<", "b<", "a>", step=70), advance="60s")
    assert {letter["value"]: letter["error"]["message"] for letter in result.dead_letters} == {
        "a<": "the sequence of 'a' is incomplete: its last record did not come before the deadline",
        "a>": "the sequence of 'a' is incomplete: its first record never came",
        "b<": "the sequence of 'b' is incomplete: its last record did not come before the deadline",
    }
    assert not result.rows


@pytest.mark.parametrize("size", [1, 1000])
async def test_a_record_right_at_the_deadline_is_too_late(size: int) -> None:
    given = at([0, 60, 60, 61], "a<", "b<", "a>", "b>")
    result = await run_handler(Orders, given, settings=Settings(max_batch_records=size))
    assert found(result.rows) == [("b", "b< b>")]
    assert sorted((letter["value"], "deadline" in letter["error"]["message"]) for letter in result.dead_letters) == [
        ("a<", True),
        ("a>", False),
    ]


@pytest.mark.parametrize("size", [1, 1000])
async def test_a_deadline_by_the_wall_clock_ignores_the_times_of_records(size: int) -> None:
    class Wall(Orders):
        deadline_clock = "wall"

    given, settings = at([0, 3600, 7200], "a<", "b<", "a>"), Settings(max_batch_records=size)
    result = await run_handler(Wall, given, settings=settings, advance="59s")
    assert found(result.rows) == [("a", "a< a>")]
    assert (len(result.dead_letters), list(result.timers)) == (0, [("0/1", 1, "b")])
    result = await run_handler(Wall, given, settings=settings, advance="61s")
    assert [letter["error"]["type"] for letter in result.dead_letters] == ["IncompleteSequence"]
    assert (result.states, result.timers) == ({}, {})


async def test_a_sequence_that_begins_in_the_middle_is_incomplete_with_its_records() -> None:
    result = await run_handler(Orders, records("a1", "b<", "a2", "a>", "b>"))
    assert found(result.rows) == [("b", "b< b>")]
    (letter,) = result.dead_letters
    assert letter["error"]["message"] == "the sequence of 'a' is incomplete: its first record never came"
    assert (letter["sequence"], [earlier["sequence"] for earlier in letter["earlier"]]) == (3, [0, 2])


async def test_a_second_first_record_ends_the_open_sequence() -> None:
    result = await run_handler(Orders, records("a<", "a1", "a<", "a>"))
    assert found(result.rows) == [("a", "a< a>")]
    (letter,) = result.dead_letters
    assert "the first record of another sequence came before its last" in letter["error"]["message"]
    assert letter["sequence"] == 1


async def test_on_incomplete_may_emit_instead() -> None:
    class Lenient(Orders):
        most_records: ClassVar[int] = 3

        def on_incomplete(self, key: str, records: Batch, why: str, ctx: WakeContext) -> Any:
            return (key, f"{len(records)}: {why}", None)

    result = await run_handler(Lenient, records("a1", "a>", "b<", "b1", "b2"))
    assert found(result.rows) == [
        ("a", "2: its first record never came"),
        ("b", "3: it has 3 records and no last one"),
    ]
    assert not result.dead_letters


class Small(Orders):
    most_bytes: ClassVar[int] = 100


@pytest.mark.parametrize("size", [1, 1000])
async def test_a_key_with_too_many_bytes_ends_its_sequence_alone(size: int) -> None:
    """With a value, its key and its header, a record of 40 characters has 82 bytes."""
    long, longest = "x" * 38, "y" * 500
    given = records("a<", "b<", f"a1{long}", "a2", f"a3{long}", "b>", f"c<{longest}>", "a>")
    result = await run_handler(Small, given, settings=Settings(max_batch_records=size))
    assert found(result.rows) == [("b", "b< b>"), ("c", f"c<{longest}>")]
    assert {letter["value"]: letter["error"]["message"] for letter in result.dead_letters} == {
        f"a3{long}": "the sequence of 'a' is incomplete: it has 176 bytes and no last record",
        "a>": "the sequence of 'a' is incomplete: its first record never came",
    }
    assert [len(letter.get("earlier") or []) for letter in result.dead_letters] == [3, 0]
    assert (result.states, result.timers) == ({}, {})


async def test_an_open_sequence_of_an_earlier_version_is_completed() -> None:
    class Earlier(Orders):
        def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for key, held in ctx.state("sequences.open").items():
                ctx.state("sequences.open").set(key, held[:4])
            super().process(batch, ctx)

    result = await run_handler(Earlier, records("a<", "a1", "a>"), settings=Settings(max_batch_records=1))
    assert found(result.rows) == [("a", "a< a1 a>")]


class Fails(Orders):
    calls: ClassVar[list[str]] = []

    def process_sequence(self, key: str, records: Batch, ctx: WakeContext) -> Any:
        self.calls.append(key)
        if key == "b" and len(self.calls) < 3:
            raise ConnectionError("away")
        return ("x", "y", 7) if key == "c" else super().process_sequence(key, records, ctx)


async def test_a_failing_sequence_is_retried_and_then_a_dead_letter() -> None:
    Fails.calls.clear()
    result = await run_handler(Fails, records("a<>", "b<", "c<", "c1", "b>", "c>"), settings=Settings(max_attempts=4))
    assert found(result.rows) == [("a", "a<>"), ("b", "b< b>")]
    (letter,) = result.dead_letters
    assert (letter["sequence"], len(letter["earlier"]), letter["error"]["type"]) == (5, 2, "RowMismatch")
    assert result.states == {}


async def test_process_sequence_may_be_async() -> None:
    class Awaits(Orders):
        async def process_sequence(self, key: str, records: Batch, ctx: WakeContext) -> Any:
            await anyio.sleep(0)
            return super().process_sequence(key, records, ctx)

    result = await run_handler(Awaits, records("a<", "b1", "a>", "b>"), advance="1h")
    assert found(result.rows) == [("a", "a< a>")]
    assert len(result.dead_letters) == 1


async def test_a_record_without_usable_key_is_a_dead_letter() -> None:
    result = await run_handler(Orders, [*records("a<"), b"\xff", *records("a>")])
    assert found(result.rows) == [("a", "a< a>")]
    assert [letter["sequence"] for letter in result.dead_letters] == [1]


@pytest.mark.parametrize("key", [None, 1.5, ["a"], {"a": 1}, 2**70, "\ud800"])
async def test_a_key_that_is_no_key_fails_its_record_alone(key: Any) -> None:
    class Odd(Orders):
        calls = 0

        def key_of(self, record: Record) -> str:
            Odd.calls += 1
            return key if record.text == "odd" else record.text[0]

    result = await run_handler(Odd, records("a<", "odd", "a1", "a>"), advance=61)
    assert found(result.rows) == [("a", "a< a1 a>")]
    assert [letter["value"] for letter in result.dead_letters] == ["odd"]
    assert Odd.calls == 4


async def test_a_key_that_fails_once_keeps_the_order() -> None:
    class Flaky(Orders):
        failed = False

        def key_of(self, record: Record) -> str:
            if record.text == "a1" and not Flaky.failed:
                Flaky.failed = True
                raise ConnectionError("away")
            return super().key_of(record)

    result = await run_handler(Flaky, records("a<", "a1", "a2", "a>"), advance=61)
    assert found(result.rows) == [("a", "a< a1 a2 a>")]
    assert not result.dead_letters


def test_a_sequence_whose_records_came_to_three_hosts_is_processed_once() -> None:
    class Wall(Orders):
        deadline_clock = "wall"

    async def main() -> None:
        world = World(Wall, clock=VirtualClock)
        for epoch, values in enumerate((["a<", "b<"], ["a1"], ["a>"], ["c<>"]), 1):
            world.source.append("0", [v.encode() for v in values], timestamp=datetime.fromtimestamp(EPOCH + START, UTC))
            async with world.running(10 * epoch):
                await anyio.sleep(1)  # and is killed before it commits
            await world.until_end(10 * epoch + 1)
        assert await world.columns("values") == ["a< a1 a>", "c<>"]
        assert await world.columns("sequences") == [[0, 6, 9], [12]]
        await anyio.sleep(100)
        await world.until_end(100)
        (entry,) = (await world.store.list(world.layout.dead_letters)).entries
        assert b"IncompleteSequence" in (await world.store.get(entry.key)).body  # type: ignore[union-attr]

    run(main())


@pytest.mark.parametrize(
    ("name", "value"),
    [("deadline", "soon"), ("deadline_clock", "moon"), ("most_records", 0), ("most_bytes", 0), ("most_bytes", "1k")],
)
def test_a_wrong_limit_is_refused(name: str, value: object) -> None:
    with pytest.raises(HandlerDefinitionError, match=f"Wrong.{name}"):
        type("Wrong", (Orders,), {name: value})

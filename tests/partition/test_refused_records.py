"""Records that a source refuses: each becomes a dead letter with the reason, and the handler sees all other records."""

from __future__ import annotations

import pickle
from collections.abc import AsyncGenerator

import orjson
import pyarrow as pa
import pytest
import structlog

from actorproc.records import Batch
from actorproc.sources.guard import GuardedSource
from actorproc.sources.protocol import Chunk
from actorproc.testing.memory_source import MemorySource
from tests.partition.running import Doubler, Run, column, numbers
from tests.partition.world import World

REASON = "header 'x' is not UTF-8"


def reasons(batch: Batch) -> list[str | None] | None:
    return None if batch.refused is None else batch.refused.to_pylist()


class Odd(MemorySource):
    """Refuses each record whose number ends in 7."""

    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        async for chunk in super().read(partition, position):
            values = chunk.batch.values
            chunk.batch.refusing({i: REASON for i, value in enumerate(values) if value and value.endswith(b"7")})
            yield chunk


@pytest.mark.parametrize("delivery", ["at-least-once", "at-most-once"])
@pytest.mark.parametrize("page", [1, 3, 1000])
async def test_refused_records_fail_alone(delivery: str, page: int) -> None:
    world = World(page=page, delivery=delivery)
    world.source = Odd(1, page=page, step=3)
    world.feed(40)
    await world.until_end(1)
    assert await world.rows() == list(range(0, 40, 2))
    assert sorted(await world.letters()) == [5, 7, 15, 17, 25, 27, 35, 37]


async def test_a_refused_record_becomes_a_letter_without_an_attempt() -> None:
    handler = Doubler()
    outcome = await Run(handler)(numbers(1, b"odd", 3).refusing({1: REASON}))
    assert handler.seen == [[1, 3]]
    assert column(outcome, "n") == [1, 3]
    letter = orjson.loads(outcome.letters[101])
    assert (letter["value"], letter["attempts"]) == ("odd", 0)
    assert letter["error"] == {"type": "UnreadableRecord", "message": REASON, "traceback": None}


async def test_a_batch_of_refused_records_never_calls_the_handler() -> None:
    handler = Doubler()
    outcome = await Run(handler)(numbers(1, 2).refusing({0: REASON, 1: "\ud800"}))
    assert (handler.seen, list(outcome.letters)) == ([], [100, 101])


async def test_a_refused_record_at_the_end_does_not_hold_up_a_commit_of_the_handler() -> None:
    class Commits(Doubler):
        async def process(self, batch: Batch, ctx: object) -> None:
            await super().process(batch, ctx)  # type: ignore[arg-type]
            await ctx.commit()  # type: ignore[attr-defined]

    run, batch = Run(Commits()), numbers(1, 2, 3, 4).refusing({1: REASON, 3: REASON})
    outcome = await run(batch)
    assert run.saved == [([1, 3], [101], 102)]
    assert list(outcome.letters) == [103]
    assert run.processor.asked_for(batch, all_committed=False) == 103


def test_reasons_stay_with_their_records() -> None:
    batch = numbers(0, 1, 2, 3).refusing({1: "one", 3: "three"})
    again = pickle.loads(pickle.dumps(Batch.joined([batch[:2], numbers(9), batch[2:]])))
    assert reasons(again) == [None, "one", None, None, "three"]
    assert reasons(batch[2:].take([1])) == ["three"]
    assert reasons(batch[:1]) is None
    assert batch.numbered(pa.array([5, 6, 7, 8])).without_refused()[1] == {6: "one", 8: "three"}


def test_a_refused_record_stays_refused_when_others_are() -> None:
    batch = numbers(0, 1, 2)
    assert batch.refusing({1: "one", 2: "two"}) is batch
    assert reasons(batch.refusing({})) == [None, "one", "two"]
    assert reasons(batch.refusing({0: "zero", 2: "again"})) == ["zero", "one", "again"]


@pytest.mark.parametrize("index", [3, -1, -4])
def test_a_record_that_does_not_exist_is_not_refused(index: int) -> None:
    batch = numbers(0, 1, 2).refusing({1: "one"})
    with pytest.raises(IndexError):
        batch.refusing({0: "zero", index: "none"})
    assert reasons(batch) == [None, "one", None]


async def test_a_guarded_source_may_refuse_records() -> None:
    source = Odd(1, page=10)
    source.append("0", [b"7", b"8"])
    async for chunk in GuardedSource(source, structlog.get_logger()).read("0", "0"):
        assert reasons(chunk.batch) == [REASON, None]
        break

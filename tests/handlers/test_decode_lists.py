"""`ctx.decode_lists`: values in lists; one that does not decode fails its record alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from actorproc import Batch, PartitionContext, PartitionHandler
from tests.handlers.running import run


class Event(msgspec.Struct):
    n: int


class Lists(PartitionHandler):
    output_schema = "n bigint, beside bigint"
    kind: Any = Event

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for records, events in ctx.decode_lists(batch, self.kind):
            assert len(records) == len(events) <= 512
            ctx.emit_each(records, [(e.n, len(events)) for e in events])


def values(count: int) -> list[bytes | None]:
    return [b'{"n": %d}' % n for n in range(count)]


async def test_each_record_has_the_row_of_its_value() -> None:
    result = await run(Lists, values(1_500))
    assert [(row["_sequence"], row["n"]) for row in result.rows] == [(100 + n, n) for n in range(1_500)]
    assert {row["beside"] for row in result.rows} == {512, 1_500 - 2 * 512}


@pytest.mark.parametrize("bad", [b"{", b'{"n": "x"}', None, b"[" * 5_000])
async def test_a_value_that_does_not_decode_fails_alone(bad: bytes | None) -> None:
    given = values(1_500)
    given[600] = bad
    result = await run(Lists, given)
    assert [row["n"] for row in result.rows] == [n for n in range(1_500) if n != 600]
    assert list(result.letters) == [700]


async def test_a_row_that_fails_is_found_among_its_list() -> None:
    class Failing(Lists):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for records, events in ctx.decode_lists(batch, Event):
                ctx.emit_each(records, [(1_000 // (e.n - 7), 0) for e in events])

    result = await run(Failing, values(600))
    assert list(result.letters) == [107]
    assert len(result.rows) == 599

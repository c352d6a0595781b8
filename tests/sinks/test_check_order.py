"""`check_sink` notices rows that come in another order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from actorproc.sinks.protocol import Delivery
from actorproc.testing import check_sink
from actorproc.testing.sink_check import InvalidSink
from tests.sinks.memory_sink import Database, MemorySink


class Reversed(MemorySink):
    """Puts the rows of each delivery before those that are there."""

    async def write(self, delivery: Delivery) -> None:
        before = len(self.database.rows)
        await super().write(delivery)
        rows = self.database.rows
        rows[:] = rows[before:] + rows[:before]


async def check(kind: type[MemorySink], *, ordered: bool) -> None:
    database = Database()

    async def rows() -> Sequence[int]:
        return [n for _, n in database.rows]

    await check_sink(lambda: kind(database), rows, ordered=ordered)


async def test_another_order_is_found() -> None:
    with pytest.raises(InvalidSink, match="comes after row"):
        await check(Reversed, ordered=True)


async def test_the_order_counts_only_if_it_is_asked_for() -> None:
    await check(Reversed, ordered=False)
    await check(MemorySink, ordered=True)

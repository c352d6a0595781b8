"""Sinks that may lose their positions and keep the rows, as the brokers of Kafka do after a week."""

from __future__ import annotations

from typing import ClassVar

import pytest

from actorproc.admin import sinks as operate
from tests.sinks.memory_sink import MemorySink
from tests.sinks.test_delivery import LAYOUT
from tests.sinks.test_ordered import Split, story


class Forgetful(MemorySink):
    ordered: ClassVar[bool] = True
    forgets: ClassVar[bool] = True


@pytest.mark.parametrize("splits", [False, True])
def test_a_lost_position_repeats_nothing(splits: bool) -> None:
    async def work(world: Split) -> None:
        world.add("0", 20)
        await world.until_end(kind=Forgetful)
        world.database.positions.clear()
        world.add("1" if splits else "0", 20)
        await world.until_end(kind=Forgetful)
        assert world.is_exact

    story(work)


def test_a_redelivery_counts_although_the_position_is_lost() -> None:
    async def work(world: Split) -> None:
        world.add("0", 20)
        await world.until_end(kind=Forgetful)
        await operate.deliver_again(world.store, LAYOUT, "db", 0)
        world.database.positions.clear()
        await world.until_end(kind=Forgetful)
        assert len(world.database.rows) == 40

    story(work)


def test_a_sink_that_keeps_positions_begins_anew_without_one() -> None:
    async def work(world: Split) -> None:
        world.add("0", 20)
        await world.until_end(kind=MemorySink)
        world.database.positions.clear()
        await world.until_end(kind=MemorySink)
        assert len(world.database.rows) == 40

    story(work)

"""An Iceberg table that several processors feed, or that somebody has filled: rows of others stay."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from actorproc import Processor
from actorproc.admin import sinks as operate
from actorproc.admin.compact import compact
from actorproc.admin.verify import verify
from actorproc.config.settings import Settings
from actorproc.errors import ActorprocError, UsageError
from actorproc.sinks.entries import delete_sink
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store
from actorproc.testing.memory_source import MemorySource
from tests.connectors.iceberg.catalogs import Copy, World, sqlite_world

SHARED = ("default", "shared")


class Feeder:
    """A processor that feeds the shared table with the numbers from `base` on."""

    def __init__(self, world: World, name: str, base: int) -> None:
        self.world, self.name, self.base, self.fed = world, name, base, 0
        self.source = MemorySource(2)
        self.sinks: dict[str, Any] = {"lake": {**world.sinks["lake"], "table": ".".join(SHARED)}}
        self.layout = ProcessorLayout(name)

    async def process(self, count: int) -> None:
        for n in range(self.fed, self.fed + count):
            self.source.append(str(n % 2), [str(self.base + n).encode()])
        self.fed += count
        host = Processor(
            Copy, source=self.source, container=self.world.container, name=self.name, host="a", sinks=self.sinks,
            commit_interval=1000, max_batch_records=5, commit_rows=5, store_patience=1,
        )  # fmt: skip
        await host.run(until_end=True)

    @property
    def expected(self) -> Counter[int]:
        return Counter(range(self.base, self.base + self.fed))

    async def damages(self) -> list[str]:
        async with open_store(self.world.container) as store:
            return [damage.what for damage in (await verify(store, self.layout, sinks=self.sinks)).damages]

    async def repair(self, **options: Any) -> None:
        async with open_store(self.world.container) as store:
            await operate.repair(store, self.layout, "lake", self.sinks, **options)

    async def shown(self) -> str:
        async with open_store(self.world.container) as store:
            (found,) = await operate.read_sinks(store, self.layout)
            return found.state

    async def forget(self) -> None:
        async with open_store(self.world.container) as store:
            await delete_sink(store, self.layout, "lake")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return sqlite_world(tmp_path)


def rows(world: World) -> Counter[int]:
    return Counter(world.catalog().load_table(SHARED).scan().to_arrow()["n"].to_pylist())


async def fill(world: World, count: int) -> Counter[int]:
    """Rows that somebody has put into the table before: -1. It has no property of ours."""
    await world.process(0)
    like = world.table()
    table = world.catalog().create_table(SHARED, like.schema(), partition_spec=like.spec())
    _append(table, count)
    return Counter({-1: count})


def _append(table: Any, count: int) -> None:
    schema = table.schema().as_arrow()
    given = {"n": [-1] * count, "_sequence": list(range(count)), "partition": ["0"] * count}
    columns = [pa.array(given.get(field.name, [None] * count), field.type) for field in schema]
    table.append(pa.table(columns, schema))


async def test_a_processor_that_begins_to_feed_a_table_leaves_the_rows_of_another(world: World) -> None:
    alpha, beta = Feeder(world, "Alpha", 0), Feeder(world, "Beta", 1000)
    await alpha.process(20)
    await beta.process(30)
    await alpha.process(20)
    assert rows(world) == alpha.expected + beta.expected
    await compact(container=world.container, name="Beta", older_than=0, settings=Settings.load(sinks=beta.sinks))
    await beta.process(20)
    assert rows(world) == alpha.expected + beta.expected
    assert await alpha.damages() == await beta.damages() == []


async def test_rows_that_were_in_the_table_before_its_first_registration_stay(world: World) -> None:
    before = await fill(world, 5)
    alpha = Feeder(world, "Alpha", 0)
    for _ in range(2):
        await alpha.process(20)
        assert rows(world) == alpha.expected + before


async def test_a_repair_leaves_the_rows_of_another_processor(world: World) -> None:
    alpha, beta = Feeder(world, "Alpha", 0), Feeder(world, "Beta", 1000)
    await alpha.process(20)
    await beta.process(20)
    await beta.repair(others="remove")
    assert rows(world) == alpha.expected + beta.expected
    await beta.forget()
    await beta.process(20)
    assert rows(world) == alpha.expected + beta.expected


@pytest.mark.parametrize(("others", "stay"), [("keep", 5), ("remove", 0)])
async def test_a_repair_refuses_rows_that_may_be_of_others_until_it_is_told_what_becomes_of_them(
    world: World, others: str, stay: int
) -> None:
    before = await fill(world, 5)
    alpha = Feeder(world, "Alpha", 0)
    await alpha.process(20)
    with pytest.raises(UsageError, match=r"names files in partition 0 that are not in the folder of this processor"):
        await alpha.repair()
    await alpha.process(20)
    assert rows(world) == alpha.expected + before, "the refused repair has changed nothing"
    await alpha.repair(others=others)
    assert rows(world) == alpha.expected + Counter({-1: stay})
    assert await alpha.shown() == "up to date"


async def test_a_table_that_is_registered_again_refuses_rows_that_may_be_of_others(world: World) -> None:
    before = await fill(world, 5)
    alpha = Feeder(world, "Alpha", 0)
    await alpha.process(20)
    expected = alpha.expected
    await alpha.forget()
    with pytest.raises(ActorprocError, match=r"with `--others remove` removes them"):
        await alpha.process(20)
    assert await alpha.shown() == "refusing"
    assert rows(world) == expected + before
    await alpha.repair(others="keep")
    assert rows(world) == alpha.expected + before

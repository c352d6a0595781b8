"""The Delta table of a processor in virtual time: compaction, trims, schemas, registrations."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import anyio
import pyarrow.parquet as pq
import pytest

from actorproc import Batch, PartitionContext, PartitionHandler, Processor
from actorproc.admin.fleet_watch import FleetWatch
from actorproc.admin.resets import Resets
from actorproc.admin.trim import plan_trim
from actorproc.admin.verify import verify
from actorproc.config.settings import Settings
from actorproc.connectors.delta import DeltaTable
from actorproc.errors import SettingsError, UsageError
from actorproc.host.reporting import reports_of_tables, sink_errors
from actorproc.output.compaction import sweep
from actorproc.retention.boundary import read_boundary
from actorproc.retention.readers import Reader, register
from actorproc.runtime.nudge import Nudges
from actorproc.sinks.entries import delete_sink, pause_sink
from actorproc.sinks.tables.committer import TableStatistics
from actorproc.sinks.tables.open_tables import OpenTables
from actorproc.sinks.tables.protocol import TableSnapshot
from actorproc.testing import MemorySource
from tests.connectors.delta.world import LAYOUT, Copy, World, an_hour, story


class More(PartitionHandler):
    """As Copy, with one more column."""

    output_schema = "n long, half double"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, {"n": record.json(), "half": record.json() / 2})


async def commit(tables: OpenTables) -> None:
    await tables.catch_up()


def test_a_run_leaves_the_table_complete_and_its_log_short() -> None:
    async def work(world: World) -> None:
        for _ in range(25):
            await world.until_end(feed=9)
        await world.check()
        log = await world.objects(f"{LAYOUT.output}_delta_log/")
        assert len([key for key in log if key.endswith(".checkpoint.parquet")]) == 2
        assert (await world.state()).version == 25

    story(work)


def test_a_table_with_columns_that_were_added_has_them() -> None:
    async def work(world: World) -> None:
        await world.until_end(feed=9)
        await world.until_end(feed=9, handler=More)
        await world.check()
        names = [(field["name"], field["nullable"]) for field in (await world.state()).fields]
        assert names == [("n", True), ("_sequence", False), ("partition", True), ("half", True)]

    story(work)


def test_compacted_files_take_the_place_of_originals_without_new_rows() -> None:
    async def work(world: World) -> None:
        for _ in range(6):
            await world.until_end(feed=9)
        before = await world.state()
        assert await world.compact() == 3
        await world.with_tables(commit)
        after = await world.state()
        await world.check()
        assert len(after.adds) < len(before.adds)
        assert sum("_compacted" in path for path in after.adds) == 3
        entry = await world.store.get(f"{LAYOUT.output}_delta_log/{after.version:020}.json")
        assert entry is not None
        assert b'"dataChange":true' not in entry.body
        assert b'"OPTIMIZE"' in entry.body

    story(work)


def test_a_trim_takes_files_out_of_the_table_and_deletes_them_an_hour_later() -> None:
    """A reader that holds a version of before finds all of its files for an hour."""

    async def work(world: World) -> None:
        for _ in range(6):
            await world.until_end(feed=9)
        await an_hour()
        held = await world.state()
        await world.trim()
        rest = await world.rows()
        assert set(rest) < set(range(54))
        assert await world.rows(held) == list(range(54))
        await an_hour()
        await world.trim()
        with pytest.raises(AssertionError, match="which is missing"):
            await world.rows(held)
        assert await world.rows() == rest

    story(work)


def test_a_trim_waits_for_the_table() -> None:
    async def work(world: World) -> None:
        await world.until_end(feed=9)
        await pause_sink(world.store, LAYOUT, "table", paused=True)
        for _ in range(6):
            await world.until_end(feed=9)
        await an_hour()
        planned = await plan_trim(world.retained, Settings())
        assert {found.hold.why for found in planned.partitions} == {"sink table gets 1 next"}
        assert all(found.upto <= 1 for found in planned.partitions)

    story(work)


def test_originals_and_replaced_files_are_deleted_once_no_reader_of_the_last_hour_holds_them() -> None:
    async def work(world: World) -> None:
        for _ in range(6):
            await world.until_end(feed=9)
        await register(world.store, LAYOUT.readers, Reader.at("slow", dict.fromkeys(world.partitions, 0)))
        held = await world.state()
        await world.compact()
        await anyio.sleep(1800)
        await world.trim()
        assert await world.rows(held) == list(range(54))
        await an_hour()
        await world.trim()
        originals = await world.objects(LAYOUT.output_dir("0"))
        assert len(originals) < 6
        await world.check()

    story(work)


def test_a_sweep_spares_compacted_files_that_the_table_names() -> None:
    async def work(world: World) -> None:
        for _ in range(4):
            await world.until_end(feed=9)
        await world.compact()
        await world.with_tables(commit)
        for _ in range(8):
            await world.until_end(feed=90)
        held = await world.state()
        assert await world.compact()

        async def swept(tables: OpenTables) -> int:
            kept = await tables.kept()
            return sum([len(await sweep(world.store, LAYOUT, p, 0, kept)) for p in world.partitions])

        assert await world.with_tables(swept) == 0  # a reader may hold the version of before
        await world.rows(held)
        await an_hour()
        assert await world.with_tables(swept) == 3
        await world.check()

    story(work)


def test_a_table_that_cannot_be_opened_refuses_a_trim() -> None:
    async def work(world: World) -> None:
        await world.until_end(feed=9)
        settings = Settings.load(sinks={"table": {"url": "delta", "interval": 0}})
        with pytest.raises(UsageError, match=r"table table \(delta\) cannot be asked which files it names: .*interval"):
            await plan_trim(world.retained, settings)
        other = Settings.load(sinks={"table": "sqlite:x.db"})
        with pytest.raises(UsageError, match=r"the settings have sqlite:.*x.db under this name"):
            await plan_trim(world.retained, other)

    story(work)


def test_a_trim_says_which_table_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of a catalog may die after the table was opened; its client has errors of its own."""

    async def fails(self: DeltaTable) -> TableSnapshot:
        raise OSError("the server has gone")

    async def work(world: World) -> None:
        await world.until_end(feed=10)
        monkeypatch.setattr(DeltaTable, "load", fails)
        with pytest.raises(UsageError, match="table table: OSError: the server has gone"):
            await world.trim()

    story(work)


@pytest.mark.slow
def test_old_entries_of_the_log_are_deleted() -> None:
    async def work(world: World) -> None:
        async with world.host(history=3600):
            for _ in range(200):
                world.feed(3)
                await anyio.sleep(60)
        await world.check()
        version = (await world.state()).version
        log = await world.objects(f"{LAYOUT.output}_delta_log/")
        assert version > 190
        assert 60 < len([key for key in log if key.endswith(".json")]) < 140

    story(work)


def test_a_container_that_was_restored_does_not_change_the_table() -> None:
    async def work(world: World) -> None:
        for _ in range(3):
            await world.until_end(feed=9)
        await world.store.delete(LAYOUT.output_file("0", 2))
        await world.store.delete(LAYOUT.checkpoint("0"))
        with pytest.raises(Exception, match="has another commit 2 in partition 0"):
            await world.until_end(feed=9)
            await plan_trim(world.retained, Settings())

    story(work)


def test_a_deleted_sink_keeps_nothing_and_comes_back_as_what_the_chain_has() -> None:
    async def work(world: World) -> None:
        for _ in range(6):
            await world.until_end(feed=9)
        await delete_sink(world.store, LAYOUT, "table")
        await an_hour()
        await world.trim()
        await world.until_end(feed=9)
        originals = 0
        for partition in world.partitions:
            lowest = (await read_boundary(world.store, LAYOUT.boundary(partition))).lowest
            for key in await world.objects(LAYOUT.output_dir(partition)):
                if int(key[-28:-8]) >= lowest:
                    stored = await world.store.get(key)
                    assert stored is not None
                    originals += pq.read_table(io.BytesIO(stored.body)).num_rows
        assert len(await world.rows()) == originals < world.fed

    story(work)


@pytest.mark.parametrize(
    ("schema", "why"),
    [("`a b` long", "cannot have ' ' in the name"), ("s struct<`x;y`: long>", "cannot have ';' in the name")],
)
def test_columns_that_delta_does_not_have_are_refused_at_the_start(schema: str, why: str) -> None:
    class Odd(Copy):
        output_schema = schema

    async def work(world: World) -> None:
        with pytest.raises(UsageError, match=why):
            await world.until_end(handler=Odd)

    story(work)


def test_another_place_than_the_output_is_refused() -> None:
    async def work(world: World) -> None:
        with pytest.raises((UsageError, SettingsError), match="write `delta`"):
            world.host(url="delta:/somewhere")

    story(work)


def test_a_processor_with_a_table_is_made_before_the_event_loop(tmp_path: Path) -> None:
    assert Processor(Copy, source=MemorySource(1), container=tmp_path, sinks={"table": "delta"})


async def reset(world: World, to: int, partition: str) -> None:
    resets = Resets(world.store, LAYOUT, Settings(), world.source, "ann", nudges=Nudges())
    (done,) = await resets.carry_out(await resets.plan(to, [partition]), {})
    assert not done.refusal


@pytest.mark.parametrize("compacted", [False, True])
def test_after_a_reset_rows_come_again_or_take_the_place_of_those_before(compacted: bool) -> None:
    """A file that has rows of both sides of the reset is replaced by a copy."""

    async def work(world: World, on_reset: str) -> None:
        for count in (9, 30, 30, 9):
            await world.until_end(feed=count, on_reset=on_reset)
        if compacted:
            assert await world.compact()
        await reset(world, 7, "0")
        await world.until_end(feed=9, on_reset=on_reset)
        await reset(world, 5, "0")
        await reset(world, 3, "0")
        await world.until_end(feed=9, on_reset=on_reset)
        rows = Counter(await world.rows())
        repeated = {n for n in rows if rows[n] > 1}
        assert set(rows) == set(range(world.fed))
        assert bool(repeated) == (on_reset == "repeat")
        if compacted:
            assert await world.compact()
            await world.until_end(feed=9, on_reset=on_reset)
            assert {n for n, count in Counter(await world.rows()).items() if count > 1} == repeated
        await an_hour()
        await world.with_tables(commit)
        assert (await verify(world.store, LAYOUT)).damages == []

    for on_reset in ("repeat", "replace"):
        story(work, on_reset)


def test_hosts_report_the_table_to_operators() -> None:
    async def work(world: World) -> None:
        async with world.host(interval=1):
            world.feed(9)
            await anyio.sleep(60)
            well = (await FleetWatch(world.store, LAYOUT, 60.0).look()).sinks
        assert [(sink.name, sink.states) for sink in well] == [("table", {"running": 1})]
        failing = TableStatistics("table", "failing", 4, 20, 61.23, error="away", error_since=3.5)
        (report,) = reports_of_tables([failing, TableStatistics("another's")])
        assert (report.name, report.state, report.error_since) == ("table", "failing", 3)
        assert (report.commits, report.rows, report.seconds) == (4, 20, 61.2)
        assert sink_errors([], [failing]) == {"table": "away"}

    story(work)

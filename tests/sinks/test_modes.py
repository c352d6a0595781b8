"""Modes of delivery: columns, `where`, upsert, replacing after resets, refused rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from random import Random
from typing import Any

import anyio
import pyarrow as pa
import pytest

from actorproc import Batch, PartitionContext, PartitionHandler, Processor
from actorproc.admin import sinks as operate
from actorproc.admin.resets import Resets
from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.output.chain import OutputChain
from actorproc.output.checkpoint import read_checkpoint
from actorproc.output.compaction import merge, plan, switch
from actorproc.output.follower import ChainFollower
from actorproc.output.schema_document import read_schema
from actorproc.records import SEQUENCE
from actorproc.runtime.nudge import Nudges
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.sinks.commit_rows import StoredCommits
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource
from tests.sinks.memory_modes import Row, Table, TableSink

LAYOUT = ProcessorLayout("Copy")
UPSERT = {"mode": "upsert", "key": ("root", "key"), "deleted": "gone"}
QUICK = {
    "lease_acquire_interval": 2, "lease_renew_interval": 1, "lease_expiration_interval": 8, "rebalance_delay": 1,
}  # fmt: skip


class World:
    """A stream of numbers. Each row says when it was made, so that a repeated record has another row."""

    def __init__(self, partitions: int = 2, **sink: Any) -> None:
        self.source = MemorySource(partitions, step=3)
        clock = VirtualClock("store")
        self.store = Store(MemoryStore(clock=clock), clock=clock)
        self.table, self.sink = Table(), sink
        self.roots = {str(number): str(number) for number in range(partitions)}
        self.fed, self.hosts, self.made = 0, 0, count()

    def feed(self, number: int) -> None:
        """More records. Each key is in one partition at a time."""
        for n in range(self.fed, self.fed + number):
            roots = sorted({*self.roots.values()})
            living = [name for name in sorted(self.roots) if self.roots[name] == roots[n % len(roots)]]
            self.source.append(living[n // 2 % 5 % len(living)], [str(n).encode()])
        self.fed += number

    def split(self, parent: str, *children: str) -> None:
        root = self.roots.pop(parent)
        for child in children:
            self.source.add_partition(child, [parent])
            self.roots[child] = root

    def host(self, **options: Any) -> Processor:
        world = self

        class Copy(PartitionHandler):
            output_schema = "root string, key long, gone boolean, made long"

            async def process(self, batch: Batch, ctx: PartitionContext) -> None:
                for record in batch:
                    n = record.json()
                    if n % 11:  # some records have no row
                        made = next(world.made)
                        ctx.emit(
                            record, {"root": ctx.partition[0], "key": n // 2 % 5, "gone": n % 7 == 0, "made": made}
                        )

        self.hosts += 1
        name = f"host-{self.hosts}"
        sink = TableSink(self.table, {**self.sink, **options.pop("sink", {})})
        return Processor(
            Copy, source=self.source, container=self.store, name="Copy", host=name, clock=VirtualClock(name),
            nudges=Nudges(), sinks={"db": sink}, commit_interval=1, **options,
        )  # fmt: skip

    async def until_end(self, **options: Any) -> None:
        await self.host(**options).run(until_end=True)

    async def reset(self, to: int, *partitions: str) -> None:
        resets = Resets(self.store, LAYOUT, Settings(), self.source, "ann", nudges=Nudges())
        await resets.carry_out(await resets.plan(to, partitions), {})

    async def commits(self, partition: str) -> list[tuple[int | None, list[Row]]]:
        """Of each commit: to which sequence it goes back, and its rows."""
        chain = OutputChain(self.store, LAYOUT, partition)
        schema = pa.schema([("made", pa.int64()), ("_sequence", pa.int64())])
        follower = ChainFollower(self.store, LAYOUT, partition)
        stored, found = (
            StoredCommits(follower, schema, self.store.clock, anyio.CapacityLimiter(1), every=False),
            list[tuple[int | None, list[Row]]](),
        )
        while (commit := await chain.read(len(found))) is not None:
            rows = await stored.since(len(found), 1)
            assert rows is not None
            made = zip(rows.rows["_sequence"].to_pylist(), rows.rows["made"].to_pylist(), strict=True)
            number = len(found)
            back = commit.next.sequence if commit.reset and commit.reset.back else None
            found.append((back, [Row(self.home, partition, number, *each) for each in made]))
        return found

    async def compact(self, partition: str) -> None:
        """Merge all commits of a partition into one file, and again with the next ones."""
        schema = pa.schema([*(await read_schema(self.store, LAYOUT) or ()), SEQUENCE])
        plans = await plan(self.store, LAYOUT, [partition], target_size=2**27, older_than=0)
        merged = [await merge(self.store, LAYOUT, group, schema) for group in plans[0].groups]
        assert await switch(self.store, LAYOUT, plans[0], [made for some in merged for made in some or ()])

    @property
    def home(self) -> str:
        return f"{self.store.url.rstrip('/')}/Copy"

    async def all_rows(self, *, replaced: bool) -> Counter[Row]:
        """The rows that the chains lead to."""
        found = Counter[Row]()
        for partition in self.source._parents:
            rows = list[Row]()
            for back, more in await self.commits(partition):
                if replaced and back is not None:
                    rows = [row for row in rows if row.sequence <= back]
                rows += more
            found.update(rows)
        return found

    async def newest(self) -> dict[tuple[Any, ...], int]:
        """`made` of the newest row of each key that was not deleted by it."""
        found = dict[tuple[Any, ...], tuple[int, int, int, bool]]()
        for partition in self.source._parents:
            checkpoint = await read_checkpoint(self.store, LAYOUT, partition)
            depth = 0 if checkpoint is None else checkpoint.depth
            for number in range(len(await self.commits(partition))):
                file = await ChainFollower(self.store, LAYOUT, partition).file(number, _no_wait)
                assert file is not None
                table = pa.parquet.read_table(pa.BufferReader(file.body))
                for row in table.to_pylist():
                    new = (depth, number, row["made"], row["gone"])
                    key = (row["root"], row["key"])
                    found[key] = max(new, found.get(key, new))
        return {key: made for key, (_, _, made, gone) in found.items() if not gone}


async def _no_wait(size: int) -> None:
    pass


def story(work: Callable[[World], Awaitable[None]], **sink: Any) -> None:
    async def main() -> None:
        await work(World(**sink))

    run(main())


def test_columns_and_where_choose_what_a_sink_gets() -> None:
    async def work(world: World) -> None:
        world.feed(100)
        await world.until_end()
        (first, *_) = world.table.deliveries
        assert first.rows.schema.names == ["made", "key", "_sequence"]
        keys = [key for delivery in world.table.deliveries for key in delivery.rows["key"].to_pylist()]
        expected = Counter(n // 2 % 5 for n in range(100) if n % 11 and n // 2 % 5 > 2)
        assert Counter(keys) == expected

    story(work, columns="made, key", where="key > 2 AND root IN ('0', '1')")


def test_a_commit_without_matching_rows_moves_the_position() -> None:
    async def work(world: World) -> None:
        world.feed(100)
        await world.until_end()
        assert world.table.rows == []
        assert {row.position for row in world.table.positions.values()} == {1}

    story(work, where="made < 0")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            {"columns": "made, kee"},
            "columns: the output has no column 'kee'; did you mean key? (it has root, key, gone, made)",
        ),
        ({"mode": "upsert", "key": "root, gon"}, "key: the output has no column 'gon'; did you mean gone?"),
        ({"mode": "upsert", "key": "key", "deleted": "made"}, "deleted: made is int64, not boolean"),
        ({"mode": "upsert", "key": "key", "columns": "made"}, "key: key must be among the columns of the sink"),
        ({"where": "made >"}, "where = made >: "),
        ({"where": "nope = 1"}, "where = nope = 1: "),
        ({"where": "root"}, "where = root: "),
        ({"where": "key > 1) OR (1 = 1"}, "where = key > 1) OR (1 = 1: "),
        ({"where": "made = (SELECT max(n) FROM read_csv('/etc/passwd'))"}, "must not contain a query of its own"),
        ({"where": "random() < 0.5"}, "random changes from one delivery to the next"),
        ({"where": "now() > TIMESTAMP '2020-01-01'"}, "now changes from one delivery to the next"),
        ({"where": "current_date > DATE '2020-01-01'"}, "current_date changes from one delivery to the next"),
    ],
)
def test_options_that_do_not_fit_the_output_are_refused_at_the_start(options: dict[str, Any], why: str) -> None:
    async def work(world: World) -> None:
        world.feed(10)
        with pytest.raises(UsageError) as refused:
            await world.until_end()
        assert why in str(refused.value)
        assert str(refused.value).startswith("sink db: ")
        assert "\n" not in str(refused.value)
        assert await read_checkpoint(world.store, LAYOUT, "0") is None

    story(work, **options)


def test_a_sink_that_cannot_do_what_is_asked_is_refused() -> None:
    async def work(world: World) -> None:
        class Plain(TableSink):
            can = frozenset()

        for options in (UPSERT, {"on_reset": "replace"}, {"on_refused": "keep"}):
            processor = Processor(
                _Nothing, source=world.source, container=world.store, name="Copy", host="x", clock=VirtualClock("x"),
                nudges=Nudges(), sinks={"db": Plain(world.table, options)},
            )  # fmt: skip
            with pytest.raises(UsageError, match="this sink cannot do"):
                await processor.run(until_end=True)

    story(work)


class _Nothing(PartitionHandler):
    output_schema = "root string, key long, gone boolean, made long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        pass


@pytest.mark.parametrize("on_reset", ["repeat", "replace"])
def test_rows_that_a_reset_repeats_come_again_or_replace_the_others(on_reset: str) -> None:
    async def work(world: World) -> None:
        for _ in range(3):
            world.feed(40)
            await world.until_end()
        await world.reset(-20 * 3, "0")
        await world.until_end()
        assert Counter(world.table.rows) == await world.all_rows(replaced=on_reset == "replace")
        assert len(world.table.rows) < 120 if on_reset == "replace" else len(world.table.rows) > 110

    story(work, on_reset=on_reset)


def test_a_reset_begins_its_delivery() -> None:
    async def work(world: World) -> None:
        for _ in range(3):
            world.feed(40)
            await world.until_end()
        await world.reset(0, "0")
        world.feed(40)
        world.table.positions.clear()
        world.table.rows.clear()
        await operate.delete(world.store, LAYOUT, "db")
        world.table.deliveries.clear()
        await world.until_end()
        resets = [n for n, (back, _) in enumerate(await world.commits("0")) if back is not None]
        begun = [d.since for d in world.table.deliveries if d.partition == "0"]
        assert resets
        assert set(resets) <= set(begun)
        assert Counter(world.table.rows) == await world.all_rows(replaced=True)

    story(work, on_reset="replace")


@pytest.mark.parametrize("again", range(7))
def test_resets_are_known_in_compacted_files(again: int) -> None:
    async def work(world: World) -> None:
        for round_ in range(5):
            world.feed(40)
            await world.until_end()
            if round_ in (1, 3):
                await world.reset(-15, "0")
        await world.until_end()
        expected = await world.all_rows(replaced=True)
        await world.compact("0")
        await world.until_end()
        assert Counter(world.table.rows) == expected
        await operate.deliver_again(world.store, LAYOUT, "db", again)
        await world.until_end()
        assert Counter(world.table.rows) == expected
        world.table.restore(Table().stored())
        await world.until_end()
        assert Counter(world.table.rows) == expected

    story(work, on_reset="replace")


def test_refused_rows_are_kept_as_of_the_last_attempt() -> None:
    async def work(world: World) -> None:
        world.table.refuses = lambda made: made % 3 == 0
        world.feed(60)
        await world.until_end()
        rows = await world.all_rows(replaced=False)
        assert Counter(world.table.refused) == Counter(row for row in rows if row.made % 3 == 0)
        assert Counter(world.table.rows + world.table.refused) == rows
        world.table.refuses = lambda made: made % 3 == 1
        await operate.deliver_again(world.store, LAYOUT, "db", 0)
        await world.until_end()
        assert Counter(world.table.refused) == Counter(row for row in rows if row.made % 3 == 1)

    story(work, on_refused="keep")


def test_rows_of_a_child_win_over_those_of_its_parents() -> None:
    async def work(world: World) -> None:
        for _ in range(3):
            world.feed(20)
            await world.until_end()
        world.split("0", "0a", "0b")
        world.feed(40)
        await world.until_end()
        world.split("0a", "0c")
        world.feed(40)
        await world.until_end()
        depths = {name: await read_checkpoint(world.store, LAYOUT, name) for name in ("0", "0a", "0b", "0c")}
        assert [found and found.depth for found in depths.values()] == [0, 1, 1, 2]
        await operate.deliver_again(world.store, LAYOUT, "db", 0, ["0"])  # the parent's rows come last
        await world.until_end()
        kept = {key: version for key, (version, _) in world.table.keys.items() if key[0] == "0"}
        assert {version.depth for version in kept.values()} == {1, 2}  # 0b and 0c

    story(work, **UPSERT)


def test_a_merge_is_deeper_than_its_deepest_parent() -> None:
    async def work(world: World) -> None:
        world.feed(20)
        await world.until_end()
        world.split("0", "0a")
        await world.until_end()
        world.source.add_partition("0m", ["1", "0a"])
        await world.until_end()
        checkpoint = await read_checkpoint(world.store, LAYOUT, "0m")
        assert checkpoint is not None
        assert checkpoint.depth == 2

    story(work)


def test_a_new_registration_wins_over_an_earlier_one() -> None:
    async def work(world: World) -> None:
        for _ in range(3):
            world.feed(20)
            await world.until_end()
        await operate.delete(world.store, LAYOUT, "db")
        await world.until_end()
        assert {version.life for version, _ in world.table.keys.values()} == {2}

    story(work, **UPSERT)


def _is_part(part: int, made: int) -> bool:
    return made % 4 == part


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("mode", ["repeat", "replace", "upsert"])
def test_the_sink_has_what_the_chains_lead_to(mode: str, seed: int) -> None:
    """Hosts come and go, partitions split and are reset, the sink fails, refuses rows, and is restored."""

    async def work(world: World) -> None:
        random = Random(seed)
        running = list[Processor]()
        scopes = dict[int, anyio.CancelScope]()
        redelivered = False

        async def host() -> None:
            processor = world.host(**QUICK)
            running.append(processor)
            with anyio.CancelScope() as scope:
                scopes[id(processor)] = scope
                await processor.run()

        async with anyio.create_task_group() as tasks:
            backup = world.table.stored()
            for round_ in range(30):
                if len(running) < 2:
                    tasks.start_soon(host)
                world.feed(random.randrange(20))
                await anyio.sleep(random.uniform(0.5, 8))
                match random.randrange(9):
                    case 0 if running:
                        if (scope := scopes.get(id(processor := running.pop()))) is not None:
                            scope.cancel()
                        else:
                            processor.stop()
                    case 1 if running:
                        running.pop(random.randrange(len(running))).stop()
                    case 2:
                        world.table.lose_replies = random.randrange(3)
                    case 3:
                        world.table.is_away = not world.table.is_away
                    case 4 | 5 if round_ > 3:
                        await world.reset(-random.randrange(1, 60), random.choice(sorted(world.roots)))
                    case 6 if round_ > 3:
                        await operate.deliver_again(world.store, LAYOUT, "db", random.randrange(3))
                        redelivered = True
                    case 7 if mode != "upsert":
                        world.table.refuses = partial(_is_part, random.randrange(4))
                    case 8 if random.random() < 0.5:
                        world.table.restore(backup)
                    case 8:
                        backup = world.table.stored()
                    case _ if round_ == 15:
                        world.split("0", "0a", "0b")
            for processor in running:
                processor.stop()
        world.table.is_away, world.table.lose_replies = False, 0
        await world.until_end()
        table = world.table
        if mode == "upsert":
            found = {key: made for key, (_, made) in table.keys.items() if made is not None}
            assert found == await world.newest()
            return
        expected = await world.all_rows(replaced=mode == "replace")
        found = Counter(table.rows + table.refused)
        assert max(Counter(table.refused).values(), default=1) == 1
        if mode == "replace" or not redelivered:
            assert found == expected
        else:
            assert set(found) == set(expected)

    keep = {"on_refused": "keep"}
    options: dict[str, dict[str, Any]] = {"repeat": keep, "replace": {**keep, "on_reset": "replace"}, "upsert": UPSERT}
    story(work, **options[mode])

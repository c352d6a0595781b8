"""Deliveries of a processor to a sink: each committed row once, whatever hosts, sink and operators do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import anyio
import pyarrow as pa
import pytest
import structlog
from msgspec.structs import replace

from actorproc import Batch, PartitionContext, PartitionHandler, Processor
from actorproc.admin import sinks as operate
from actorproc.admin.compact import compact
from actorproc.admin.retained import RetainedOutput
from actorproc.admin.trim import plan_trim
from actorproc.config.settings import Settings
from actorproc.errors import EndNotReached, UsageError
from actorproc.retention.boundary import raise_boundary, read_boundary
from actorproc.runtime.nudge import Nudges
from actorproc.server.metrics import HostCollector
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.sinks.protocol import Delivery, SinkError, SinkRefused
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource
from tests.sinks.memory_sink import Database, MemorySink

LAYOUT = ProcessorLayout("Copy")


class Copy(PartitionHandler):
    """Emits each number."""

    output_schema = "n long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, {"n": record.json()})


class World:
    """A stream of numbers, a container, and a database that hosts deliver to."""

    def __init__(self, partitions: int = 2, **settings: Any) -> None:
        self.partitions = [str(number) for number in range(partitions)]
        self.source = MemorySource(partitions)
        clock = VirtualClock("store")
        self.store = Store(MemoryStore(clock=clock), clock=clock)
        self.database = Database()
        self.settings = {"commit_interval": 1, **settings}
        self.fed = 0
        self.hosts = 0

    def feed(self, count: int) -> None:
        for n in range(self.fed, self.fed + count):
            self.source.append(self.partitions[n % len(self.partitions)], [str(n).encode()])
        self.fed += count

    def host(self, **options: Any) -> Processor:
        self.hosts += 1
        name = f"host-{self.hosts}"
        sink = MemorySink(self.database, options=options.pop("sink_options", None))
        return Processor(
            Copy, source=self.source, container=self.store, name="Copy", host=name, clock=VirtualClock(name),
            nudges=Nudges(), **{"sinks": {"db": sink}, **self.settings, **options},
        )  # fmt: skip

    async def until_end(self, **options: Any) -> None:
        await self.host(**options).run(until_end=True)

    async def delivered(self, count: int | None = None, limit: float = 600) -> None:
        """Wait until the database has as many different rows."""
        wanted = self.fed if count is None else count
        with anyio.fail_after(limit):
            while len(set(self.database.rows)) < wanted:
                await anyio.sleep(0.1)

    @property
    def is_exact(self) -> bool:
        return self.database.numbers == list(range(self.fed))


def story(work: Callable[[World], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        await work(World(**settings))

    run(main())


def test_a_run_until_the_end_delivers_everything() -> None:
    async def work(world: World) -> None:
        world.feed(100)
        await world.until_end()
        assert world.is_exact
        world.feed(50)
        await world.until_end()
        assert world.is_exact

    story(work)


def test_a_run_that_is_stopped_names_the_sink_that_it_waited_for() -> None:
    async def work(world: World) -> None:
        world.feed(10)
        world.database.is_away = True
        processor = world.host()
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                with pytest.raises(
                    EndNotReached, match=r"all is committed, and not all of it is delivered \(sink db: "
                ):
                    await processor.run(until_end=True)

            tasks.start_soon(run)
            await anyio.sleep(30)
            processor.stop()

    story(work)


def test_a_run_until_the_end_does_not_wait_for_a_sink_that_refuses() -> None:
    class Refuses(MemorySink):
        async def write(self, delivery: Delivery) -> None:
            raise SinkRefused("a value does not fit")

    async def work(world: World) -> None:
        world.feed(10)
        with anyio.fail_after(3_000), pytest.raises(EndNotReached, match=r"sink db refuses rows: .*does not fit"):
            await world.until_end(sinks={"db": Refuses(world.database)})

    story(work)


def test_a_target_that_was_dropped_is_prepared_again() -> None:
    class Dropped(MemorySink):
        opened = 0
        is_there = True

        async def open(self, schema: pa.Schema) -> None:
            await super().open(schema)
            Dropped.opened += 1
            Dropped.is_there = True

        async def write(self, delivery: Delivery) -> None:
            if not Dropped.is_there:
                raise SinkRefused("there is no table")
            await super().write(delivery)

    async def work(world: World) -> None:
        async with world.host(sinks={"db": Dropped(world.database)}):
            world.feed(10)
            await world.delivered()
            await anyio.sleep(60)
            Dropped.is_there = False
            world.feed(10)
            await world.delivered()
        assert Dropped.opened == 2
        assert world.is_exact

    story(work)


def test_timers_and_replaced_rows_exclude_each_other() -> None:
    class Timed(Copy):
        def on_wake(self, key: Any, ctx: Any) -> None:
            """Called at its time."""

    sink = MemorySink(Database(), options={"on_reset": "replace"})
    with pytest.raises(UsageError, match="on_wake"):
        Processor(Timed, source=MemorySource(1), container=Store(MemoryStore()), sinks={"db": sink})


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me@h/db?password=x", "postgresql:host=h password=x", "redis://h/0?password=x",
        "iceberg:http://h/?token=x", "https://h/x?access_key=x",
    ],
)  # fmt: skip
def test_a_secret_in_the_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(UsageError, match="must not contain a password") as refused:
        Processor(Copy, source=MemorySource(1), container=Store(MemoryStore()), sinks={"db": url})
    assert "=x" not in str(refused.value)


def test_a_host_without_a_sink_of_others_says_so() -> None:
    async def work(world: World) -> None:
        await world.until_end()
        with structlog.testing.capture_logs() as logs:
            await world.until_end(sinks={})
        assert [log["sink"] for log in logs if log["event"] == "sink.not_configured"] == ["db"]

    story(work)


def test_a_row_arrives_soon_after_its_commit() -> None:
    async def work(world: World) -> None:
        async with world.host():
            await anyio.sleep(5)
            world.feed(10)
            before = anyio.current_time()
            await world.delivered()
            assert anyio.current_time() - before < 3  # poll and commit take a second each

    story(work)


def test_a_lost_reply_repeats_nothing() -> None:
    async def work(world: World) -> None:
        world.database.lose_replies = 5
        world.feed(100)
        await world.until_end()
        assert world.is_exact

    story(work)


def test_a_sink_that_is_away_holds_up_no_partition() -> None:
    async def work(world: World) -> None:
        world.database.is_away = True
        world.feed(10)
        async with world.host() as host:
            while host.statistics().counts.rows < 10:
                await anyio.sleep(0.1)
            await anyio.sleep(120)
            (status,) = await operate.read_sinks(world.store, LAYOUT)
            assert status.behind > 0
            world.database.is_away = False
            await world.delivered()
            assert world.is_exact

    story(work)


def test_a_host_of_an_earlier_version_does_not_deliver_a_commit_without_its_new_column() -> None:
    class Wide(Copy):
        output_schema = "n long, twice long"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                ctx.emit(record, {"n": record.json(), "twice": 2 * record.json()})

    found: list[tuple[int, int | None]] = []

    class Keeps(MemorySink):
        async def write(self, delivery: Delivery) -> None:
            await super().write(delivery)
            rows = delivery.rows.to_pylist()
            found.extend((row["n"], row.get("twice")) for row in rows)

    async def work(world: World) -> None:
        def host(handler: type[Copy]) -> Processor:
            world.hosts += 1
            name = f"host-{world.hosts}"
            return Processor(
                handler, source=world.source, container=world.store, name="Copy", host=name, clock=VirtualClock(name),
                nudges=Nudges(), sinks={"db": Keeps(world.database)}, **world.settings,
            )  # fmt: skip

        async with host(Copy) as earlier:
            world.feed(10)
            await world.delivered()
            async with host(Wide) as later:
                while len(later.statistics().partitions) < 1:
                    await anyio.sleep(0.1)
                world.database.is_away = True
                world.feed(10)
                while later.statistics().counts.rows < 5:
                    await anyio.sleep(0.1)
            while len(earlier.statistics().partitions) < 2:
                await anyio.sleep(0.1)
            world.database.is_away = False
            await anyio.sleep(120)
            assert len(world.database.rows) == 15
            (status,) = await operate.read_sinks(world.store, LAYOUT)
            assert "has the column twice" in str(status.error)
            async with host(Wide):
                await world.delivered()
        assert world.is_exact
        assert sum(twice is not None for _, twice in found) == 5
        assert all(twice in (None, 2 * n) for n, twice in found)

    story(work)


@pytest.mark.parametrize("made_progress", [True, False])
def test_the_back_off_begins_anew_after_progress(made_progress: bool) -> None:
    class Flaky(MemorySink):
        tries = 0

        async def write(self, delivery: Delivery) -> None:
            self.tries += 1
            if self.tries <= 20:
                error = SinkError("the next request has failed")
                error.made_progress = made_progress
                raise error
            await super().write(delivery)

    async def work(world: World) -> None:
        world.feed(1)
        began = anyio.current_time()
        async with world.host(sinks={"db": Flaky(world.database)}):
            await world.delivered(limit=3600)
        assert (anyio.current_time() - began < 30) is made_progress

    story(work)


def test_sinks_that_do_not_answer_hold_up_a_start_together_not_one_after_the_other() -> None:
    class Hangs(MemorySink):
        async def open(self, schema: pa.Schema) -> None:
            await anyio.sleep_forever()

    async def work(world: World) -> None:
        world.feed(10)
        silent = {name: Hangs(Database()) for name in ("a", "b", "c")}
        began = anyio.current_time()
        async with world.host(sinks={**silent, "db": MemorySink(world.database)}):
            await world.delivered()
            assert anyio.current_time() - began < 15

    story(work)


def test_a_sink_that_starts_now_gets_only_later_commits() -> None:
    async def work(world: World) -> None:
        world.feed(20)
        await world.until_end(sinks={})
        world.feed(10)
        await world.until_end(sink_options={"start": "now"})
        assert world.database.numbers == list(range(20, 30))

    story(work)


@pytest.mark.parametrize("is_away", [False, True])
def test_a_trim_keeps_the_commits_that_a_sink_does_not_have(is_away: bool) -> None:
    async def work(world: World) -> None:
        async with world.host() as host:
            for round_ in range(1, 4):
                world.feed(10)
                await world.delivered(10 if is_away else None)
                world.database.is_away = is_away
                while host.statistics().counts.rows < 10 * round_:
                    await anyio.sleep(0.1)
                await anyio.sleep(10)
        await anyio.sleep(8000)
        planned = await plan_trim(RetainedOutput(world.store, LAYOUT), Settings())
        assert {p.upto for p in planned.partitions} == {1 if is_away else 2}
        assert {p.hold.why for p in planned.partitions} == {
            "sink db gets 1 next" if is_away else "the newest file stays"
        }

    story(work)


def test_redeliver_repeats_commits_once() -> None:
    async def work(world: World) -> None:
        world.feed(20)
        await world.until_end()
        world.feed(20)
        await world.until_end()
        assert set(await operate.deliver_again(world.store, LAYOUT, "db", 1)) == {"0", "1"}
        await world.until_end()
        assert sorted(n for _, n in world.database.repeated) == list(range(20, 40))
        assert len(world.database.rows) == 60
        await world.until_end()
        assert len(world.database.rows) == 60

    story(work)


def test_a_running_host_carries_out_a_redelivery() -> None:
    async def work(world: World) -> None:
        async with world.host():
            world.feed(20)
            await world.delivered()
            await anyio.sleep(10)
            await operate.deliver_again(world.store, LAYOUT, "db", 0, ["1"])
            await anyio.sleep(30)
            assert sorted(n for _, n in world.database.repeated) == list(range(1, 20, 2))

    story(work)


def test_a_paused_sink_gets_nothing_until_it_is_resumed() -> None:
    async def work(world: World) -> None:
        async with world.host():
            world.feed(20)
            await world.delivered()
            await operate.pause(world.store, LAYOUT, "db")
            await anyio.sleep(30)
            (status,) = await operate.read_sinks(world.store, LAYOUT)
            assert status.state == "paused"
            world.feed(20)
            await anyio.sleep(60)
            assert len(world.database.rows) == 20
            await operate.resume(world.store, LAYOUT, "db")
            await world.delivered()
            assert world.is_exact

    story(work)


def test_each_pause_raises_the_fence() -> None:
    async def work(world: World) -> None:
        async with world.host():
            world.feed(20)
            await world.delivered()
            for count in (1, 2):
                await operate.pause(world.store, LAYOUT, "db")
                await anyio.sleep(20)
                assert {row.fence for row in world.database.positions.values()} == {count}
                await operate.resume(world.store, LAYOUT, "db")
                await anyio.sleep(20)

    story(work)


def test_a_restored_backup_heals_by_itself() -> None:
    async def work(world: World) -> None:
        world.feed(20)
        await world.until_end()
        backup = world.database.copy()
        world.feed(20)
        await world.until_end()
        world.database.restore(backup)
        assert not world.is_exact
        await world.until_end()
        assert world.is_exact

    story(work)


def test_a_database_that_is_behind_a_trim_stops_loudly() -> None:
    async def work(world: World) -> None:
        world.feed(20)
        await world.until_end()
        world.database.positions["0"] = replace(world.database.positions["0"], position=0)
        await raise_boundary(world.store, LAYOUT.boundary("0"), 1)
        async with world.host() as host:
            await anyio.sleep(30)
            errors = [sink.error or "" for found in host.statistics().partitions for sink in found.sinks]
        assert world.database.positions["0"].position == 0
        assert any("commits below 1 were trimmed" in error for error in errors)

    story(work)


def test_another_target_under_a_known_name_is_refused() -> None:
    async def work(world: World) -> None:
        await world.until_end()
        with pytest.raises(UsageError, match="is registered for test:db, not for other:db"):
            await Processor(
                Copy, source=world.source, container=world.store, name="Copy", host="x", clock=VirtualClock("x"),
                nudges=Nudges(), sinks={"db": MemorySink(world.database, "other:db")},
            ).run(until_end=True)  # fmt: skip

    story(work)


def test_a_deleted_sink_begins_anew_beside_the_rows_that_are_there() -> None:
    async def work(world: World) -> None:
        world.feed(20)
        await world.until_end()
        await operate.delete(world.store, LAYOUT, "db")
        await world.until_end()
        assert sorted(n for _, n in world.database.repeated) == list(range(20))

    story(work)


@pytest.mark.parametrize("seed", range(8))
def test_hosts_come_and_go_while_the_database_fails(seed: int) -> None:
    async def work(world: World) -> None:
        random = Random(seed)
        async with anyio.create_task_group() as tasks:
            running: list[Processor] = []

            async def host() -> None:
                processor = world.host(
                    lease_acquire_interval=2, lease_renew_interval=1, lease_expiration_interval=8, rebalance_delay=1
                )
                running.append(processor)
                with anyio.CancelScope() as scope:
                    scopes[id(processor)] = scope
                    await processor.run()

            scopes: dict[int, anyio.CancelScope] = {}
            for _ in range(40):
                if len(running) < 3:
                    tasks.start_soon(host)
                world.feed(random.randrange(30))
                await anyio.sleep(random.uniform(0.5, 8))
                match random.randrange(6):
                    case 0 if running:
                        processor = running.pop(random.randrange(len(running)))
                        if (scope := scopes.get(id(processor))) is not None:
                            scope.cancel()
                        else:
                            processor.stop()  # it has not begun
                    case 1 if running:
                        running.pop(random.randrange(len(running))).stop()
                    case 2:
                        world.database.lose_replies = random.randrange(4)
                    case 3:
                        world.database.is_away = not world.database.is_away
            world.database.is_away, world.database.lose_replies = False, 0
            tasks.start_soon(host)
            await anyio.sleep(1)
            await world.delivered(limit=3000)
            assert world.database.repeated == []
            for processor in running:
                processor.stop()

    story(work, partitions=4)


def test_refused_rows_stop_the_sink_and_not_the_partition() -> None:
    class Refusing(MemorySink):
        async def write(self, delivery: Any) -> None:
            raise SinkRefused("a value does not fit")

    async def work(world: World) -> None:
        async with Processor(
            Copy, source=world.source, container=world.store, name="Copy", host="x", clock=VirtualClock("x"),
            nudges=Nudges(), sinks={"db": Refusing(world.database)},
        ) as host:  # fmt: skip
            world.feed(10)
            while host.statistics().counts.rows < 10:
                await anyio.sleep(0.5)
            await anyio.sleep(60)
        (status,) = await operate.read_sinks(world.store, LAYOUT)
        assert "a value does not fit" in (status.error or "")

    story(work)


def test_a_restored_container_that_has_gone_on_stops_loudly() -> None:
    async def work(world: World) -> None:
        world.feed(20)
        await world.until_end()
        for name, row in world.database.positions.items():  # as if another container had made the last commit
            world.database.positions[name] = replace(row, put_id="another")
        world.feed(20)
        async with world.host() as host:
            await anyio.sleep(30)
            errors = [sink.error or "" for found in host.statistics().partitions for sink in found.sinks]
        assert all("it was restored from a backup" in error for error in errors)
        assert len(world.database.rows) == 20

    story(work)


def test_a_restored_container_that_was_compacted_stops_loudly_too() -> None:
    async def work(world: World) -> None:
        for _ in range(3):
            world.feed(20)
            await world.until_end()
        for name, row in world.database.positions.items():  # as if another container had made the last commit
            world.database.positions[name] = replace(row, put_id="another")
        for _ in range(3):
            world.feed(20)
            await world.until_end(sinks={})
        done = await compact(container=world.store, name="Copy", older_than=0)
        assert done.files_after == 2
        for partition in world.partitions:
            boundary = await read_boundary(world.store, LAYOUT.boundary(partition))
            assert boundary.originals > world.database.positions[partition].position
        world.feed(20)
        async with world.host() as host:
            await anyio.sleep(30)
            errors = [sink.error or "" for found in host.statistics().partitions for sink in found.sinks]
        assert all("it was restored from a backup" in error for error in errors)
        assert len(world.database.rows) == 60

    story(work)


def test_a_container_that_was_compacted_goes_on() -> None:
    async def work(world: World) -> None:
        for _ in range(3):
            world.feed(20)
            await world.until_end()
        await compact(container=world.store, name="Copy", older_than=0)
        world.feed(20)
        await world.until_end()
        assert world.is_exact

    story(work)


def test_metrics_tell_how_far_a_sink_is_behind() -> None:
    async def work(world: World) -> None:
        world.database.is_away = True
        async with world.host() as host:
            world.feed(20)
            await anyio.sleep(60)
            collector = HostCollector(
                lambda: (host.statistics(), 0.0),
                source="x",
                wall=lambda: 0.0,
                max_process_time=300,
                per_partition=False,
            )
            found = {
                family.name: {sample.labels.get("sink"): sample.value for sample in family.samples}
                for family in collector.collect()
            }
        assert found["actorproc_sink_failing_partitions"] == {"db": 2}
        assert found["actorproc_sink_lag_commits"]["db"] >= 2

    story(work)

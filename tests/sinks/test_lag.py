"""How far a sink is behind, from memory and from the container."""

from __future__ import annotations

import anyio
import pytest

from actorproc.admin import sinks as operate
from actorproc.admin.explain import explain
from actorproc.admin.explain_sinks import with_stored
from actorproc.admin.fleet_watch import FleetWatch
from actorproc.handler.hooks import Event, Hooks
from actorproc.server.health import problems, sink_problems
from actorproc.sinks.lag import _MOST_MARKS, LagMeter, RowRate, SinkLag
from actorproc.sinks.protocol import Delivery, SinkRefused
from tests.sinks.memory_sink import Database, MemorySink
from tests.sinks.test_delivery import LAYOUT, World, story


class RefusingSink(MemorySink):
    """Refuses rows as long as it is told to."""

    refuses = True

    async def write(self, delivery: Delivery) -> None:
        if self.refuses and delivery.rows.num_rows:
            raise SinkRefused("a value does not fit")
        await super().write(delivery)


def test_lag_counts_commits_rows_and_the_age_of_the_oldest() -> None:
    meter = LagMeter()
    meter.begin(5, 100)
    assert meter.lag(5, 50.0) == SinkLag(0, 0, 0.0)
    assert meter.lag(3, 50.0) == SinkLag(2)
    assert meter.lag(None, 50.0) == SinkLag()
    for number in range(5, 8):
        meter.committed(number, 10, 50.0 + number)
    assert meter.lag(6, 60.0) == SinkLag(2, 20, 4.0)
    meter.place(3, 70, 20.0)
    assert meter.lag(3, 60.0) == SinkLag(5, 60, 40.0)
    assert meter.lag(4, 60.0) == SinkLag(4, 60, 40.0)  # not known better
    meter.delivered(7)
    assert meter.lag(7, 60.0) == SinkLag(1, 10, 3.0)
    assert not meter.knows(6)


def test_lag_of_many_commits_takes_bounded_memory() -> None:
    meter = LagMeter()
    meter.begin(0, 0)
    for number in range(10 * _MOST_MARKS):
        meter.committed(number, 1, float(number))
    assert len(meter._marks) <= _MOST_MARKS
    lag = meter.lag(0, 0.0)
    assert (lag.commits, lag.rows) == (10 * _MOST_MARKS, 10 * _MOST_MARKS)


def test_rate_is_the_mean_of_the_last_half_minute() -> None:
    rate = RowRate()
    assert rate.per_second(0.0) == 0.0
    for second in range(100):
        rate.add(60, second + 0.5)
    assert rate.per_second(99.5) == pytest.approx(60.0)
    assert rate.per_second(114.6) == pytest.approx(30.0, abs=2)
    assert rate.per_second(200.0) == 0.0


def test_owners_and_the_container_tell_the_same_lag() -> None:
    async def work(world: World) -> None:
        async with world.host() as host:
            world.feed(20)
            await world.delivered()
            world.database.is_away = True
            world.feed(30)
            while host.statistics().counts.rows < 50:
                await anyio.sleep(0.1)
            await anyio.sleep(60)
            reported = [found.sinks[0] for found in host.statistics().partitions]
            (stored,) = await operate.read_sinks(world.store, LAYOUT)
            assert [(sink.lag, sink.lag_rows) for sink in reported] == [(p.behind, p.rows) for p in stored.partitions]
            assert sum(sink.lag_rows or 0 for sink in reported) == stored.rows == 30
            for sink, found in zip(reported, stored.partitions, strict=True):
                assert sink.lag_seconds == pytest.approx(found.seconds, abs=2)
                assert 55 < (found.seconds or 0) < 65
            assert stored.state == "failing"
            assert stored.error == "SinkError: the database is away"

    story(work)


def test_the_next_owner_knows_the_lag_of_earlier_commits() -> None:
    async def work(world: World) -> None:
        world.feed(20)
        await world.until_end(sinks={})
        world.database.is_away = True
        async with world.host() as host:
            await anyio.sleep(60)
            found = [partition.sinks[0] for partition in host.statistics().partitions]
            assert [(sink.lag, sink.lag_rows, sink.state) for sink in found] == [(1, 10, "failing")] * 2
            assert all((sink.lag_seconds or 0) >= 60 for sink in found)

    story(work)


def test_an_error_goes_once_the_sink_takes_rows_again() -> None:
    async def work(world: World) -> None:
        world.database.is_away = True
        async with world.host():
            world.feed(20)
            await anyio.sleep(30)
            (status,) = await operate.read_sinks(world.store, LAYOUT)
            assert (status.state, status.error is None) == ("failing", False)
            world.database.is_away = False
            await world.delivered()
            await anyio.sleep(30)
            (status,) = await operate.read_sinks(world.store, LAYOUT)
            assert (status.state, status.error, status.rows, status.seconds) == ("up to date", None, 0, 0.0)

    story(work)


def test_explain_says_why_rows_are_not_in_a_sink() -> None:
    async def work(world: World) -> None:
        world.database.is_away = True
        async with world.host():
            world.feed(20)
            await anyio.sleep(40)
            fleet = await FleetWatch(world.store, LAYOUT, 60).look()
            view = fleet.partitions["0"]
            said = explain(view, fleet.hosts, fleet.time)
            assert "Sink db lacks 1 commit with 10 rows" in said
            assert "It has failed for" in said
            assert "the database is away" in said
            stored = await operate.read_sinks(world.store, LAYOUT, ["0"])
            (found,) = with_stored(view.sinks, stored)
            assert (found.state, found.commits, found.rows) == ("failing", 1, 10)
            await operate.pause(world.store, LAYOUT, "db")
            world.database.is_away = False
            await anyio.sleep(90)
            fleet = await FleetWatch(world.store, LAYOUT, 60).look()
            said = explain(fleet.partitions["0"], fleet.hosts, fleet.time)
            assert "`actorproc sinks resume db` lets it go on" in said

    story(work)


def test_a_host_with_a_sink_that_is_away_is_ready() -> None:
    async def work(world: World) -> None:
        world.database.is_away = True
        async with world.host() as host:
            world.feed(20)
            await anyio.sleep(30)
            statistics = host.statistics()
            assert problems(statistics, now=0.0, max_process_time=300) == []
            (found,) = sink_problems(statistics)
            assert (found.problem, found.sink, found.partitions) == ("failing", "db", ["0", "1"])

    story(work)


def test_a_sink_that_refuses_rows_says_so_until_it_takes_them() -> None:
    async def work(world: World) -> None:
        world.feed(20)
        refusing, failed = RefusingSink(world.database), list[Event]()

        class Notes(Hooks):
            async def sink_failed(self, event: Event) -> None:
                failed.append(event)

        async with world.host(sinks={"db": refusing}, hooks=Notes()) as host:
            await anyio.sleep(200)
            states = {found.sinks[0].state for found in host.statistics().partitions}
            assert states == {"refusing"}
            assert all(
                (found.sinks[0].error_since or 0) < 60 + host.clock.wall() - 200
                for found in host.statistics().partitions
            )
            assert len(failed) == 2  # one for each partition
            (status,) = await operate.read_sinks(world.store, LAYOUT)
            assert status.state == "refusing"
            (found,) = sink_problems(host.statistics())
            assert found.problem == "refusing"
            refusing.refuses = False
            await world.delivered()

    story(work)


def test_hooks_hear_of_deliveries_and_of_failures_once() -> None:
    class Notes(Hooks):
        def __init__(self, database: Database) -> None:
            self.events: list[Event] = []

        async def delivered(self, event: Event) -> None:
            self.events.append(event)

        sink_failed = delivered

    async def work(world: World) -> None:
        notes = Notes(world.database)
        async with world.host(hooks=notes):
            world.feed(20)
            await world.delivered()
            world.database.is_away = True
            world.feed(20)
            await anyio.sleep(120)
            world.database.is_away = False
            await world.delivered()
            await anyio.sleep(1)
        kinds = [event.kind for event in notes.events if event.partition == "0"]
        assert kinds == ["delivered", "sink_failed", "delivered"]
        assert sum(event.rows for event in notes.events) == 40
        assert {event.sink for event in notes.events} == {"db"}
        failed = next(event for event in notes.events if event.kind == "sink_failed")
        assert failed.reason == "SinkError: the database is away"

    story(work)

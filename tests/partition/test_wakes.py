"""`ctx.wake` and `on_wake`: timers fire once they are due, between batches, and are committed with their rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import anyio
import pytest
from msgspec import msgpack
from msgspec.structs import replace

from actorproc.config.settings import Settings
from actorproc.counts import Counts
from actorproc.errors import EndNotReached
from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.handler.keyed_state import TIMERS, AttemptState, StateKinds
from actorproc.handler.timers import Timer, set_timer
from actorproc.handler.wake_context import WakeContext
from actorproc.handlers.record_handler import RecordHandler
from actorproc.output.chain import Commit, OutputChain
from actorproc.output.checkpoint import Reset
from actorproc.partition.timers import Timers
from actorproc.records import Batch, Cursor, Record
from actorproc.runtime.clock import Clock
from actorproc.simulation.clock import EPOCH, VirtualClock
from actorproc.simulation.loop import START, current_loop, run
from actorproc.state.partition_state import PartitionState
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing import run_handler
from tests.partition.world import World

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
GAP = timedelta(seconds=10)


def at(*events: tuple[str, float]) -> list[Record]:
    """Records of these values, so many seconds after noon."""
    values, times = [value.encode() for value, _ in events], [NOON + timedelta(seconds=s) for _, s in events]
    return list(Batch.of("0", values, range(len(values)), timestamps=times))


class CountsByKey(RecordHandler):
    """Counts records by key, and emits the count when none of the key has come for 10 s."""

    output_schema = "key string, n int"

    def process_record(self, record: Record, ctx: PartitionContext) -> None:
        key = record.text
        ctx.state.set(key, ctx.state.get(key, 0) + 1)
        ctx.wake(key, (record.timestamp or NOON) + GAP)

    def on_wake(self, key: Any, ctx: WakeContext) -> Any:
        count = ctx.state[key]
        ctx.state.delete(key)
        return {"key": key, "n": count}


class CountsAsync(CountsByKey):
    async def on_wake(self, key: Any, ctx: WakeContext) -> Any:
        await anyio.sleep(0)
        return super().on_wake(key, ctx)


def counts(rows: Sequence[dict[str, Any]]) -> list[tuple[str, int, int]]:
    return [(row["key"], row["n"], row["_sequence"]) for row in rows]


@pytest.mark.parametrize("handler", [CountsByKey, CountsAsync])
async def test_a_timer_fires_once_the_stream_time_has_passed_it(handler: type[CountsByKey]) -> None:
    records = at(("a", 0), ("a", 5), ("b", 8), ("c", 15))
    result = await run_handler(handler, records)
    assert counts(result.rows) == [("a", 2, 3)]
    assert result.state == {"b": 1, "c": 1}
    assert result.timers == {"b": NOON + timedelta(seconds=18), "c": NOON + timedelta(seconds=25)}
    assert result.states.keys() == {""}


async def test_run_handler_advances_time() -> None:
    records = at(("a", 0), ("b", 8))
    assert counts((await run_handler(CountsByKey, records, advance="1.9s")).rows) == []
    assert counts((await run_handler(CountsByKey, records, advance=2)).rows) == [("a", 1, 1)]
    later = await run_handler(CountsByKey, records, advance=timedelta(hours=1))
    assert (counts(later.rows), later.state, later.timers) == ([("a", 1, 1), ("b", 1, 1)], {}, {})


async def test_each_batch_is_followed_by_the_timers_that_it_made_due() -> None:
    records = at(("a", 0), ("b", 11), ("c", 22))
    result = await run_handler(CountsByKey, records, settings=Settings(max_batch_records=1))
    assert counts(result.rows) == [("a", 1, 1), ("b", 1, 2)]


class Alarms(RecordHandler):
    """`KEY` sets a timer by the wall clock, `-KEY` cancels it."""

    output_schema = "key string, due timestamp"
    bad: ClassVar[frozenset[str]] = frozenset()
    calls: ClassVar[list[tuple[str, int]]] = []

    def process_record(self, record: Record, ctx: PartitionContext) -> None:
        key = record.text
        if key.startswith("-"):
            ctx.cancel_wake(key[1:])
        else:
            ctx.wake(key, after=30)

    def on_wake(self, key: Any, ctx: WakeContext) -> Any:
        self.calls.append((key, ctx.attempt))
        ctx.state.set("last", key)
        if key in self.bad:
            raise ValueError("bad key")
        return {"key": key, "due": ctx.due}


async def test_a_timer_by_the_wall_clock_can_be_cancelled_and_replaced() -> None:
    result = await run_handler(Alarms, [b"a", b"b", b"c", b"-a", b"c"], advance=30)
    due = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=30)  # records without a time have that of the source
    assert [(row["key"], row["due"]) for row in result.rows] == [("b", due), ("c", due)]


async def test_a_failing_timer_leaves_no_trace_and_other_timers_go_on() -> None:
    handler = type("Bad", (Alarms,), {"bad": frozenset({"b"}), "calls": []})
    result = await run_handler(handler, [b"a", b"b", b"c"], advance=31)
    assert [row["key"] for row in result.rows] == ["a", "c"]
    assert result.state == {"last": "c"}
    assert result.timers.keys() == {"b"}


async def test_a_row_that_does_not_fit_fails_its_timer_alone() -> None:
    class Wrong(Alarms):
        def on_wake(self, key: Any, ctx: WakeContext) -> Any:
            return {"key": 7 if key == "b" else key}

    result = await run_handler(Wrong, [b"a", b"b", b"c"], advance=31)
    assert [row["key"] for row in result.rows] == ["a", "c"]
    assert result.timers.keys() == {"b"}


async def test_a_timer_that_another_one_cancels_or_sets_anew_does_not_fire() -> None:
    class Chain(Alarms):
        def on_wake(self, key: Any, ctx: WakeContext) -> Any:
            if key == "a":
                ctx.cancel_wake("b")
                ctx.wake("c", after=60)
            return [{"key": key}]

    result = await run_handler(Chain, [b"a", b"b", b"c", b"d"], advance=31)
    assert [row["key"] for row in result.rows] == ["a", "d"]
    assert result.timers.keys() == {"c"}


async def test_a_timer_may_set_itself_anew() -> None:
    class Hourly(RecordHandler):
        output_schema = "due timestamp"

        def process_record(self, record: Record, ctx: PartitionContext) -> None:
            ctx.wake("hour", (record.timestamp or NOON) + timedelta(hours=1))

        def on_wake(self, key: Any, ctx: WakeContext) -> Any:
            ctx.wake(key, ctx.due + timedelta(hours=1))
            return (ctx.due,)

    result = await run_handler(Hourly, at(("x", 0)), advance="3h")
    assert [row["due"] for row in result.rows] == [NOON + timedelta(hours=n) for n in (1, 2, 3)]


async def test_records_of_earlier_batches_become_one_dead_letter() -> None:
    class Letters(Alarms):
        def on_wake(self, key: Any, ctx: WakeContext) -> None:
            records = Batch.of(ctx.partition, [b"1", b"\xff", b"3"], [4, 6, 9], keys=[b"k"] * 3)
            ctx.dead_letter(records, "came to nothing", kind="Nothing")

    (letter,) = (await run_handler(Letters, [b"a"], advance=31)).dead_letters
    assert (letter["sequence"], letter["key"], letter["value"]) == (9, "k", "3")
    assert [(r["sequence"], r["value"]) for r in letter["earlier"]] == [(4, "1"), (6, "/w==")]
    assert (letter["error"]["type"], letter["error"]["message"]) == ("Nothing", "came to nothing")


class NoWake(RecordHandler):
    def process_record(self, record: Record, ctx: PartitionContext) -> None:
        ctx.wake("a", after=1)


class Both(Alarms):
    def process_record(self, record: Record, ctx: PartitionContext) -> None:
        ctx.wake("a", NOON, after=1)


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        (NoWake, "has no on_wake"),
        (Both, "a datetime with a zone"),
    ],
)
async def test_a_wrong_timer_stops_the_partition(handler: type[PartitionHandler], why: str) -> None:
    with pytest.raises(EndNotReached, match=why):
        await run_handler(handler, [b"a"])


# With owners that come and go, in virtual time


class Slow(PartitionHandler):
    """Sets a timer for each number by stream time."""

    output_schema = "n int"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.wake(record.json(), (record.timestamp or NOON) + GAP)

    def on_wake(self, key: Any, ctx: WakeContext) -> Any:
        return (key,)


class Wall(Slow):
    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.wake(record.json(), after=30)


def now(seconds: float = 0) -> datetime:
    return datetime.fromtimestamp(EPOCH + START + seconds, UTC)


def test_the_stream_time_of_an_idle_partition_follows_the_wall_clock() -> None:
    async def main() -> None:
        world = World(Slow, clock=VirtualClock, commit_interval=1, stream_idle_time=60)
        world.source.append("0", [b"1"], timestamp=now())
        async with world.running(1):
            await anyio.sleep(69)  # the timer is at 10, and stream time is 60 s behind
            assert await world.columns("n") == []
            await anyio.sleep(3)
            assert await world.columns("n") == [1]

    run(main())


def test_stream_time_follows_the_wall_clock_only_after_read_records() -> None:
    async def main() -> None:
        world = World(CountsByKey, clock=VirtualClock, commit_interval=1, stream_idle_time=0, max_batch_records=10)
        for second in range(200):
            world.source.append("0", [b"a"], timestamp=now(second - 10_000))
        async with world.running(1):
            await anyio.sleep(5)
            assert await world.columns("n") == [200]

    run(main())


def test_a_timestamp_too_far_ahead_does_not_move_stream_time() -> None:
    async def main() -> None:
        world = World(Slow, clock=VirtualClock, commit_interval=1, max_batch_records=2)
        async with world.running(1):
            for value, ahead in ((b"1", 0), (b"2", 7200), (b"3", 9)):
                world.source.append("0", [value], timestamp=now(ahead))
            await anyio.sleep(3)
            assert await world.columns("n") == []
            world.source.append("0", [b"4"], timestamp=now(3000))
            await anyio.sleep(3)
            assert await world.columns("n") == [1, 3]

    run(main())


def test_a_timer_that_came_due_while_no_host_ran_fires_at_the_start() -> None:
    async def main() -> None:
        world = World(Wall, clock=VirtualClock, commit_interval=1)
        world.source.append("0", [b"1", b"2"], timestamp=now())
        await world.until_end(1)
        await anyio.sleep(1000)
        assert await world.columns("n") == []
        async with world.running(2):
            await anyio.sleep(3)
            assert await world.columns("n") == [1, 2]
        assert set(await world.columns("_sequence")) == {3}

    run(main())


def test_timers_whose_results_were_not_committed_fire_again_at_the_next_owner() -> None:
    async def main() -> None:
        world = World(Wall, clock=VirtualClock, commit_interval=100)
        world.source.append("0", [b"1", b"2"], timestamp=now())
        await world.until_end(1)
        async with world.running(2):
            await anyio.sleep(40)  # fired, and crashes before the commit
        assert await world.columns("n") == []
        await world.until_end(3)
        assert await world.columns("n") == [1, 2]
        await anyio.sleep(100)
        await world.until_end(4)
        assert await world.columns("n") == [1, 2]

    run(main())


def test_without_auto_commit_timers_wait_for_commits_and_commit_themselves() -> None:
    class Manual(Wall):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            await super().process(batch, ctx)
            if batch.last >= 6:
                await ctx.commit()

    async def main() -> None:
        world = World(Manual, clock=VirtualClock, auto_commit=False)
        world.source.append("0", [b"1", b"2"], timestamp=now())
        async with world.running(1):
            await anyio.sleep(50)
            assert await world.columns("n") == []
            world.source.append("0", [b"3"], timestamp=now())
            await anyio.sleep(1)
            assert await world.columns("n") == [1, 2]
            await anyio.sleep(31)
            assert await world.columns("n") == [1, 2, 3]

    run(main())


def test_a_failing_timer_is_tried_again_until_it_succeeds() -> None:
    calls: list[int] = []

    class Recovers(Wall):
        def on_wake(self, key: Any, ctx: WakeContext) -> Any:
            calls.append(ctx.attempt)
            if len(calls) < 5:
                raise ValueError("not yet")
            return (key,)

    async def main() -> None:
        world = World(Recovers, clock=VirtualClock, commit_interval=1, retry_backoff=1, retry_backoff_max=4)
        world.source.append("0", [b"1"], timestamp=now())
        async with world.running(1):
            await anyio.sleep(30 + 1 + 2 + 4 + 4 + 2)
            assert await world.columns("n") == [1]
        assert calls == [1, 2, 3, 4, 5]

    run(main())


@pytest.mark.parametrize("timers", [1, 3])
def test_only_the_failing_timer_waits_for_its_back_off(timers: int) -> None:
    calls: list[float] = []

    class Fails(Wall):
        def on_wake(self, key: Any, ctx: WakeContext) -> Any:
            if key == 1:
                calls.append(current_loop().now)
                raise ValueError("never")
            return (key,)

    async def main() -> None:
        world = World(Fails, clock=VirtualClock, commit_interval=1, retry_backoff=1, retry_backoff_max=4)
        world.source.append("0", [b"%d" % n for n in range(1, 1 + timers)], timestamp=now())
        async with world.running(1):
            await anyio.sleep(60)
            assert await world.columns("n") == list(range(2, 1 + timers))

    run(main())
    apart = [later - earlier for earlier, later in pairwise(calls) if later > earlier]  # at first alone, once more
    assert 7 <= len(apart) <= 20
    assert min(apart[3:]) > 1.5


BEGUN = datetime.fromtimestamp(EPOCH + START, UTC)
"""When a run in virtual time begins."""


class Commits(PartitionHandler):
    """Sets a timer 10 s after each record, commits the batch, and hangs."""

    output_schema = "n int"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.wake(record.json(), (record.timestamp or BEGUN) + GAP)
        await ctx.commit()
        await anyio.sleep_forever()

    def on_wake(self, key: Any, ctx: WakeContext) -> Any:
        return (key,)


def append_at(world: World, *seconds: float) -> None:
    """Add a record for each of these times after the beginning, which is its value."""
    for second in seconds:
        world.source.append("0", [b"%d" % second], timestamp=BEGUN + timedelta(seconds=second))


@pytest.mark.parametrize("drained", [False, True], ids=["from the commit", "from the checkpoint"])
def test_the_next_owner_fires_the_timers_that_the_last_one_left_due(drained: bool) -> None:
    async def main() -> None:
        world = World(Commits, clock=VirtualClock)
        append_at(world, 0, 5, 12)
        async with world.running(1) as actor:
            await anyio.sleep(1)
            assert actor.statistics.commits == 1
        if drained:
            actor = world.actor(2)
            actor.drain()
            await actor.run()
            assert (await world.checkpoint()).stream_time == (BEGUN + timedelta(seconds=12)).timestamp()
        assert await world.columns("n") == []
        world.handler = Commits
        await world.until_end(3)
        assert await world.columns("n") == [0]

    run(main())


def test_a_commit_says_the_stream_time_of_the_records_that_it_covers() -> None:
    class One(Commits):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            ctx.emit(batch[0], (0,))
            await ctx.commit(batch[0])

    async def main() -> None:
        world = World(One, clock=VirtualClock)
        append_at(world, 3, 7, 5)
        await world.until_end(1)
        commit = await OutputChain(world.store, world.layout, "0").read(0)
        assert commit is not None
        assert commit.stream_time == (BEGUN + timedelta(seconds=3)).timestamp()
        assert (await world.checkpoint()).stream_time == (BEGUN + timedelta(seconds=7)).timestamp()

    run(main())


async def test_a_reset_back_forgets_stream_time() -> None:
    state = PartitionState(Store(MemoryStore()), ProcessorLayout("p"), "0", 2**20)
    await state.load([], 100.0)
    made = partial(Commit, host="h", epoch=1, first=Cursor("", 9), next=Cursor("", 3), totals=Counts(), time=1.0)
    await state.follow(1, made())
    assert state.stream_time == 100
    await state.follow(2, made(stream_time=200.0))
    assert state.stream_time == 200
    reset = Reset(id="r", number=3, first=Cursor("", 9), next=Cursor("", 3), time=1.0, who="me", back=False)
    await state.follow(3, made(reset=reset))
    assert state.stream_time == 200
    await state.follow(4, made(reset=replace(reset, back=True)))
    assert state.stream_time is None


def test_a_handler_without_timers_commits_no_stream_time() -> None:
    async def main() -> None:
        world = World(clock=VirtualClock)
        world.feed(3)
        await world.until_end(1)
        assert (await world.checkpoint()).stream_time is None

    run(main())


def test_a_partition_that_ends_fires_all_of_its_timers_first() -> None:
    async def main() -> None:
        world = World(Wall, clock=VirtualClock)
        world.source.append("0", [b"1", b"2"], timestamp=now())
        world.source.add_partition("1", parents=["0"])
        async with world.running(1) as actor:
            await anyio.sleep(5)
            assert actor.ended
        assert await world.columns("n") == [1, 2]

    run(main())


def test_many_timers_are_committed_in_between_and_a_drain_leaves_the_rest() -> None:
    class Long(Wall):
        async def on_wake(self, key: Any, ctx: WakeContext) -> Any:
            await anyio.sleep(1)
            return (key,)

    async def main() -> None:
        world = World(Long, clock=VirtualClock, commit_interval=5)
        world.source.append("0", [str(n).encode() for n in range(100)], timestamp=now())
        async with world.running(1) as actor:
            await anyio.sleep(30 + 20)
            assert 10 <= len(await world.columns("n")) <= 20
            actor.drain()
            with anyio.fail_after(4):
                while actor.statistics.state != "drained":
                    await anyio.sleep(0.1)
        world.handler = Wall
        async with world.running(2):
            await anyio.sleep(6)
        assert sorted(await world.columns("n")) == list(range(100))

    run(main())


class Stopped(Clock):
    """A clock that moves only when it is set."""

    seconds = 4064.715525286922

    def monotonic(self) -> float:
        return self.seconds

    def wall(self) -> float:
        return NOON.timestamp()


async def test_a_timer_that_is_not_quite_due_is_waited_for() -> None:
    clock = Stopped(1)
    held = {b"k": msgpack.encode(Timer(NOON.timestamp() - 60, "stream"))}
    timers = Timers(held, None, Settings(stream_idle_time=60, max_timestamp_ahead=3600), clock, clock.wall)
    clock.seconds += 60
    assert timers._quiet_since + 60 - clock.seconds == 0  # and yet 60 seconds have not passed
    assert timers.due(10, (), at_end=True) == []
    clock.seconds += timers.next_in(at_end=True)
    assert timers.due(10, (), at_end=True) == [b"k"]


async def test_a_timer_that_is_set_with_each_record_has_one_entry() -> None:
    held: dict[bytes, bytes] = {}
    clock = Clock(1)
    timers = Timers(held, None, Settings(stream_idle_time=60, max_timestamp_ahead=3600), clock, clock.wall)
    state = AttemptState(kinds=StateKinds(wakes=True))
    for second in range(1000):
        set_timer(state, "k", NOON + timedelta(seconds=second), None)
        changes = state.take()
        held |= {key: value for key, value in changes[TIMERS].values.items() if value is not None}
        timers.changed(changes)
    assert len(timers._schedules["stream"]._heap) == 1
    due = partial(timers.due, 10, (), at_end=False)
    timers.passed(Batch.of("0", [b""], [0], timestamps=[NOON + timedelta(seconds=998.5)]))
    assert due() == []
    timers.passed(Batch.of("0", [b""], [1], timestamps=[NOON + timedelta(seconds=999)]))
    assert len(due()) == 1
    assert due() == []

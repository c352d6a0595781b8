"""The partition actor on a store: what is committed, what a new owner finds, what the loser of a race does."""

from __future__ import annotations

import gc
import io
import re
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from typing import Any, ClassVar

import anyio
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import structlog

from actorproc import errors
from actorproc.budget import ByteBudget, Tally
from actorproc.clock import Clock
from actorproc.context import PartitionContext, Site
from actorproc.handler import CloseReason, Decision, PartitionHandler
from actorproc.layout import ProcessorLayout
from actorproc.output.chain import OutputChain
from actorproc.output.checkpoints import Checkpoint
from actorproc.partition.handler_threads import HandlerThreads
from actorproc.partition.letter_news import LetterNews
from actorproc.partition.partition import Common, PartitionActor, _fitting
from actorproc.records import RECORD_SCHEMA, Batch, Record
from actorproc.rows.schema import output_schema, parse_schema
from actorproc.settings import Settings
from actorproc.sources.protocol import Chunk, End
from actorproc.store import Store
from actorproc.stores.memory import Memory
from actorproc.tasks import first_cause
from actorproc.testing.clock import VirtualClock
from actorproc.testing.loop import current_loop, run
from actorproc.testing.source import MemorySource


class Numbers(PartitionHandler):
    """A row for each even number, a failure for each that ends in 5, silence for the others."""

    output_schema = "n long"
    closed: ClassVar[list[CloseReason]] = []

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            number = record.json()
            if number % 10 == 5:
                ctx.dead_letter(record, "a five")
            elif number % 2 == 0:
                ctx.emit(record, {"n": number})

    async def closing(self, ctx: Site, reason: CloseReason) -> None:
        self.closed.append(reason)


class World:
    """One source and one store, on which partition actors come and go."""

    def __init__(
        self,
        handler: type[PartitionHandler] = Numbers,
        page: int = 1000,
        clock: Callable[[int], Clock] = Clock,
        **settings: Any,
    ) -> None:
        self.clock = clock
        self.source = MemorySource(1, page=page, step=3)
        self.store = Store(Memory(), clock=clock(0))
        self.layout = ProcessorLayout("p")
        self.handler = handler
        self.settings = Settings.load(**{"commit_interval": 1000, "idle_commit_interval": 1000, **settings})
        self.budget = ByteBudget(self.settings.read_ahead_bytes)
        self.waiting = Tally(self.settings.uncommitted_bytes)
        self.fed = 0

    def feed(self, count: int) -> None:
        self.source.append("0", [str(n).encode() for n in range(self.fed, self.fed + count)])
        self.fed += count

    def actor(
        self, epoch: int, end: End | None = None, reached: Callable[[str], None] = lambda _: None
    ) -> PartitionActor:
        common = Common(
            "p", f"host-{epoch}", self.handler, output_schema(parse_schema(self.handler.output_schema)), self.source,
            self.store, self.layout, self.settings, self.clock(epoch), "earliest", None, None,
            self.budget, self.waiting, LetterNews(), HandlerThreads(1, self.clock(epoch)),
        )  # fmt: skip
        return PartitionActor("0", epoch, common, end=end, reached=reached)

    async def until_end(self, epoch: int) -> PartitionActor:
        """Run a new owner until everything there is now is committed, and drain it."""
        done = anyio.Event()
        actor = self.actor(epoch, await self.source.end("0"), lambda _: done.set())
        with closing(actor):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(actor.run)
                with anyio.fail_after(300):
                    await done.wait()
                actor.drain()
        return actor

    @asynccontextmanager
    async def running(self, epoch: int) -> AsyncIterator[PartitionActor]:
        actor = self.actor(epoch)
        with closing(actor):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(actor.run)
                yield actor
                tasks.cancel_scope.cancel()

    async def rows(self) -> list[int]:
        found: list[int] = []
        for entry in (await self.store.list(self.layout.output)).entries:
            stored = await self.store.get(entry.key)
            assert stored is not None
            table = pq.read_table(io.BytesIO(stored.body))
            assert [s // 3 for s in table["_sequence"].to_pylist()] == table["n"].to_pylist()
            found += table["n"].to_pylist()
        return found

    async def letters(self) -> list[int]:
        entries = (await self.store.list(self.layout.dead_letters)).entries
        bodies = [await self.store.get(entry.key) for entry in entries]
        return [int(orjson.loads(line)["value"]) for stored in bodies if stored for line in stored.body.splitlines()]

    async def checkpoint(self) -> Checkpoint:
        stored = await self.store.get(self.layout.checkpoint("0"))
        assert stored is not None
        return Checkpoint.from_json("c", stored.body)

    async def check(self) -> None:
        assert await self.rows() == [n for n in range(self.fed) if n % 2 == 0]
        assert await self.letters() == [n for n in range(self.fed) if n % 10 == 5]
        number, previous = 0, -1
        chain = OutputChain(self.store, self.layout, "0")
        while (commit := await chain.read(number)) is not None:
            assert commit.first.sequence >= previous
            number, previous = number + 1, commit.next.sequence


async def eventually(what: Callable[[], Awaitable[object]]) -> None:
    with anyio.fail_after(60):
        while not await what():
            await anyio.sleep(0.001)


async def test_every_record_ends_as_rows_a_dead_letter_or_silence_and_the_checkpoint_says_how_far() -> None:
    world = World(max_batch_records=7)
    world.feed(100)
    await world.until_end(1)
    await world.check()
    checkpoint = await world.checkpoint()
    assert (checkpoint.cursor.sequence, checkpoint.number) == (99 * 3, 1)
    assert (checkpoint.totals.records, checkpoint.totals.rows, checkpoint.totals.dead_letters) == (100, 50, 10)
    assert Numbers.closed[-1] is CloseReason.HANDOFF


async def test_rows_count_as_waiting_until_they_are_committed_or_their_owner_ends() -> None:
    world = World(max_batch_records=7, commit_interval=1000)
    world.feed(20)
    async with world.running(1) as actor:
        await eventually(lambda: _is(actor.statistics.records == 20))
        assert world.waiting.used > 0
    assert world.waiting.used == world.waiting.holders == 0
    world.settings = world.settings.model_copy(update={"commit_interval": 0.001})
    async with world.running(2) as actor:
        await eventually(lambda: _is(actor.statistics.rows == 10))
        await eventually(lambda: _is(world.waiting.used == world.waiting.holders == 0))


async def _is(what: bool) -> bool:
    return what


async def test_owner_after_owner_goes_on_where_the_last_one_stopped() -> None:
    world = World(page=10, max_batch_records=3)
    for epoch in range(1, 6):
        world.feed(33)
        await world.until_end(epoch)
    await world.check()
    assert (await world.checkpoint()).totals.records == 165


async def test_a_killed_owner_loses_nothing_and_the_next_one_repeats_no_row() -> None:
    world = World(page=5, commit_rows=1, max_batch_records=4)
    world.feed(100)
    for epoch in range(1, 5):
        async with world.running(epoch) as actor:
            await eventually(lambda actor=actor: _at_least(actor.statistics.commits, 2))  # type: ignore[misc]
    await world.until_end(9)
    await world.check()


async def _at_least(count: int, least: int) -> bool:
    return count >= least


def test_no_commit_is_earlier_than_the_one_before_it_whatever_the_clocks_of_its_hosts_say() -> None:
    """Whether the owner before was drained, so that a checkpoint has passed its commits, or killed."""

    async def main() -> None:
        ahead = {1: 0.0, 2: 600.0, 3: -7200.0, 4: 300.0, 5: -60.0, 6: 900.0, 7: 0.0, 8: 0.0}
        world = World(clock=lambda epoch: VirtualClock(epoch, offset=ahead.get(epoch, 0.0)), commit_rows=1)
        for epoch in ahead:
            world.feed(10)
            if epoch in (1, 4, 7):
                async with world.running(epoch) as actor:
                    await eventually(lambda actor=actor: _at_least(actor.statistics.commits, 1))  # type: ignore[misc]
            else:
                await world.until_end(epoch)
        times: list[float] = []
        while (commit := await OutputChain(world.store, world.layout, "0").read(len(times))) is not None:
            times.append(commit.time)
        assert len(times) == len(ahead)
        assert times == sorted(times)
        assert times[-1] - times[0] == pytest.approx(900, abs=60)

    run(main(), seed=0)


def test_a_clock_that_is_a_year_ahead_dates_its_own_commits_and_none_after_them() -> None:
    async def main() -> None:
        ahead = {1: 0.0, 2: 365 * 86_400.0, 3: 0.0}
        world = World(clock=lambda epoch: VirtualClock(epoch, offset=ahead.get(epoch, 0.0)), commit_rows=1)
        times: list[float] = []
        for epoch in ahead:
            world.feed(10)
            await world.until_end(epoch)
            commit = await OutputChain(world.store, world.layout, "0").read(len(times))
            assert commit is not None
            times.append(commit.time)
        assert times[1] - times[0] == pytest.approx(365 * 86_400, abs=60)
        assert times[2] - times[0] == pytest.approx(0, abs=60)

    run(main(), seed=0)


async def test_of_two_owners_at_once_one_learns_at_its_next_commit_that_it_lost_and_leaves_nothing() -> None:
    world = World(commit_rows=1)
    lost: list[Exception] = []

    async def run(actor: PartitionActor) -> None:
        try:
            await actor.run()
        except Exception as error:  # noqa: BLE001
            lost.append(first_cause(error))

    old, new = world.actor(1), world.actor(2)
    with closing(old), closing(new):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, old)
            world.feed(10)
            await eventually(lambda: _at_least(old.statistics.commits, 1))
            tasks.start_soon(run, new)
            await eventually(lambda: _at_least(new.statistics.state == "running", True))
            while not lost:
                before = old.statistics.commits + new.statistics.commits
                world.feed(10)
                with anyio.fail_after(60):
                    while not lost and old.statistics.commits + new.statistics.commits == before:
                        await anyio.sleep(0.001)
            tasks.cancel_scope.cancel()
    assert [type(error) for error in lost] == [errors.Fenced]
    assert re.search("host-([12]) with epoch \\1 has", str(lost[0])), "it names the winner"
    await world.until_end(3)
    await world.check()


async def three_commits(world: World) -> bytes:
    """The checkpoint as it was after the first."""
    early = None
    for epoch in range(1, 4):
        world.feed(10)
        await world.until_end(epoch)
        early = early or await world.store.get(world.layout.checkpoint("0"))
    assert early is not None
    return early.body


async def refusal(world: World, epoch: int) -> str:
    """What keeps a new owner from processing anything."""
    actor = world.actor(epoch)
    with anyio.fail_after(60), closing(actor), pytest.raises(errors.CorruptObject) as raised:
        await actor.run()
    return str(raised.value)


async def test_a_checkpoint_that_was_deleted_is_found_again_in_the_commits() -> None:
    world = World()
    await three_commits(world)
    await world.store.delete(world.layout.checkpoint("0"))
    world.feed(10)
    await world.until_end(9)
    await world.check()


async def test_a_commit_and_the_checkpoint_that_were_deleted_are_not_made_anew_with_rows_that_later_commits_have() -> (
    None
):
    world = World()
    await three_commits(world)
    await world.store.delete(world.layout.checkpoint("0"))
    await world.store.delete(world.layout.output_file("0", 1))
    for epoch in (9, 10):  # the first leaves a checkpoint
        assert "00001.parquet: is not there, and p/output/partition=0/" in await refusal(world, epoch)
    assert len(await world.rows()) == 10


async def test_a_commit_that_was_deleted_is_noticed_though_the_checkpoint_was_not() -> None:
    world = World(commit_rows=1)
    early = await three_commits(world)
    await world.store.put(world.layout.checkpoint("0"), early)
    await world.store.delete(world.layout.output_file("0", 1))
    for epoch in (5, 6):
        assert "00001.parquet: is not there, and p/output/partition=0/" in await refusal(world, epoch)
    assert len(await world.rows()) == 10


async def test_a_commit_with_other_records_than_it_had_is_noticed() -> None:
    world = World(commit_rows=1)
    early = await three_commits(world)
    await world.store.put(world.layout.checkpoint("0"), early)
    other = await world.store.get(world.layout.output_file("0", 2))
    assert other is not None
    await world.store.put(world.layout.output_file("0", 1), other.body)
    assert "00001.parquet: it goes on after record" in await refusal(world, 5)


async def test_an_earlier_epoch_is_refused_at_the_door() -> None:
    world = World()
    world.feed(1)
    await world.until_end(5)
    actor = world.actor(4)
    with pytest.raises(errors.Fenced, match="epoch 5"):
        await actor.run()
    actor.close()


async def test_dead_letters_of_a_commit_whose_owner_died_before_publishing_are_published_by_the_next() -> None:
    world = World(commit_rows=1)
    world.feed(10)
    await world.until_end(1)
    for entry in (await world.store.list(world.layout.dead_letters)).entries:
        await world.store.delete(entry.key)
    stored = await world.store.get(world.layout.checkpoint("0"))
    assert stored is not None
    document = orjson.loads(stored.body) | {"number": 0, "cursor": ["0", -1]}
    await world.store.put(world.layout.checkpoint("0"), orjson.dumps(document))
    world.feed(10)
    await world.until_end(2)
    await world.check()


def test_silence_moves_the_checkpoint_alone_and_no_sooner_than_idle_commit_interval() -> None:
    class Silent(Numbers):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            pass

    async def main() -> None:
        world = World(Silent, clock=VirtualClock, commit_interval=5, idle_commit_interval=60)
        world.feed(10)
        async with world.running(1):
            await anyio.sleep(59)
            assert not await _moved(world)
            await anyio.sleep(2)
            assert await _moved(world)
        assert await world.rows() == []

    run(main())


def test_rows_are_committed_when_they_have_waited_for_commit_interval_and_no_sooner() -> None:
    async def main() -> None:
        world = World(clock=VirtualClock, commit_interval=5, idle_commit_interval=60)
        world.feed(10)
        async with world.running(1):
            await anyio.sleep(4.9)
            assert await world.rows() == []
            await anyio.sleep(0.2)
            await world.check()

    run(main())


async def _moved(world: World) -> bool:
    try:
        return (await world.checkpoint()).cursor.sequence == 27
    except AssertionError:
        return False


async def test_without_auto_commit_only_the_handler_commits() -> None:
    class Manual(Numbers):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            await super().process(batch, ctx)
            if batch.last >= 60:
                await ctx.commit()

    world = World(Manual, page=5, auto_commit=False, commit_interval=0.001, commit_rows=1)
    world.feed(10)
    async with world.running(1) as actor:
        await eventually(lambda: _at_least(actor.statistics.records, 10))
        await anyio.sleep(0.02)
        assert await world.rows() == []
        world.feed(11)
        await eventually(lambda: _at_least(actor.statistics.committed.sequence, 60))
        assert await world.rows() == [n for n in range(21) if n % 2 == 0]


async def test_a_commit_up_to_a_record_is_where_the_next_owner_goes_on() -> None:
    class Manual(Numbers):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            await super().process(batch, ctx)
            await ctx.commit(batch[3])
            await anyio.sleep_forever()

    world = World(Manual)
    world.feed(10)
    async with world.running(1) as actor:
        await eventually(lambda: _at_least(actor.statistics.commits, 1))
    assert await world.rows() == [0, 2]
    world.handler = Numbers
    await world.until_end(2)
    await world.check()


async def test_at_most_once_shows_no_record_to_a_second_owner() -> None:
    seen: list[int] = []

    class Once(Numbers):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            seen.extend(record.json() for record in batch)
            await anyio.sleep_forever()

    world = World(Once, max_batch_records=4, delivery="at-most-once")
    world.feed(12)
    for epoch in (1, 2, 3):
        async with world.running(epoch):
            await eventually(lambda epoch=epoch: _at_least(len(seen), 4 * epoch))  # type: ignore[misc]
    assert seen == list(range(12))


@pytest.mark.parametrize("delivery", ["at-least-once", "at-most-once"])
async def test_what_was_read_before_the_source_failed_is_handled_and_committed(delivery: str) -> None:
    class Torn(MemorySource):
        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            async for chunk in super().read(partition, position):
                if chunk.next == "30":
                    raise errors.SourceError("the third page is torn")
                yield chunk

    world = World(page=10, read_ahead_batches=4, delivery=delivery)
    world.source = Torn(1, page=10, step=3)
    world.feed(25)
    world.source.append("0", [b"25"] * 5)
    actor = world.actor(1)
    with closing(actor), pytest.raises(ExceptionGroup) as caught:
        await actor.run()
    assert "the third page is torn" in str(first_cause(caught.value))
    assert await world.rows() == list(range(0, 20, 2))
    assert await world.letters() == [5, 15]


async def test_at_most_once_silence_is_told_by_the_checkpoint_too() -> None:
    class Silent(Numbers):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            pass

    world = World(Silent, idle_commit_interval=0.01, delivery="at-most-once")
    world.feed(10)
    async with world.running(1) as actor:
        await eventually(lambda: _at_least(actor.statistics.committed.sequence, 27))
    assert (await world.checkpoint()).totals.records == 10


async def test_output_written_by_one_commit_is_one_file_with_rows_in_order() -> None:
    world = World(max_batch_records=3)
    world.feed(50)
    await world.until_end(1)
    entries = (await world.store.list(world.layout.output)).entries
    assert [entry.key for entry in entries] == ["p/output/partition=0/00000000000000000000.parquet"]
    stored = await world.store.get(entries[0].key)
    assert stored is not None
    schema = pq.read_schema(io.BytesIO(stored.body))
    assert schema.remove_metadata().equals(pa.schema([("n", pa.int64()), pa.field("_sequence", pa.int64(), False)]))


@pytest.mark.parametrize("column", ["value", "keys", "headers"])
def test_a_batch_keeps_both_limits_whatever_its_bytes_are_in(column: str) -> None:
    large: list[Any] = [b"x" * 200] * 1000
    if column == "headers":
        large = [[("h", content)] for content in large]
    short: list[bytes | None] = [b"v"] * 1000
    chunk = (
        Batch.of("0", large, range(1000)) if column == "value" else Batch.of("0", short, range(1000), **{column: large})
    )
    cut = _fitting(chunk, 80, 10_000), _fitting(chunk, 30, 10_000), _fitting(chunk, 80, 10)
    assert 35 < cut[0] < 50
    assert chunk[: cut[0]].nbytes <= 10_000 < chunk[: cut[0] + 1].nbytes
    assert cut[1:] == (30, 1)


async def test_a_partition_that_waits_for_news_keeps_no_batch() -> None:
    seen: list[weakref.ref[Batch]] = []

    class Watched(Numbers):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            await super().process(batch, ctx)
            seen.append(weakref.ref(batch))

    world = World(Watched, max_batch_records=7, commit_interval=0.01)
    world.feed(10)
    async with world.running(1) as actor:
        await eventually(lambda: _committed(actor))
        gc.collect()
        assert [batch() for batch in seen] == [None, None]


async def _committed(actor: PartitionActor) -> bool:
    return actor.statistics.committed.sequence == 27


# Small pieces: a batch costs its pauses however small it is


class Fails(Numbers):
    """At each five, until it is given up. A good record takes `work` seconds."""

    work = 0.001
    attempts: ClassVar[list[tuple[int, int]]]

    def __init_subclass__(cls) -> None:
        cls.attempts = []

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        self.attempts.append((ctx.attempt, len(batch)))

        async def one(record: Record) -> None:
            if (number := record.json()) % 10 == 5:
                raise ValueError("a five")
            await anyio.sleep(self.work)
            if number % 2 == 0:
                ctx.emit(record, {"n": number})

        await ctx.map(batch, one, concurrency=1)


def in_small_pages(handler: type[Fails], **settings: Any) -> list[int]:
    """The sizes of the batches that it gets of 1,000 records in pages of ten, in virtual time."""

    async def main() -> None:
        world = World(handler, page=10, clock=VirtualClock, **settings)
        world.feed(1000)
        await world.until_end(1)
        await world.check()
        assert world.budget.used == 0

    run(main())
    return [records for attempt, records in handler.attempts if attempt == 1]


def test_bad_records_in_each_of_many_small_pages_cost_their_pauses_together() -> None:
    class Quick(Fails): ...

    sizes = in_small_pages(Quick)
    assert sum(sizes) == 1000
    assert len(sizes) < 6, "of pauses, too"
    assert max(sizes) == 640, "in no more than 64 pieces"
    assert Quick.attempts[:6] == [(1, 10), (2, 1), (3, 1), (1, 10), (2, 1), (3, 1)]


@pytest.mark.parametrize(
    ("work", "limits", "largest"),
    [
        (0.001, {"max_batch_records": 25}, {20}),
        (0.001, {"max_batch_bytes": 1500}, {40, 50, 60, 70}),
        (0.02, {}, {40, 50}),
        (0.05, {}, {10, 20}),
        (0.001, {"read_ahead_bytes": 3000, "max_batch_bytes": 3000}, {110, 120, 130, 140}),
        (0.001, {"max_attempts": 1}, {10}),  # no pause
        (0.001, {"delivery": "at-most-once"}, {10}),
    ],
)
def test_small_pages_share_a_batch_within_its_limits_and_that_of_a_second_of_work(
    work: float, limits: dict[str, Any], largest: set[int]
) -> None:
    class Slow(Fails): ...

    Slow.work = work
    assert max(in_small_pages(Slow, **limits)) in largest


def test_without_pauses_each_page_is_a_batch() -> None:
    class Never(Fails):
        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision:
            return Decision.DEAD_LETTER

    assert set(in_small_pages(Never)) == {10}


@pytest.mark.parametrize(("pausing", "pages"), [(False, 4), (True, 6)])
def test_read_ahead_goes_no_further_than_its_batches_and_two_more_in_a_pause(pausing: bool, pages: int) -> None:
    class Stuck(Numbers):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            if pausing:
                raise ValueError("not yet")
            await anyio.sleep_forever()

        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision:
            return Decision.RETRY

    class Counted(MemorySource):
        pages = 0

        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            async for chunk in super().read(partition, position):
                Counted.pages += 1
                yield chunk

    async def main() -> None:
        world = World(Stuck, clock=VirtualClock, read_ahead_batches=2)
        world.source = Counted(1, page=10, step=3)
        world.feed(1000)
        async with world.running(1):
            await anyio.sleep(100)
        assert Counted.pages == pages

    run(main())


@pytest.mark.parametrize("end", [End("300", 299 * 3), End("unknown", None)])
def test_what_leads_up_to_the_end_that_is_waited_for_does_not_share_a_batch_with_what_comes_after_it(end: End) -> None:
    class Poisoned(Fails):
        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision | None:
            return Decision.STOP if failed.last >= 300 * 3 else None

    class Grows(MemorySource):
        async def end(self, partition: str) -> End:
            return end

        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            async for chunk in super().read(partition, position):
                yield chunk
                if chunk.next == "300" and len(chunk.batch):
                    yield Chunk(chunk.batch[:0], chunk.next)
                    self.append("0", [b"5"] * 700)

    async def main() -> None:
        world = World(Poisoned, clock=VirtualClock)
        world.source = Grows(1, page=10, step=3)
        world.feed(300)
        actor = await world.until_end(1)
        assert actor.statistics.committed.sequence == 299 * 3

    run(main())


async def test_pages_of_other_types_are_batches_of_their_own() -> None:
    large = pa.schema(
        [field.with_type(pa.large_binary()) if field.name == "value" else field for field in RECORD_SCHEMA]
    )

    class Mixed(MemorySource):
        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            async for chunk in super().read(partition, position):
                batch = chunk.batch
                if int(chunk.next) % 40 == 0:
                    batch = Batch(partition, batch.data.cast(large), batch.sequence_array)
                yield Chunk(batch, chunk.next)

    world = World()
    world.source = Mixed(1, page=10, step=3)
    world.feed(200)
    await world.until_end(1)
    await world.check()


# The size of batches


def sizes_of_batches(seconds: Callable[[int, int], float], records: int = 80_000, **settings: Any) -> list[int]:
    """Of a backlog, where the batch with this number and size takes so many seconds, in virtual time."""
    sizes: list[int] = []

    class Works(PartitionHandler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            sizes.append(len(batch))
            await anyio.sleep(seconds(len(sizes), len(batch)))

    async def main() -> None:
        world = World(Works, page=20_000, clock=VirtualClock, **settings)
        world.feed(records)
        async with world.running(1) as actor:
            while actor.statistics.records < records:
                await anyio.sleep(1)

    run(main())
    return sizes


def test_the_first_batches_are_small_and_those_of_a_quick_handler_soon_as_large_as_may_be() -> None:
    sizes = sizes_of_batches(lambda _, size: size * 1e-6)
    assert sizes[0] == 100
    assert max(sizes) == 10_000
    assert len(sizes) < 12
    assert max(sizes_of_batches(lambda _, size: size * 1e-6, max_batch_records=1000)) == 1000


@pytest.mark.parametrize(("each", "most"), [(0.001, 5000), (0.03, 166), (1.0, 5)])
def test_a_batch_is_no_more_than_some_seconds_of_work_for_a_handler_that_takes_its_time_for_each_record(
    each: float, most: int
) -> None:
    sizes = sizes_of_batches(lambda _, size: size * each, records=20_000 if each < 1 else 1000)
    assert 0.9 * most <= max(sizes[1:]) <= most  # of the first nothing is known


def test_a_handler_that_takes_its_time_for_each_batch_gets_large_ones() -> None:
    assert max(sizes_of_batches(lambda _, size: 6.0)) == 10_000
    assert max(sizes_of_batches(lambda _, size: 6.0 + size * 0.0001)) == 10_000
    assert 4000 < max(sizes_of_batches(lambda _, size: 6.0 + size * 0.001)) <= 5500


def test_what_is_quick_in_small_pieces_does_not_come_as_one_large_batch() -> None:
    """Calls, 32 at once: one takes as long as 32."""
    sizes: list[int] = []

    class Calls(PartitionHandler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            sizes.append(len(batch))
            await ctx.map(batch, lambda _: anyio.sleep(0.1))

    async def main() -> None:
        world = World(Calls, page=20_000, clock=VirtualClock)
        async with world.running(1) as actor:
            for few in (3, 1, 6, 2, 9):
                world.feed(few)
                await anyio.sleep(5)
            world.feed(20_000)
            while actor.statistics.records < world.fed:
                await anyio.sleep(1)

    run(main())
    assert sizes[:5] == [3, 1, 6, 2, 9]
    assert max(sizes) / 32 * 0.1 < 6
    assert max(sizes) > 1000


@pytest.mark.parametrize("seconds", [4.9, 5.05, 5.2])
def test_a_handler_of_which_each_batch_takes_just_as_long_as_may_be_gets_no_ever_smaller_ones(seconds: float) -> None:
    sizes = sizes_of_batches(lambda _, size: seconds + size * 0.0001, 200_000)
    assert max(sizes) > 1000


def test_a_slow_beginning_is_forgotten_and_a_service_that_gets_slow_makes_batches_small_again() -> None:
    def seconds(number: int, size: int) -> float:
        return 3.0 if number == 1 else size * (0.0005 if number < 8 else 0.05)

    sizes = sizes_of_batches(seconds, 120_000)
    assert max(sizes[:8]) == 10_000
    assert max(sizes[9:]) == 100, "one was on its way"


# What is said of failures


def test_records_that_fail_one_by_one_and_are_tried_again_are_told_now_and_then_and_shown_until_they_are_through() -> (
    None
):
    up_at = 0.0

    class Refused(ConnectionError):
        def __repr__(self) -> str:
            return "Refused(headers={'Authorization': 'Bearer secret'})"  # as that of an HTTP client's errors

    class Down(Numbers):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            async def call(record: Record) -> None:
                if record.json() in (3, 7) and current_loop().now < up_at:
                    raise Refused("503")

            await ctx.map(batch, call)

        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision:
            return Decision.RETRY

    async def main() -> None:
        nonlocal up_at
        up_at = current_loop().now + 60
        world = World(Down, clock=VirtualClock, retry_backoff_max=2)
        world.feed(10)
        with structlog.testing.capture_logs() as logs:
            async with world.running(1) as actor:
                await anyio.sleep(50)
                assert re.fullmatch(
                    r"tries 2 records from 9 on again, after attempt \d+: Refused: 503", actor.trouble or ""
                )
                await anyio.sleep(50)
                assert actor.trouble is None
        told = [log for log in logs if log["event"] == "partition.attempt_failed"]
        warned = [log for log in told if log["log_level"] == "warning"]
        assert warned[0].items() >= {"attempt": 1, "records": 2, "first": 9, "error": "Refused: 503"}.items()
        assert 5 <= len(warned) <= 7
        assert len(told) > 25

    run(main())


async def test_a_row_that_does_not_fit_is_not_tried_again() -> None:
    class Wrong(Numbers):
        attempts = 0

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            Wrong.attempts += 1
            for record in batch:
                ctx.emit(record, {"n": "five" if record.json() % 10 == 5 else record.json() * 2})

    world = World(Wrong)
    world.feed(20)
    await world.until_end(1)
    assert (await world.letters(), Wrong.attempts) == ([5, 15], 1)

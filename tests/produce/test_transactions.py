"""A transaction appends its staged records once, although drivers are killed, late or concurrent."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime

import anyio
import numpy as np
import orjson
import pytest

from actorproc.errors import CorruptObject, SourceError, StoreUnavailable, UsageError
from actorproc.log.metadata import create_log
from actorproc.log.positions import end_base
from actorproc.produce import transactions
from actorproc.produce.producer import Producer
from actorproc.produce.staged_files import StagedFile, decode_staged, encode_staged
from actorproc.produce.transactions import Transactions, is_begun, is_done
from actorproc.records import Batch
from actorproc.retention.boundary import raise_boundary
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.sources.log import LogSource
from actorproc.sources.protocol import list_partitions
from actorproc.storage.names import LOG_STAGED, log_boundary, log_file, log_staged, log_transaction
from actorproc.storage.store import Store, StoreLimits
from actorproc.stores.memory import MemoryStore
from tests.fragile import CLOCK, Fate, Fragile, Killed, Shuffled
from tests.log.reading import batches

TIME = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
PARTITIONS = 3


class Driver(Fragile):
    """Can be killed at a delete, too."""

    async def delete(self, key: str) -> None:
        await self.fate.write(self.truth, "delete", key)


class KilledAtTheEnd(Fragile):
    """Before it says that all is appended."""

    async def put_if_match(self, key: str, body: bytes, tag: str) -> str:
        if key.startswith("transactions/"):
            raise Killed
        return await super().put_if_match(key, body, tag)


class World:
    """A log in memory with a file in it, and drivers that append to it in a transaction named `t`."""

    def __init__(self) -> None:
        self.truth = MemoryStore()

    async def prepare(self) -> None:
        await create_log(Store(self.truth), PARTITIONS)
        await self.someone_appends()

    async def someone_appends(self) -> None:
        async with Producer(Store(self.truth), partitioner=lambda key, *_: int(key or 0)) as producer:
            await producer.send_many([b"another's"] * 2, keys=["0", "1"])

    async def stage(self, store: Store, batch: int, values: Sequence[str]) -> list[StagedFile]:
        """Two objects: the values go to partitions in turn, the last to 2 alone."""
        staged = []
        for n, part in enumerate((values[:-1], values[-1:])):
            chosen = np.array([(index + 2 * n) % PARTITIONS for index in range(len(part))], np.uint32)
            data = Batch.of("", [v.encode() for v in part], range(len(part)), timestamps=[TIME] * len(part)).data
            body, partitions = encode_staged([(data, chosen)])
            key = log_staged("t", batch, store.clock.nonce())
            await store.put(key, body)
            staged.append(StagedFile(key, data.nbytes, partitions))
        return staged

    async def commit(
        self,
        batch: int,
        values: Sequence[str],
        fate: Fate | None = None,
        store: Store | None = None,
        name: str = "t",
        *,
        in_turn: bool = False,
    ) -> None:
        """Run a driver's commit: stage, then commit."""
        store = store or Store(Driver(self.truth, fate or Fate()), limits=StoreLimits(patience=0))
        staged = await self.stage(store, batch, values)
        async with Transactions.opened(store) as opened:
            await opened.commit(name, batch, staged, in_turn=in_turn)

    async def commit_elsewhere(self, batch: int, values: Sequence[str]) -> None:
        """Its tasks have staged where the driver does not look."""
        staged = await self.stage(Store(MemoryStore()), batch, values)
        async with Transactions.opened(Store(self.truth)) as opened:
            await opened.commit("t", batch, staged)

    async def values(self) -> dict[str, list[bytes | None]]:
        """The values by partition, without those of other writers. Checks that sequences have no gaps."""
        source = LogSource(Store(self.truth))
        await source.open()
        found = {}
        for partition in await list_partitions(source):
            read = await batches(source, partition)
            assert [n for batch in read for n in batch.sequences] == list(range(sum(map(len, read))))
            found[partition] = [v for batch in read for v in batch.values if v != b"another's"]
        return found

    async def staged(self) -> list[str]:
        return [entry.key for entry in (await self.truth.list(LOG_STAGED)).entries]


@pytest.fixture(params=["one group", "a group each"])
async def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> World:
    if request.param == "a group each":
        monkeypatch.setattr(transactions, "GROUP_BYTES", 1)
    return await new_world()


async def new_world() -> World:
    world = World()
    await world.prepare()
    return world


BATCH = ["a", "b", "c", "d", "e"]  # `e` comes in an object of its own
EXPECTED = {"0": [b"a", b"d"], "1": [b"b"], "2": [b"c", b"e"]}


async def test_a_commit_appends_in_order_and_deletes_staged_files(world: World) -> None:
    await world.commit(0, BATCH)
    assert await world.values() == EXPECTED
    assert await world.staged() == []
    assert await is_done(Store(world.truth), "t", 0)
    assert not await is_done(Store(world.truth), "t", 1)


async def test_a_finished_batch_is_not_appended_again(world: World) -> None:
    await world.commit(3, BATCH)
    await world.commit(3, ["other", "records", "this time"])
    await world.commit(2, BATCH)
    assert await world.values() == EXPECTED
    await world.commit(4, ["x", "y"])
    assert await world.values() == {"0": [b"a", b"d", b"x"], "1": [b"b"], "2": [b"c", b"e", b"y"]}
    assert await world.staged() == []


async def test_in_turn_refuses_a_batch_before_the_latest(world: World) -> None:
    await world.commit(3, BATCH, in_turn=True)
    await world.commit(3, BATCH, in_turn=True)
    with pytest.raises(
        SourceError, match="micro-batch 2 is to be appended to memory://, and 3 of the same query is there"
    ):
        await world.commit(2, ["other", "records"], in_turn=True)
    assert await world.values() == EXPECTED


async def test_staged_files_of_a_later_batch_stay(world: World) -> None:
    later = await world.stage(Store(world.truth), 1, ["x", "y"])
    await world.commit(0, BATCH)
    assert await world.staged() == sorted(one.key for one in later)


async def test_a_batch_of_nothing_is_done(world: World) -> None:
    async with Transactions.opened(Store(world.truth)) as opened:
        await opened.commit("t", 0, [])
    await world.commit(0, BATCH)
    assert not any((await world.values()).values())


async def test_is_begun_from_the_plan_to_the_end_of_a_batch(world: World) -> None:
    store = Store(world.truth)

    async def begun() -> list[bool]:
        return [await is_begun(store, "t", batch) for batch in (2, 3, 4)]

    assert await begun() == [False] * 3
    with pytest.raises((Killed, BaseExceptionGroup)):
        await world.commit(3, BATCH, Fate(4, "before"))  # two staged, the hint, the plan; then the first append
    assert await begun() == [False, True, True]
    async with Transactions.opened(store) as opened:
        await opened.commit("t", 4, [])
    assert await begun() == [False] * 3
    assert await world.values() == EXPECTED


async def test_a_commit_wakes_waiting_readers(world: World) -> None:
    source = LogSource(Store(world.truth))
    await source.open()
    found: list[bytes | None] = []

    async def read() -> None:
        async for chunk in source.read("1", "0"):
            found.extend(chunk.batch.values)
            if b"b" in found:
                return

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            while b"another's" not in found:
                await anyio.sleep(0.01)
            await world.commit(0, BATCH)
    await source.close()
    assert found == [b"another's", b"b"]


async def writes_of_a_commit() -> int:
    world, fate = await new_world(), Fate()
    await world.commit(0, BATCH, fate)
    return fate.writes


@pytest.mark.parametrize("others_append", [False, True])
@pytest.mark.parametrize("how", ["before", "after", "late"])
@pytest.mark.usefixtures("world")  # for its groups
async def test_a_driver_killed_at_any_write_loses_and_repeats_nothing(how: str, others_append: bool) -> None:
    total = await writes_of_a_commit()
    assert total >= 10  # staged, the hint, the plan, the appends, the plan again, the removals
    for number in range(total):
        for landing in range(number % 5, total + 2, 5) if how == "late" else [0]:
            world = await new_world()
            fate = Fate(number, how)
            with pytest.raises((Killed, BaseExceptionGroup)):
                await world.commit(0, BATCH, fate)
            if others_append:
                await world.someone_appends()
            again = Fate(lands=fate.pending, landing=landing)
            await world.commit(0, BATCH, again)
            if others_append:
                await world.someone_appends()
            await again.land()
            await world.commit(0, BATCH)
            assert await world.values() == EXPECTED, (number, how, landing)
            await world.commit(1, ["x", "y"])
            assert await world.staged() == []


@pytest.mark.usefixtures("world")
async def test_killed_twice_at_any_two_writes_repeats_and_loses_nothing() -> None:
    total = await writes_of_a_commit()
    for first in range(total):
        for second in range(first % 3, total, 3):
            world = await new_world()
            with pytest.raises((Killed, BaseExceptionGroup)):
                await world.commit(0, BATCH, Fate(first, "after"))
            await world.someone_appends()
            try:
                await world.commit(0, BATCH, Fate(second, "before"))
            except (Killed, BaseExceptionGroup):
                await world.someone_appends()
            await world.commit(0, BATCH)
            assert await world.values() == EXPECTED, (first, second)


@pytest.mark.parametrize("seed", range(8))
async def test_concurrent_drivers_with_different_splits_append_one_of_them(world: World, seed: int) -> None:
    """The log has the whole batch as the driver staged it that decided first."""
    CLOCK.random.seed(seed)

    def store() -> Store:
        return Store(Shuffled(world.truth, Fate()))

    ways = [BATCH, list(reversed(BATCH)), ["a", "c", "b", "d", "e"]]

    async def produce() -> None:
        async with Producer(store(), partitioner=lambda key, *_: int(key or 0), linger=0) as producer:
            for n in range(10):
                await (await producer.send(b"another's", key=n % PARTITIONS))

    async with anyio.create_task_group() as tasks:
        for way in ways:
            tasks.start_soon(world.commit, 0, way, None, store())
        tasks.start_soon(produce)
    expected = [
        {str(p): [v.encode() for v in [*way[:4][p::3], *way[4:][p - 2 :][: p == 2]]] for p in range(3)} for way in ways
    ]
    assert expected[0] == EXPECTED
    assert await world.values() in expected
    await world.commit(1, ["x", "y"])
    assert await world.staged() == []


async def test_a_commit_goes_on_after_an_outage(world: World) -> None:
    class Down(Fragile):
        async def put_if_absent(self, key: str, body: bytes) -> str:
            if key.startswith("partition=1"):
                raise StoreUnavailable("down")
            return await super().put_if_absent(key, body)

    with pytest.raises(StoreUnavailable):
        await world.commit(0, BATCH, store=Store(Down(world.truth, Fate()), limits=StoreLimits(patience=0)))
    assert (await world.values())["1"] == []
    await world.commit(0, ["not these"])
    assert await world.values() == EXPECTED


async def test_an_unfinished_batch_with_deleted_segments_is_refused(world: World) -> None:
    """Otherwise records that were appended, read and deleted would be appended again."""

    with pytest.raises((Killed, BaseExceptionGroup)):
        await world.commit(0, BATCH[:3], store=Store(KilledAtTheEnd(world.truth, Fate())))
    assert (await world.values())["0"] == [b"a"]
    await world.someone_appends()
    await world.truth.delete(log_file("0", 1))  # where `a` was
    with pytest.raises(CorruptObject, match=r"transactions/t\.json: batch 0 is unfinished.*partition 0.*begin at 2"):
        await world.commit(0, BATCH)


async def test_an_unfinished_batch_below_the_boundary_is_refused_beside_a_void_segment(world: World) -> None:
    slept = await world.truth.get(log_file("0", 0))
    assert slept is not None
    with pytest.raises((Killed, BaseExceptionGroup)):
        await world.commit(0, BATCH[:3], store=Store(KilledAtTheEnd(world.truth, Fate())))
    assert (await world.values())["0"] == [b"a"]
    await world.someone_appends()
    await raise_boundary(Store(world.truth), log_boundary("0"), 2)
    await world.truth.delete(log_file("0", 1))  # where `a` was
    await world.truth.put_if_absent(log_file("0", 1), slept.body)
    with pytest.raises(CorruptObject, match=r"transactions/t\.json: batch 0 is unfinished.*partition 0.*begin at 2"):
        await world.commit(0, BATCH)
    assert await end_base(Store(world.truth), "0") == 3


async def test_a_transaction_of_format_1_is_continued(world: World) -> None:
    """In that format `put_id` named the batch, and `write_id` made each version unique."""
    with pytest.raises((Killed, BaseExceptionGroup)):
        await world.commit(0, BATCH, store=Store(KilledAtTheEnd(world.truth, Fate())))
    stored = await world.truth.get(log_transaction("t"))
    assert stored is not None
    document = orjson.loads(stored.body)
    document |= {"version": 1, "write_id": document["put_id"], "put_id": document.pop("batch_id")}
    await world.truth.put(log_transaction("t"), orjson.dumps(document))
    await world.someone_appends()
    await world.commit(0, BATCH)
    assert await world.values() == EXPECTED


async def test_a_missing_staged_file_is_named(world: World) -> None:
    with pytest.raises((Killed, BaseExceptionGroup)):
        await world.commit(0, BATCH, Fate(4, "before"))  # two staged, the hint, the plan; then the first append
    for key in await world.staged():
        await world.truth.delete(key)
    with pytest.raises(CorruptObject, match=r"staged/t/0+/.* is needed by an unfinished transaction"):
        await world.commit(0, BATCH)


def test_abandoned_staged_files_are_deleted_after_a_week() -> None:
    async def main() -> None:
        clock = VirtualClock("t")
        world = World()
        world.truth = MemoryStore(clock=clock)
        store = Store(world.truth, clock=clock)
        await create_log(store, PARTITIONS)
        await world.stage(store, 0, BATCH)  # its transaction will stay unfinished
        with pytest.raises((Killed, BaseExceptionGroup)):
            await world.commit(0, BATCH, store=Store(Fragile(world.truth, Fate(4, "before")), clock=clock))
        needed = await world.staged()
        body = (await store.get(needed[0])).body  # type: ignore[union-attr]
        await store.put(log_staged("another", 7, "x"), body)
        await clock.sleep(transactions.ABANDONED_AFTER + 1)
        await store.put(log_staged("a third", 7, "x"), body)
        async with Transactions.opened(store) as opened:
            await opened.commit("u", 0, [])
        assert sorted(await world.staged()) == sorted([*needed, log_staged("a third", 7, "x")])

    run(main())


async def test_an_unnamed_transaction_is_deleted_when_done(world: World) -> None:
    async with AsyncExitStack() as stack:
        store = Store(world.truth)
        opened = await stack.enter_async_context(Transactions.opened(store))
        await opened.commit(transactions.UNNAMED + "1", 0, await world.stage(store, 0, BATCH))
    assert await store.get(log_transaction(transactions.UNNAMED + "1")) is None
    assert await world.values() == EXPECTED


async def test_a_place_without_a_log_is_refused() -> None:
    with pytest.raises(UsageError, match="there is no log"):
        async with Transactions.opened(Store(MemoryStore())):
            pass


def test_a_corrupt_staged_file_is_named() -> None:
    with pytest.raises(CorruptObject, match="staged/t: is not a valid staged file"):
        decode_staged("staged/t", b"what")


async def test_foreign_objects_beside_staged_files_stay(world: World) -> None:
    for name in ("", ".DS_Store", "t/", "t/.DS_Store", "t/00000000000000000000/", "t/00000000000000000000/.DS_Store"):
        await world.truth.put(LOG_STAGED + name, b"not ours")
    before = await world.staged()
    await world.commit(0, BATCH)
    assert await world.staged() == before


async def test_files_staged_in_another_store_are_refused() -> None:
    world = World()
    await world.prepare()
    with pytest.raises(UsageError, match=r"2 of 2 objects that tasks have staged .* every machine must reach the log"):
        await world.commit_elsewhere(0, ["a", "b", "c"])
    await world.commit(0, ["a", "b", "c"])
    assert sorted(value for found in (await world.values()).values() for value in found if value) == [b"a", b"b", b"c"]

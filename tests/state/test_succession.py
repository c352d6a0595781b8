"""Keyed state and timers of partitions that split and merge: taken by those that follow, once, by key where known."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import anyio
import pyarrow.parquet as pq
import pytest

from actorproc import PartitionInfo
from actorproc.admin.read_state import state_entries
from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.handler.wake_context import WakeContext
from actorproc.handlers.sequences import SequenceHandler
from actorproc.output.checkpoint import read_checkpoint
from actorproc.records import Batch, Record
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.state.inheritance import merged
from actorproc.state.reading import read_state
from actorproc.state.sweeping import sweep
from actorproc.testing.memory_source import MemorySource
from tests.partition.world import World


class Counts(PartitionHandler):
    """Counts records by key."""

    output_schema = "key string, count long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            key, count = record.text, ctx.state.get(record.text, 0) + 1
            ctx.state.set(key, count)
            ctx.emit(record, {"key": key, "count": count})


class CountsByKey(Counts):
    """Keys in capitals are no keys of records."""

    def record_key(self, key: Any, ctx: PartitionInfo) -> Any:
        return key if key.islower() else None


class Visits(PartitionHandler):
    """Counts records by key, and emits the count a minute after the last one."""

    output_schema = "key string, count long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.state.set(record.text, ctx.state.get(record.text, 0) + 1)
            ctx.wake(record.text, after=60)

    def on_wake(self, key: Any, ctx: WakeContext) -> Any:
        count = ctx.state[key]
        ctx.state.delete(key)
        return {"key": key, "count": count}


class VisitsByKey(Visits):
    def record_key(self, key: Any, ctx: PartitionInfo) -> Any:
        return key


class KeyedSource(MemorySource):
    """Keys up to "m" are in the partitions whose names end in "a", later keys in those that end in "b"."""

    knows_keys = True

    async def keys_of(self, partition: str) -> Callable[[bytes], bool]:
        return lambda key: partition[-1] not in "ab" or (key <= b"m") == partition.endswith("a")


class Family:
    """A partition, its children 0a and 0b, and 1, into which these merge, run by one owner after the other."""

    def __init__(self, handler: type[PartitionHandler], source: MemorySource, **settings: Any) -> None:
        self.world = World(handler, **settings)
        self.source = self.world.source = source
        self.epoch = 0

    def feed(self, partition: str, text: str) -> None:
        self.source.append(partition, [letter.encode() for letter in text])

    def split(self) -> None:
        self.source.add_partition("0a", parents=["0"])
        self.source.add_partition("0b", parents=["0"])

    def merge(self) -> None:
        self.source.add_partition("1", parents=["0a", "0b", "0"])  # as sources do that list all ancestors

    async def run(self, *partitions: str) -> None:
        for partition in partitions:
            self.epoch += 1
            await self.world.until_end(self.epoch, partition)

    async def held(self, partition: str) -> dict[Any, Any]:
        return dict((await read_state(self.world.store, self.world.layout, partition)).items(""))

    async def rows(self) -> list[tuple[str, int, str]]:
        """Key, count and partition."""
        found, store = [], self.world.store
        for entry in (await store.list(self.world.layout.output)).entries:
            stored = await store.get(entry.key)
            assert stored is not None
            partition = entry.key.partition("partition=")[2].partition("/")[0]
            table = pq.read_table(io.BytesIO(stored.body))
            found += [(row["key"], row["count"], partition) for row in table.to_pylist()]
        return sorted(found)


@pytest.mark.parametrize("delivery", ["at-least-once", "at-most-once"])
async def test_each_child_takes_all_state_and_a_merge_the_later_changes(delivery: str) -> None:
    family = Family(Counts, MemorySource(1), delivery=delivery)
    family.feed("0", "bxbq")
    family.split()
    family.feed("0a", "bb")
    family.feed("0b", "xyx")
    await family.run("0", "0a", "0b")
    assert await family.held("0a") == {"b": 4, "x": 1, "q": 1}
    assert await family.held("0b") == {"b": 2, "x": 3, "q": 1, "y": 1}
    family.merge()
    family.feed("1", "byx")
    await family.run("0a", "0b", "1")
    assert await family.held("1") == {"b": 5, "x": 4, "q": 1, "y": 2}


async def test_each_key_goes_to_the_child_that_the_source_names() -> None:
    family = Family(CountsByKey, KeyedSource(1))
    family.feed("0", "bxbA")
    family.split()
    family.feed("0a", "bA")
    family.feed("0b", "x")
    await family.run("0", "0a", "0b")
    assert await family.held("0a") == {"b": 3, "A": 2}
    assert await family.held("0b") == {"x": 2, "A": 1}, "A is no key of records: each child has it"
    family.merge()
    await family.run("0a", "0b", "1")
    assert await family.held("1") == {"b": 3, "x": 2, "A": 2}


async def test_state_taken_by_a_child_survives_merged_objects_and_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    family = Family(Counts, MemorySource(1), commit_rows=1, max_batch_records=1)
    family.feed("0", "bx")
    family.split()
    family.feed("0a", "b" * 40)
    await family.run("0", "0a", "0b")
    world = family.world
    checkpoint = await read_checkpoint(world.store, world.layout, "0a")
    assert checkpoint is not None
    assert checkpoint.inherited is not None
    assert checkpoint.inherited not in checkpoint.state, "it was merged"
    monkeypatch.setattr("actorproc.state.sweeping.RETENTION", -1)
    await sweep(world.store, world.layout, "0a", checkpoint)
    family.merge()
    await family.run("0a", "0b", "1")
    assert await family.held("1") == {"b": 41, "x": 1}


async def test_a_child_whose_first_owner_died_has_the_state_once() -> None:
    family = Family(Counts, MemorySource(1), commit_rows=1, max_batch_records=1)
    family.feed("0", "bb")
    family.split()
    family.feed("0a", "bbbb")
    await family.run("0")
    async with family.world.running(2, "0a") as actor:
        while not actor.statistics.commits:
            await anyio.sleep(0.001)
    family.epoch = 2
    await family.run("0a")
    assert await family.held("0a") == {"b": 6}
    assert [count for _, count, partition in await family.rows() if partition == "0a"] == [3, 4, 5, 6]


async def test_readers_see_a_key_once_after_a_split() -> None:
    family = Family(CountsByKey, KeyedSource(1))
    family.feed("0", "bx")
    family.split()
    await family.run("0", "0a", "0b")
    entries = state_entries(family.world.store, family.world.layout, ["0", "0a", "0b"])
    assert [(entry.partition, entry.key) async for entry in entries] == [("0a", "b"), ("0b", "x")]


def visits(handler: type[Visits], source: MemorySource) -> list[tuple[str, int, str]]:
    """Rows of two visits that began half a minute before a split; one of them goes on."""

    async def main() -> list[tuple[str, int, str]]:
        family = Family(handler, source, clock=VirtualClock)
        family.feed("0", "bbx")
        family.split()
        family.feed("0a", "b")
        await anyio.sleep(30)
        await family.run("0")
        async with family.world.running(2, "0a"), family.world.running(3, "0b"):
            await anyio.sleep(3000)
        return await family.rows()

    return run(main(), seed=0)


def test_a_timer_goes_on_in_the_partition_that_has_its_key() -> None:
    assert visits(VisitsByKey, KeyedSource(1)) == [("b", 3, "0a"), ("x", 1, "0b")]


@pytest.mark.parametrize(("handler", "source"), [(Visits, KeyedSource), (VisitsByKey, MemorySource)])
def test_timers_fire_before_the_end_if_no_child_is_known_for_their_keys(
    handler: type[Visits], source: type[MemorySource]
) -> None:
    assert visits(handler, source(1)) == [("b", 1, "0a"), ("b", 2, "0"), ("x", 1, "0")]


@pytest.mark.parametrize(
    ("parents", "found"),
    [
        ([({"k": 2}, {"k": 1}), ({"k": 1}, {"k": 1})], {"k": 2}),
        ([({"k": 1}, {"k": 1}), ({"k": 2}, {"k": 1})], {"k": 2}),
        ([({}, {"k": 1}), ({"k": 1}, {"k": 1})], {}),
        ([({"k": 2}, {"k": 1}), ({}, {"k": 1})], {"k": 2}),
        ([({"k": 2}, {}), ({"k": 3}, {})], {"k": 3}),
        ([({"k": 1}, {}), ({"j": 3}, {})], {"k": 1, "j": 3}),
    ],
)
def test_of_several_parents_the_one_that_changed_a_key_counts(parents: Any, found: Any) -> None:
    given = [tuple({k.encode(): (bytes([v]), None) for k, v in part.items()} for part in one) for one in parents]
    assert merged(given) == {k.encode(): (bytes([v]), None) for k, v in found.items()}  # type: ignore[arg-type]


class Orders(SequenceHandler):
    """Whole sequences from "o" to "p"."""

    output_schema = "key string, count long"

    def is_first(self, record: Record) -> bool:
        return record.text == "o"

    def is_last(self, record: Record) -> bool:
        return record.text == "p"

    def process_sequence(self, key: Any, records: Batch, ctx: WakeContext) -> Any:
        return {"key": key, "count": len(records)}


async def test_a_sequence_goes_on_where_its_key_goes() -> None:
    family = Family(Orders, KeyedSource(1))
    for key in (b"b", b"x"):
        family.source.append("0", [b"o", b"-"], key=key)
    family.split()
    family.source.append("0a", [b"-"] * 4 + [b"p"], key=b"b")
    family.source.append("0b", [b"p"], key=b"x")
    await family.run("0", "0a", "0b")
    assert await family.rows() == [("b", 7, "0a"), ("x", 3, "0b")]
    for partition in ("0a", "0b"):
        state = await read_state(family.world.store, family.world.layout, partition)
        assert not state.names, "each partition took the records of its keys only"

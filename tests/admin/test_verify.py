"""`verify` finds missing and altered objects of a container and of a log, and makes the safe repairs."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
from msgspec import structs

from actorproc import Batch, PartitionContext, PartitionHandler, Processor, Producer
from actorproc.admin.verify import repair, verify
from actorproc.output.checkpoint import Checkpoint
from actorproc.output.compaction import merge, plan, switch
from actorproc.output.letter import purge
from actorproc.output.schema_document import read_schema
from actorproc.retention.boundary import raise_boundary
from actorproc.rows.output_schema import output_schema
from actorproc.sources.log import LogSource
from actorproc.storage.names import STATE, ProcessorLayout, log_file
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from tests.processor.doubling import QUICK

LAYOUT = ProcessorLayout("Numbers")


class Numbers(PartitionHandler):
    """A row for each even number, a dead letter for each that ends in 5."""

    output_schema = "n long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            number = record.json()
            if number % 10 == 5:
                ctx.dead_letter(record, "a five")
            elif number % 2 == 0:
                ctx.emit(record, {"n": number})


class World:
    """A log of one partition with three segments, and a processor that has committed each of them."""

    def __init__(self) -> None:
        self.store, self.log = Store(MemoryStore()), Store(MemoryStore())

        self.sent = 0

    async def begin(self) -> World:
        for _ in range(3):
            await self.more(20)
        return self

    async def more(self, records: int) -> None:
        """One more segment, and its commit."""
        first, self.sent = self.sent, self.sent + records
        async with Producer(self.log, partitions=1, linger=10) as producer:
            await producer.send_many([str(n).encode() for n in range(first, self.sent)])
        source = LogSource(self.log)
        await Processor(
            Numbers, source=source, container=self.store, host=f"h{first}", dead_letter_limit=1, **QUICK
        ).run(until_end=True)

    async def damages(self) -> list[str]:
        return [f"{d.key}: {d.what}" for d in (await verify(self.store, LAYOUT, self.log)).damages]

    async def body(self, key: str) -> bytes:
        stored = await self.store.get(key)
        assert stored is not None, key
        return stored.body

    async def change_checkpoint(self, **changes: Any) -> None:
        key = LAYOUT.checkpoint("0")
        await self.store.put(key, structs.replace(Checkpoint.from_json(key, await self.body(key)), **changes).to_json())

    async def checkpoint(self) -> Checkpoint:
        key = LAYOUT.checkpoint("0")
        return Checkpoint.from_json(key, await self.body(key))


async def flip(store: Store, key: str, at: int | None = None) -> None:
    """Change one bit of the object, by default in the values of a column of a Parquet file."""
    stored = await store.get(key)
    assert stored is not None, key
    body = bytearray(stored.body)
    if at is None:
        column = pq.ParquetFile(io.BytesIO(body)).metadata.row_group(0).column(1)
        at = (column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size - 1
    body[at] ^= 1
    await store.put(key, bytes(body))


async def copy(store: Store, source: str, target: str) -> None:
    stored = await store.get(source)
    assert stored is not None, source
    await store.put(target, stored.body)


async def rewind(world: World) -> None:
    cursor = (await world.checkpoint()).cursor
    await world.change_checkpoint(cursor=cursor._replace(sequence=cursor.sequence - 30))


async def beyond(world: World) -> None:
    cursor = (await world.checkpoint()).cursor
    await world.change_checkpoint(cursor=cursor._replace(sequence=10**17))


async def miscount(world: World) -> None:
    totals = (await world.checkpoint()).totals
    await world.change_checkpoint(totals=dataclasses.replace(totals, rows=totals.rows + 1))


COMMIT, LETTERS = LAYOUT.output_file, LAYOUT.dead_letter_file
Act = Callable[[World], Awaitable[object]]

DAMAGES: dict[str, tuple[Act, str]] = {
    "a commit in the middle is deleted": (lambda w: w.store.delete(COMMIT("0", 1)), "commit 1 is missing"),
    "the newest commit is deleted": (lambda w: w.store.delete(COMMIT("0", 2)), "commit 2 is missing"),
    "a page of a commit is altered": (lambda w: flip(w.store, COMMIT("0", 0)), "00000.parquet: cannot be read"),
    "the footer of a commit is altered": (lambda w: flip(w.store, COMMIT("0", 1), -120), "00001.parquet: "),
    "a commit is cut short": (lambda w: w.store.put(COMMIT("0", 1), b"PAR1"), "00001.parquet: "),
    "a commit is copied behind the chain": (
        lambda w: copy(w.store, COMMIT("0", 2), COMMIT("0", 3)),
        "00003.parquet: is a copy of commit 2",
    ),
    "a commit is written over by another": (
        lambda w: copy(w.store, COMMIT("0", 2), COMMIT("0", 1)),
        "00002.parquet: is a copy of commit 1",
    ),
    "the checkpoint is deleted": (lambda w: w.store.delete(LAYOUT.checkpoint("0")), "the checkpoint is missing"),
    "the checkpoint is no document": (lambda w: w.store.put(LAYOUT.checkpoint("0"), b"{"), "is not a valid Checkpoint"),
    "the checkpoint goes back": (rewind, "would be processed again"),
    "the checkpoint is beyond the log": (beyond, "but the log ends at 60"),
    "the checkpoint counts wrong": (miscount, "rows and 6 dead letters, but the commits have"),
    "dead letters are deleted": (lambda w: w.store.delete(LETTERS("0", 1)), "the dead letters of commit 1 are missing"),
    "dead letters are altered": (lambda w: flip(w.store, LETTERS("0", 1), 30), "has other dead letters than commit 1"),
    "dead letters of no commit": (
        lambda w: copy(w.store, LETTERS("0", 1), LETTERS("0", 7)),
        "commit 7 has no dead letters",
    ),
    "a segment in the middle is deleted": (
        lambda w: w.log.delete(log_file("0", 20)),
        "the records 20 to 39 are missing",
    ),
    "the newest segment is deleted": (lambda w: w.log.delete(log_file("0", 40)), "the records from 40 on are missing"),
    "a segment is altered": (lambda w: flip(w.log, log_file("0", 0)), "00000.parquet: cannot be read"),
    "a segment is copied": (
        lambda w: copy(w.log, log_file("0", 40), log_file("0", 60)),
        "00060.parquet: is a copy of the segment at 40",
    ),
    "the lease table is no document": (lambda w: w.store.put(LAYOUT.group, b"{"), "group.json: is not a valid"),
    "the schema is no document": (lambda w: w.store.put(LAYOUT.schema, b"{"), "schema.json: is not a valid"),
    "the boundary is no document": (
        lambda w: w.store.put(LAYOUT.boundary("0"), b"{"),
        "boundaries/0.json: is not a valid Boundary",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
async def test_damage_by_hand_is_found(name: str) -> None:
    damage, found = DAMAGES[name]
    world = await World().begin()
    assert await world.damages() == []
    await damage(world)
    assert found in "\n".join(await world.damages())


async def test_objects_removed_by_a_trim_or_a_purge_are_no_damage() -> None:
    world = await World().begin()
    await raise_boundary(world.store, LAYOUT.boundary("0"), 1)
    await world.store.delete(COMMIT("0", 0))
    assert await purge(world.store, LETTERS("0", 1), below=3)
    assert await world.damages() == []


async def test_compacted_commits_are_read_from_their_file() -> None:
    world = await World().begin()
    for _ in range(2):  # the newest commits stay
        await world.more(20)
    schema = await read_schema(world.store, LAYOUT)
    assert schema is not None
    (found,) = await plan(world.store, LAYOUT, ["0"], target_size=2**30, older_than=0)
    (group,) = found.groups
    merged = await merge(world.store, LAYOUT, group, output_schema(schema))
    assert merged is not None
    (made,) = await switch(world.store, LAYOUT, found, merged)
    for number in range(made.first, made.next):
        await world.store.delete(COMMIT("0", number))
    assert await world.damages() == []
    key = LAYOUT.compacted_file("0", made.first, made.put_id)
    await flip(world.store, key)
    assert f"{key}: cannot be read" in "\n".join(await world.damages())
    await world.store.delete(key)
    assert f"{key}: is missing; it holds the commits 0 to " in "\n".join(await world.damages())


async def test_keyed_state_that_is_missing_is_found() -> None:
    class Counting(PartitionHandler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                key = str(record.json() % 3)
                ctx.state[key] = ctx.state.get(key, 0) + 1

    world = await World().begin()
    layout = ProcessorLayout("Counting")
    await Processor(Counting, source=LogSource(world.log), container=world.store, **QUICK).run(until_end=True)
    assert (await verify(world.store, layout)).damages == []
    objects = (await world.store.list(layout.attached_dir(STATE, "0"))).entries
    assert objects
    for entry in objects:
        await world.store.delete(entry.key)
    (damage,) = (await verify(world.store, layout)).damages
    assert damage.key.startswith("Counting/state/")


async def test_safe_damage_is_repaired_and_the_rest_is_left() -> None:
    world = await World().begin()
    before = [await world.body(LETTERS("0", number)) for number in range(3)]
    await world.store.delete(LETTERS("0", 0))
    await flip(world.store, LETTERS("0", 1), 30)
    await world.store.put(f"{LAYOUT.hosts}h~1-60s.json", b"{")
    await world.store.delete(COMMIT("0", 2))
    result = await verify(world.store, LAYOUT)
    left = await repair(result)
    assert [damage.what for damage in left] == ["commit 2 is missing"]
    assert len(result.damages) == 4
    assert [await world.body(LETTERS("0", number)) for number in range(3)] == before
    assert await world.store.get(f"{LAYOUT.hosts}h~1-60s.json") is None
    assert orjson.loads(before[0].splitlines()[0])["value"] == "5"

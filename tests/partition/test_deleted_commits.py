"""Commits and checkpoints that somebody deleted or changed are found again or noticed."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from actorproc import errors
from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.records import Batch
from actorproc.retention.boundary import raise_boundary
from actorproc.storage.backend import Stored
from tests.partition.world import World


class Evens(PartitionHandler):
    """A row for each even number, and no dead letters."""

    output_schema = "n long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            if record.json() % 2 == 0:
                ctx.emit(record, {"n": record.json()})


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
    """The error that stops a new owner before it processes a record."""
    actor = world.actor(epoch)
    with anyio.fail_after(60), pytest.raises(errors.CorruptObject) as raised:
        await actor.run()
    return str(raised.value)


async def test_a_checkpoint_that_was_deleted_is_found_again_in_the_commits() -> None:
    world = World()
    await three_commits(world)
    await world.store.delete(world.layout.checkpoint("0"))
    world.feed(10)
    await world.until_end(9)
    await world.check()


async def test_a_deleted_commit_is_not_made_again_below_later_ones() -> None:
    world = World()
    await three_commits(world)
    await world.store.delete(world.layout.checkpoint("0"))
    await world.store.delete(world.layout.output_file("0", 1))
    for epoch in (9, 10):  # the first leaves a checkpoint
        assert "00001.parquet: is missing, although p/output/partition=0/" in await refusal(world, epoch)
    assert len(await world.rows()) == 10


async def test_a_commit_that_was_deleted_is_noticed_though_the_checkpoint_was_not() -> None:
    world = World(commit_rows=1)
    early = await three_commits(world)
    await world.store.put(world.layout.checkpoint("0"), early)
    await world.store.delete(world.layout.output_file("0", 1))
    for epoch in (5, 6):
        assert "00001.parquet: is missing, although p/output/partition=0/" in await refusal(world, epoch)
    assert len(await world.rows()) == 10


async def test_a_commit_with_other_records_than_it_had_is_noticed() -> None:
    world = World(commit_rows=1)
    early = await three_commits(world)
    await world.store.put(world.layout.checkpoint("0"), early)
    other = await world.store.get(world.layout.output_file("0", 2))
    assert other is not None
    await world.store.put(world.layout.output_file("0", 1), other.body)
    assert "00001.parquet: begins after record" in await refusal(world, 5)


@pytest.mark.parametrize("since_checkpoint", [False, True])
async def test_a_copy_of_a_commit_is_refused(since_checkpoint: bool) -> None:
    world = World(Evens, commit_rows=1)
    early = await three_commits(world)
    newest = await world.store.get(world.layout.output_file("0", 2))
    assert newest is not None
    await world.store.put(world.layout.output_file("0", 3), newest.body)
    if since_checkpoint:
        await world.store.put(world.layout.checkpoint("0"), early)
    assert "00003.parquet: is a copy of commit 2: its rows would be read twice" in await refusal(world, 5)


async def test_a_checkpoint_beyond_the_end_of_the_source_is_refused() -> None:
    world = World(Evens, commit_rows=1)
    await three_commits(world)
    before = await world.checkpoint()
    newest = before.cursor.sequence
    changed = replace(before, cursor=before.cursor._replace(sequence=10**17))
    await world.store.put(world.layout.checkpoint("0"), changed.to_json())
    assert f"up to {10**17} are processed, but the source ends at {newest}" in await refusal(world, 5)
    await world.store.put(world.layout.checkpoint("0"), before.to_json())
    world.feed(10)
    await world.until_end(6)
    assert await world.rows() == list(range(0, world.fed, 2))


@pytest.mark.parametrize("published", [b"", b'{"another": "letter"}\n', None])
async def test_other_dead_letters_than_the_committed_ones_are_refused(published: bytes | None) -> None:
    """An empty file is the mark of a purge. A missing one is written again."""
    world = World()
    early = await three_commits(world)
    await world.store.put(world.layout.checkpoint("0"), early)
    key = world.layout.dead_letter_file("0", 1)
    own = await world.store.get(key)
    assert own is not None
    if published is None:
        await world.store.delete(key)
    else:
        await world.store.put(key, published)
    if published:
        assert "00001.jsonl: has other dead letters than commit 1" in await refusal(world, 5)
        await world.store.delete(key)
    await world.until_end(6)
    stored = await world.store.get(key)
    assert stored is not None
    assert stored.body == (b"" if published == b"" else own.body)


async def test_a_checkpoint_below_the_boundary_is_refused() -> None:
    world = World(Evens, commit_rows=1)
    early = await three_commits(world)
    await raise_boundary(world.store, world.layout.boundary("0"), 2)
    await world.store.put(world.layout.checkpoint("0"), early)
    assert "checkpoints/0.json: goes on at commit 1, and commits below 2 were trimmed" in await refusal(world, 5)


async def test_a_walk_that_the_boundary_passed_starts_over() -> None:
    """While the owner walks, a trim deletes the first commit, and a late create of another one takes its place."""
    world = World(Evens, commit_rows=1)
    early = await three_commits(world)
    newest = await world.store.get(world.layout.checkpoint("0"))
    assert newest is not None
    await world.store.put(world.layout.checkpoint("0"), early)
    boundary, get, trimmed = world.layout.boundary("0"), world.store.get, False

    async def trimmed_meanwhile(key: str, **options: Any) -> Stored | None:
        nonlocal trimmed
        if key == boundary and not trimmed:
            trimmed = True
            await world.store.put(world.layout.checkpoint("0"), newest.body)
            await raise_boundary(world.store, boundary, 2)
        return await get(key, **options)

    world.store.get = trimmed_meanwhile  # type: ignore[method-assign]
    world.feed(10)
    await world.until_end(9)
    assert (await world.checkpoint()).epoch == 9
    assert await world.rows() == list(range(0, world.fed, 2))

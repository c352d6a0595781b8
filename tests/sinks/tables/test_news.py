"""What a committer of a table asks for: the next commit of partitions that may have one, and of no others."""

from __future__ import annotations

from pathlib import Path

import anyio
import polars as pl
import pytest

from actorproc import Batch, PartitionContext, PartitionHandler, Processor, Producer
from actorproc.config.settings import Settings
from actorproc.counts import Counts
from actorproc.output.chain import Commit, OutputChain, encode_commit
from actorproc.records import Cursor
from actorproc.rows.output_schema import output_schema, parse_schema
from actorproc.sinks.tables.committer import TableCommitter
from tests.connectors.delta.world import LAYOUT, World, story

MANY = 100
"""Partitions."""


async def a_turn(committer: TableCommitter) -> int:
    """GETs of a turn."""
    requests = committer._home.store.requests
    before = requests["get"]
    assert await committer.turn()
    return requests["get"] - before


def test_a_turn_asks_for_the_next_commit_only_where_something_has_happened() -> None:
    """Hosts tell of it by their heartbeats and checkpoints."""

    async def work(world: World) -> None:
        await world.until_end(feed=MANY)
        async with world.committer() as committer, world.host(interval=3600), world.host(interval=3600):
            await anyio.sleep(60)
            await committer.turn()
            assert await a_turn(committer) < 15
            world.feed(10)
            await anyio.sleep(30)
            assert 10 < await a_turn(committer) < 50
            await world.check()
            assert await a_turn(committer) < 15

    story(work, partitions=MANY)


async def create_late(world: World, partition: str) -> None:
    """A commit by a former owner that no host knows of."""
    number = len(await world.objects(LAYOUT.output_dir(partition)))
    clock, schema = world.store.clock, output_schema(parse_schema("n long"))
    commit = Commit(
        host="former", epoch=1, first=Cursor(str(number), number - 1), next=Cursor(str(number), number - 1),
        totals=Counts(1, 1), time=clock.wall(), rows=0, put_id=clock.nonce(),
    )  # fmt: skip
    body, _ = encode_commit(schema.empty_table(), commit, b"")
    await OutputChain(world.store, LAYOUT, partition).create(number, commit.put_id, body, ())


@pytest.mark.parametrize("at_once", [False, True])
def test_a_commit_that_nobody_tells_of_is_found_within_a_quarter_of_an_hour_or_at_the_end(at_once: bool) -> None:
    async def work(world: World) -> None:
        await world.until_end(feed=9)
        async with world.committer() as committer:
            await committer.turn()
            place = (await world.state()).places["1"]
            await create_late(world, "1")
            await committer.turn()
            assert (await world.state()).places["1"] == place
            if not at_once:
                await anyio.sleep(900)
            await committer.turn(ask_all=at_once)
            assert (await world.state()).places["1"].position == place.position + 1

    story(work)


class Numbers(PartitionHandler):
    output_schema = "n long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, (record.json(),))


async def test_a_commit_is_in_the_table_at_the_next_turn_although_heartbeats_are_rare(tmp_path: Path) -> None:
    """Hosts are told of it by datagrams, also the one that made it."""
    log, output = tmp_path / "log", tmp_path / "state" / "numbers" / "output"
    settings = Settings(lease_renew_interval=600, lease_expiration_interval=3600, commit_interval=0.1)
    sinks = {"table": {"url": "delta", "interval": 1}}

    def rows() -> int:
        return pl.scan_delta(str(output)).select(pl.len()).collect().item()  # type: ignore[no-any-return]

    async with (
        Producer(str(log), partitions=2, linger=0.0) as producer,
        Processor(
            Numbers, source=str(log), container=str(tmp_path / "state"), name="numbers", sinks=sinks, settings=settings
        ),
    ):
        await producer.send_many([b"0", b"1"])
        with anyio.fail_after(60):
            while not (output / "_delta_log").exists() or rows() < 2:
                await anyio.sleep(0.1)
        await anyio.sleep(2)  # a turn with nothing new, after which the host follows
        for total in range(3, 6):
            await producer.send_many([b"2"])
            with anyio.fail_after(30):
                while rows() < total:
                    await anyio.sleep(0.1)

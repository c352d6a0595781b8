"""An exclusive handler: once it has started, no earlier owner of its partition can commit."""

from __future__ import annotations

import anyio
import pytest

from actorproc.errors import Fenced
from actorproc.partition.actor import PartitionActor
from actorproc.runtime.tasks import first_cause
from tests.partition.world import Numbers, World, eventually


class Exclusive(Numbers):
    exclusive = True


async def takeover(handler: type[Numbers]) -> tuple[World, Exception | None]:
    """The error of an owner that commits its records only after the next owner has started."""
    world = World(handler)
    world.feed(10)
    failed: Exception | None = None

    async def running(actor: PartitionActor) -> bool:
        return actor.statistics.caught_up is not None

    async def run(actor: PartitionActor) -> None:
        nonlocal failed
        try:
            await actor.run()
        except Exception as error:  # noqa: BLE001
            failed = first_cause(error)

    old, new = world.actor(1), world.actor(2)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, old)
        await eventually(lambda: running(old))
        tasks.start_soon(new.run)
        await eventually(lambda: running(new))
        async with anyio.create_task_group() as ending:
            ending.start_soon(world_commits, old)
        found = failed
        tasks.cancel_scope.cancel()
    return world, found


async def world_commits(actor: PartitionActor) -> None:
    """Let an actor commit its processed records."""
    actor.flush()
    with anyio.move_on_after(5):
        while actor.flushing and actor.statistics.state == "running":
            await anyio.sleep(0.001)
    await anyio.sleep(0.01)


@pytest.mark.parametrize(("handler", "refused"), [(Exclusive, True), (Numbers, False)])
async def test_the_start_of_an_exclusive_handler_refuses_commits_of_earlier_owners(
    handler: type[Numbers], refused: bool
) -> None:
    world, error = await takeover(handler)
    assert (len(await world.rows()) == 0) == refused
    if refused:
        assert isinstance(error, Fenced)
    await world.until_end(3)
    await world.check()

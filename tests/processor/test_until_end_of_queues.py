"""`run(until_end=True)` on queues returns once they are empty, also if they were empty at the start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from actorproc import Processor
from actorproc.errors import EndNotReached
from actorproc.sources.queue_protocol import Deliveries
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from tests.processor.doubling import QUICK, Double, rows
from tests.testing.memory_queue import MemoryConsumer, MemoryQueues


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.testing.memory_queue.QUIET", 0.05)


def fed(messages: int, queues: int = 2) -> MemoryQueues:
    source = MemoryQueues(queues)
    for queue in source.queues.values():
        queue.send([b"%d" % n for n in range(messages)])
    return source


def host(name: str, source: MemoryQueues, store: Store, **settings: Any) -> Processor:
    return Processor(Double, source=source, container=store, host=name, **{**QUICK, "queue_end_wait": 0.2, **settings})


async def until(what: Callable[[], bool]) -> None:
    with anyio.fail_after(20):
        while not what():
            await anyio.sleep(0.01)


@pytest.mark.parametrize("messages", [0, 10])
async def test_a_run_ends_when_all_queues_are_empty(messages: int) -> None:
    store, source = Store(MemoryStore()), fed(messages)
    with anyio.fail_after(20):
        await host("a", source, store).run(until_end=True)
    assert await rows(store) == sorted(2 * n for n in range(messages) for _ in range(2))
    assert all(len(queue.removed) == messages for queue in source.queues.values())


async def test_a_host_leaves_the_queues_of_other_live_hosts_to_them() -> None:
    store, source = Store(MemoryStore()), fed(10)
    other = host("b", source, store)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other.run)
        await until(lambda: len(source.queues["1"].removed) == 10)
        with anyio.fail_after(20):
            await host("a", source, store).run(until_end=True)
        other.stop()
    assert await rows(store) == sorted(2 * n for n in range(10) for _ in range(2))


async def test_a_run_does_not_end_while_the_owner_of_a_queue_is_dead() -> None:
    store, source = Store(MemoryStore()), fed(10, queues=1)
    with anyio.move_on_after(0.5):  # killed: it leaves its lease behind
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(host("dead", fed(0, queues=1), store).run)
            await anyio.sleep_forever()
    with anyio.fail_after(20):
        await host("a", source, store).run(until_end=True)
    assert await rows(store) == [2 * n for n in range(10)]


async def test_a_queue_that_cannot_be_consumed_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def receive(self: MemoryConsumer) -> Deliveries:
        raise OSError("no such queue")

    monkeypatch.setattr(MemoryConsumer, "receive", receive)
    with anyio.fail_after(20), pytest.raises(EndNotReached, match="no such queue"):
        await host("a", fed(1), Store(MemoryStore())).run(until_end=True)

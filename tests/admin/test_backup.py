"""A backup in the order of docs/operations.md, taken while hosts run, is complete when it is restored."""

from __future__ import annotations

import re
from pathlib import Path

import anyio

from actorproc import Processor, Producer
from actorproc.admin.verify import verify
from actorproc.runtime.nudge import Nudges
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.sources.log import LogSource
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from tests.admin.test_verify import LAYOUT, Numbers
from tests.processor.doubling import rows

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()


def order(after: str) -> list[list[str]]:
    """The numbered list after this text: the parts of each line."""
    listed = re.search(r"(?:^\d\. .*\n)+", PAGE[PAGE.index(after) :], re.MULTILINE)
    assert listed is not None
    return [re.findall(r"`([^`]+)`", line) for line in listed[0].splitlines()]


CONTAINER, LOG = order("Copy the container in this order"), order("Then the log")


async def copied(store: Store, root: str, lines: list[list[str]], clock: VirtualClock) -> Store:
    """A copy, object by object, with pauses in which hosts go on."""
    target = Store(MemoryStore(clock=clock), clock=clock)
    for part in (part for line in lines for part in line):
        for entry in (await store.list(root + part.removesuffix("*/"))).entries:
            await clock.sleep(0.2)
            if (stored := await store.get(entry.key)) is not None:
                await target.put(entry.key, stored.body)
    return target


class Running:
    """A producer and two hosts that go on while a backup is taken."""

    def __init__(self) -> None:
        self.clock = VirtualClock("a")
        self.store, self.log = (Store(MemoryStore(clock=self.clock), clock=self.clock) for _ in range(2))
        self.sent = 0

    def host(self, name: str, store: Store, log: Store) -> Processor:
        return Processor(
            Numbers, source=LogSource(log, clock=self.clock), container=store, host=name, clock=self.clock,
            nudges=Nudges(), dead_letter_limit=1, commit_interval=1, poll_interval=0.5, max_batch_records=20,
        )  # fmt: skip

    async def produce(self) -> None:
        async with Producer(self.log, partitions=2, linger=0.2, clock=self.clock) as producer:
            while True:
                for _ in range(5):
                    await producer.send(b"%d" % self.sent)
                    self.sent += 1
                await self.clock.sleep(1)


def test_a_backup_of_a_running_system_restores_completely() -> None:
    async def main() -> None:
        system = Running()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(system.produce)
            await system.clock.sleep(5)
            async with system.host("a", system.store, system.log), system.host("b", system.store, system.log):
                await system.clock.sleep(60)
                store = await copied(system.store, f"{LAYOUT.processor}/", CONTAINER, system.clock)
                log = await copied(system.log, "", LOG, system.clock)
                tasks.cancel_scope.cancel()
        result = await verify(store, LAYOUT, log)
        assert [(damage.key, damage.what) for damage in result.damages] == []
        assert result.checked["commits"] > 20
        await system.host("c", store, log).run(until_end=True)
        assert [(damage.key, damage.what) for damage in (await verify(store, LAYOUT, log)).damages] == []
        found = await rows(store, LAYOUT.processor)
        assert found == list(range(0, found[-1] + 2, 2)), "each row once"
        assert len(found) > 100

    run(main())


def test_a_backup_in_the_wrong_order_is_found() -> None:
    async def main() -> None:
        system = Running()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(system.produce)
            await system.clock.sleep(5)
            async with system.host("a", system.store, system.log):
                await system.clock.sleep(60)
                store = await copied(system.store, f"{LAYOUT.processor}/", CONTAINER[::-1], system.clock)
                tasks.cancel_scope.cancel()
        assert "missing" in "".join(damage.what for damage in (await verify(store, LAYOUT)).damages)

    run(main())

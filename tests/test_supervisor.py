"""The supervisor of a host in trouble, seen through `Processor`."""

from __future__ import annotations

from typing import Any

import anyio
import structlog

from actorproc import Batch, PartitionContext, PartitionHandler, Processor
from actorproc.errors import StoreUnavailable
from actorproc.group.membership import GroupDocument, read_group
from actorproc.layout import ProcessorLayout
from actorproc.store import Store
from actorproc.stores.memory import Memory
from actorproc.testing.source import MemorySource

QUICK: dict[str, Any] = {
    "lease_acquire_interval": 0.2,
    "lease_renew_interval": 0.1,
    "lease_expiration_interval": 1.0,
}


class Nothing(PartitionHandler):
    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        pass


class HeartbeatsRefused(Memory):
    """A store that takes no heartbeat while `refusing`."""

    refusing = False

    async def put(self, key: str, body: bytes) -> str:
        if self.refusing and "/hosts/" in key:
            raise StoreUnavailable("no heartbeat is taken")
        return await super().put(key, body)


async def until_it_runs(processor: Processor, partitions: int) -> None:
    def running() -> int:
        supervisor = processor.statistics().supervisor
        return len(supervisor.partitions) if supervisor else 0

    with anyio.fail_after(60):
        while running() != partitions:
            await anyio.sleep(0.01)


async def test_a_host_that_was_written_out_and_cannot_say_that_it_lives_joins_again_once_it_can() -> None:
    backend = HeartbeatsRefused()
    store, layout = Store(backend), ProcessorLayout("Nothing")
    with structlog.testing.capture_logs() as logs:
        async with Processor(Nothing, source=MemorySource(3), container=store, host="a", **QUICK) as processor:
            await until_it_runs(processor, 3)
            backend.refusing = True
            group = await read_group(store, layout)
            assert group is not None
            leases = {partition: lease._replace(owner=None) for partition, lease in group.leases.items()}
            await store.put(layout.group, GroupDocument({}, leases, "another host").to_json())
            with anyio.fail_after(60):
                while (
                    "supervisor.renew_failed" not in (events := [log["event"] for log in logs])[written_out(events) :]
                ):
                    await anyio.sleep(0.01)
            await until_it_runs(processor, 0)
            backend.refusing = False
            await until_it_runs(processor, 3)


def written_out(events: list[str]) -> int:
    """Index of the event that says so; the end if there is none."""
    return events.index("supervisor.written_out") if "supervisor.written_out" in events else len(events)

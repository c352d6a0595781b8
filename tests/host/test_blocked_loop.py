"""A handler that blocks the event loop: others learn which partition and line, and the host goes on afterwards."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import anyio

from actorproc import Batch, PartitionContext, PartitionHandler, Processor
from actorproc.admin.explain import explain
from actorproc.admin.fleet import Fleet
from actorproc.admin.fleet_watch import FleetWatch
from actorproc.config.settings import Settings
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store
from actorproc.testing.memory_source import MemorySource

LAYOUT = ProcessorLayout("Blocks")
RELEASED = threading.Event()


class Blocks(PartitionHandler):
    output_schema = "n long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            if record.value == b"block":
                while not RELEASED.is_set():
                    time.sleep(0.05)
            ctx.emit(record, {"n": 1})


async def look(folder: Path) -> tuple[Fleet, list[str | None]]:
    async with open_store(str(folder), Settings()) as store:
        fleet = await FleetWatch(store, LAYOUT, 30.0).look()
        # Read later, so it knows the same of the fleet.
        status = await FleetWatch(store, LAYOUT, 30.0).read_all()
        return fleet, [found.error for found in status.partitions.values()]


def see(folder: Path, seen: list[tuple[Fleet, list[str | None]]]) -> None:
    """Look until a partition is stuck, for a minute at most; then let the handler go on."""
    end = time.monotonic() + 60
    while time.monotonic() < end and not any("stuck" in v.verdict for f, _ in seen for v in f.partitions.values()):
        time.sleep(0.05)
        seen[:] = [anyio.run(look, folder)]
    RELEASED.set()


async def test_others_learn_which_partition_and_line_block_the_event_loop(tmp_path: Path) -> None:
    source, seen = MemorySource(2), list[tuple[Fleet, list[str | None]]]()
    processor = Processor(
        Blocks, source=source, container=tmp_path, host="h", lease_renew_interval=0.4, lease_acquire_interval=0.3,
        loop_block_warning=0.1, commit_interval=0.05,
    )  # fmt: skip
    async with processor:
        for partition in ("0", "1"):
            source.append(partition, [b"1"])
        with anyio.fail_after(90):
            while processor.statistics().counts.rows < 2:
                await anyio.sleep(0.05)
        watching = threading.Thread(target=see, args=(tmp_path, seen))
        watching.start()
        source.append("1", [b"block"])
        with anyio.fail_after(90):
            while processor.statistics().counts.rows < 3:
                await anyio.sleep(0.05)
        watching.join()
        ((fleet, errors),) = seen
        blocking, other = fleet.partitions["1"], fleet.partitions["0"]
        assert (blocking.verdict, blocking.fault) == ("stuck", "user")
        assert f"a handler blocks the event loop of its host, at {__file__}:" in blocking.reason
        assert "in the handler: partition 1" in blocking.reason
        assert (other.verdict, "h does not answer: a handler blocks" in other.reason) == ("silent", True)
        assert errors[0] is None
        assert "blocks the event loop" in (errors[1] or "")
        assert "a handler blocks the event loop" in explain(blocking, fleet.hosts, fleet.time)
        with anyio.fail_after(90):
            while {view.verdict for view in (await look(tmp_path))[0].partitions.values()} != {"ok"}:
                await anyio.sleep(0.05)

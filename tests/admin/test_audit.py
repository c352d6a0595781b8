"""The audits of processors, logs and containers record each command."""

from __future__ import annotations

import pytest

from actorproc import Batch, PartitionContext, PartitionHandler, Processor, Producer
from actorproc.admin.audit import read_audit
from actorproc.admin.logs import delete_log, grow
from actorproc.admin.processors import delete_processor, list_processors, rename_processor
from actorproc.admin.readers import unregister_reader
from actorproc.admin.retained import RetainedDataset, RetainedLog, RetainedOutput
from actorproc.admin.trim import trim
from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.log.metadata import create_log
from actorproc.retention.boundary import RETENTION
from actorproc.retention.readers import Reader, register
from actorproc.runtime.nudge import Nudges
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.storage.names import AUDIT, ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource


class Ones(PartitionHandler):
    output_schema = "n long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, {"n": 1})


async def processed(store: Store, rounds: int = 1) -> None:
    """Processor p, with as many commits."""
    source = MemorySource(1)
    for _ in range(rounds):
        source.append("0", [b"1"])
        await Processor(Ones, name="p", source=source, container=store, host="h").run(until_end=True)


async def acts(store: Store, audit: str) -> list[tuple[str, dict[str, str], str]]:
    return [(act.what, dict(act.to), act.effect) for act in await read_audit(store, audit)]


@pytest.mark.parametrize("kind", ["output", "log"])
def test_a_trim_and_a_removed_reader_are_in_the_audit(kind: str) -> None:
    async def scenario() -> None:
        clock = VirtualClock("audit")
        store = Store(MemoryStore(clock=clock), clock=clock)
        dataset: RetainedDataset
        if kind == "output":
            source = MemorySource(1)
            for _ in range(4):
                source.append("0", [b"1"])
                host = Processor(Ones, name="p", source=source, container=store, host="h", clock=clock, nudges=Nudges())
                await host.run(until_end=True)
            dataset = RetainedOutput(store, ProcessorLayout("p"))
        else:
            async with Producer(store, partitions=1, clock=clock) as producer:
                for _ in range(4):
                    await producer.send(b"1")
                    await producer.flush()
            dataset = RetainedLog(store)
        await clock.sleep(2 * RETENTION)
        await register(store, dataset.readers, Reader("position", "r", positions={"0": 0}), {})
        await unregister_reader(dataset, "r")
        with pytest.raises(UsageError, match="no reader"):
            await unregister_reader(dataset, "r")
        assert await acts(store, dataset.audit) == [("remove", {"reader": "r"}, "nothing is kept for it any more")]
        await clock.sleep(1)
        await trim(dataset, Settings())
        await trim(dataset, Settings())  # deletes nothing, and is not in the audit
        (_, (what, to, effect)) = await acts(store, dataset.audit)
        assert (what, to) == ("trim", {"older_than": "3600 s"})
        assert effect.startswith("files deleted: ")

    run(scenario())


async def test_growths_and_the_deletion_of_a_log_stay_in_its_audit() -> None:
    store = Store(MemoryStore())
    await create_log(store, 2)
    await grow(store, 4)
    await grow(store, 4)
    deleted = await delete_log(store)
    assert [(what, to) for what, to, _ in await acts(store, AUDIT)] == [
        ("grow", {"partitions": "4"}), ("delete log", {}),
    ]  # fmt: skip
    assert all(entry.key.startswith(AUDIT) for entry in (await store.list("")).entries)
    assert deleted.objects > 2
    await create_log(store, 3)
    await delete_log(store)
    assert len(await acts(store, AUDIT)) == 3


async def test_the_deletion_of_a_processor_stays_in_the_audit_of_its_container() -> None:
    store = Store(MemoryStore())
    await processed(store)
    await rename_processor(store, ProcessorLayout("p"), "q", expiration=60.0)
    assert await acts(store, AUDIT) == [], "nothing was lost"
    await delete_processor(store, ProcessorLayout("q"), expiration=60.0)
    ((what, to, effect),) = await acts(store, AUDIT)
    assert (what, to) == ("delete", {"processor": "q"})
    assert effect.startswith("objects deleted: ")
    assert await list_processors(store) == []
    await processed(store)
    assert await list_processors(store) == ["p"]

"""Objects of earlier runs that are damaged, lost or incompatible: refused by name, or tolerated."""

from __future__ import annotations

import shutil
from pathlib import Path

import anyio
import pytest

from actorproc import Processor, Producer, errors
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from tests.processor.doubling import QUICK, Double, fed, rows


async def test_a_torn_checkpoint_stops_only_its_partition() -> None:
    store, source = Store(MemoryStore()), fed(partitions=3)
    await Processor(Double, source=source, container=store, **QUICK).run(until_end=True)
    for partition in range(3):
        source.append(str(partition), [b"100"])
    key = ProcessorLayout("Double").checkpoint("1")
    whole = await store.get(key)
    assert whole is not None
    await store.put(key, whole.body[:-9])
    with (
        anyio.fail_after(60),
        pytest.raises(errors.EndNotReached, match=rf"1 of 3 partitions .*\n.*{key}: is not a valid Checkpoint"),
    ):
        await Processor(Double, source=source, container=store, **QUICK).run(until_end=True)
    assert (await rows(store)).count(200) == 2
    await store.put(key, whole.body)
    await Processor(Double, source=source, container=store, **QUICK).run(until_end=True)
    assert await rows(store) == sorted([2 * n for n in range(10)] * 3 + [200] * 3)


async def test_output_with_another_schema_is_refused_at_start(tmp_path: Path) -> None:
    class Changed(Double):
        output_schema = "n string"

    container = str(tmp_path)
    await Processor(Double, source=fed(), container=container, **QUICK).run(until_end=True)
    with pytest.raises(errors.SchemaError, match=r"n.*bigint.*string"):
        await Processor(Changed, name="Double", source=fed(), container=container, **QUICK).run(until_end=True)


async def test_a_lost_group_document_does_not_lock_its_own_hosts_out() -> None:
    store, source = Store(MemoryStore()), fed(2)
    for host in "abc":  # each takes over from the one before: epochs grow
        await Processor(Double, source=source, container=store, host=host, **QUICK).run(until_end=True)
    await store.delete("Double/group.json")
    for partition in ("0", "1"):
        source.append(partition, [b"100"])
    with anyio.fail_after(60):
        await Processor(Double, source=source, container=store, host="d", **QUICK).run(until_end=True)
    assert (await rows(store))[-2:] == [200, 200]


async def test_a_recreated_stream_is_refused(tmp_path: Path) -> None:
    log, container = tmp_path / "log", tmp_path / "state"
    for values, wrong in (([b"1", b"2"], False), ([b"3"], True)):
        async with Producer(str(log), partitions=1) as producer:
            await producer.send_many(values)
        processor = Processor(Double, source=str(log), container=container, **QUICK)
        if wrong:
            with pytest.raises(errors.UsageError, match="created again"):
                await processor.run(until_end=True)
        else:
            await processor.run(until_end=True)
            shutil.rmtree(log)

"""Several hosts and several processors in one process: they share, or say that they cannot."""

from __future__ import annotations

import anyio
import pytest

from actorproc import Processor, errors
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from tests.processor.doubling import QUICK, Double, _partitions, fed, rows


async def test_two_hosts_share_the_partitions_and_both_return_at_the_end() -> None:
    store, source = Store(MemoryStore()), fed(partitions=8)
    async with anyio.create_task_group() as tasks:
        for host in "ab":
            processor = Processor(Double, source=source, container=store, host=host, **QUICK)
            tasks.start_soon(lambda processor=processor: processor.run(until_end=True))  # type: ignore[misc]
    assert await rows(store) == sorted(2 * n for n in range(10) for _ in range(8))


async def test_several_processors_live_in_one_process() -> None:
    store, source = Store(MemoryStore()), fed()
    async with anyio.create_task_group() as tasks:
        for name in ("one", "two"):
            processor = Processor(Double, name=name, source=source, container=store, **QUICK)
            tasks.start_soon(lambda processor=processor: processor.run(until_end=True))  # type: ignore[misc]
    assert await rows(store, "one") == await rows(store, "two")
    assert len(await rows(store, "one")) == 40


async def test_two_hosts_without_names_in_one_process_share_the_partitions() -> None:
    store, source = Store(MemoryStore()), fed(partitions=8)
    one, two = (Processor(Double, source=source, container=store, **QUICK) for _ in range(2))
    assert one.host != two.host
    async with one, two:
        with anyio.fail_after(60):
            while [len(_partitions(one)), len(_partitions(two))] != [4, 4]:
                await anyio.sleep(0.01)


async def test_a_second_host_of_a_name_replaces_the_first() -> None:
    store, source = Store(MemoryStore()), fed()
    first = Processor(Double, source=source, container=store, host="a", **QUICK)
    with pytest.raises(errors.Fenced, match=r"another host.*'a'"):
        async with first:
            await anyio.sleep(0.1)
            async with Processor(Double, source=source, container=store, host="a", **QUICK):
                with anyio.fail_after(60):
                    await anyio.sleep_forever()
    assert not first.statistics().running
    assert "another host named 'a'" in (first.statistics().error or "")

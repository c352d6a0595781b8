"""Large compacted files: memory is reserved before each is fetched, and deadlines are long enough."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest

from actorproc.runtime.budget import ByteBudget, ReadBudget
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.sources import OutputSource
from actorproc.spark.planning import plan_batch, split_into_tasks
from actorproc.storage.backend import Stored
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store, StoreLimits
from actorproc.stores import open_store
from actorproc.stores.memory import MemoryStore
from tests.output.test_compaction import asked, compact, delete_originals, read, rows
from tests.sources.test_output_source import commit_file, prepared
from tests.spark.committing import Fleet

LAYOUT = ProcessorLayout("numbers")
SMALL = 256  # bytes: every file is a large one


class Counted(MemoryStore):
    """Notes, as each body arrives, its bytes and the bytes reserved by then."""

    def __init__(self, budget: ByteBudget) -> None:
        super().__init__()
        self.budget = budget
        self.noted: list[tuple[int, int]] = []

    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
        stored = await super().get(key, unless=unless, tail=tail)
        await anyio.lowlevel.checkpoint()
        if stored is not None and key.endswith(".parquet"):
            self.noted.append((len(stored.body), self.budget.used))
        return stored


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorproc.output.follower._SMALL", SMALL)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("compacted", [False, True])
async def test_a_file_is_fetched_when_memory_is_reserved_for_all_of_it(
    compacted: bool,
) -> None:
    budget = ByteBudget(600)
    backend = Counted(budget)
    store = Store(backend)
    await Fleet(store).commit(p0=50, p1=50, p2=50)
    if compacted:
        await compact(store)
        await delete_originals(store)
    files = [e.size for e in (await store.list(LAYOUT.compacted if compacted else LAYOUT.output)).entries]
    assert min(files) > 600
    backend.noted.clear()
    source, found = OutputSource(store, "numbers"), list[tuple[str, int]]()

    async def read_all(partition: str) -> None:
        room = ReadBudget(budget)
        async with aclosing(source.read_within(partition, "0+0", room)) as reading:
            async for chunk in reading:
                await anyio.lowlevel.checkpoint()
                if not len(chunk.batch):
                    break
                found.extend((partition, chunk.batch.sequences[at]) for at in range(len(chunk.batch)))
        room.close()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for partition in "012":
                tasks.start_soon(read_all, partition)
    assert len(set(found)) == len(found) == 135
    assert budget.used == 0
    whole = [(body, used) for body, used in backend.noted if body > SMALL]
    assert {body for body, _ in whole} >= set(files)
    assert all(used >= body for body, used in whole)
    assert max(used for _, used in whole) <= max(body for body, _ in whole) + 300, "one at a time"


class Throttled(MemoryStore):
    """Sends `rate` bytes a second."""

    def __init__(self, rate: int, **how: Any) -> None:
        super().__init__(**how)
        self.rate = rate

    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
        stored = await super().get(key, unless=unless, tail=tail)
        await anyio.sleep(0 if stored is None else len(stored.body) / self.rate)
        return stored


@pytest.mark.usefixtures("small")
def test_a_file_that_takes_longer_than_a_request_may_reaches_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorproc.storage.store.SLOWEST", 64)

    async def main() -> None:
        clock = VirtualClock("host")
        backend = Throttled(1_000_000, clock=clock)
        store = Store(backend, limits=StoreLimits(timeout=5), clock=clock)
        await prepared(store, [])
        await commit_file(store, 0, 0, 10, 0.0)
        [file] = (await store.list(LAYOUT.output_dir("0"))).entries
        backend.rate = 80
        assert file.size / backend.rate > 5
        async with aclosing(OutputSource(store, "numbers", clock=clock).read("0", "0+0")) as reading:
            assert len((await anext(reading)).batch) == 10

    run(main())


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Key -> how large it was said to be when it was fetched as a whole."""
    sizes: dict[str, int] = {}
    get = Store.get

    async def noting(self: Store, key: str, *, size: int = 0, **how: Any) -> Stored | None:
        if key.endswith(".parquet") and how.get("tail") is None:
            sizes[key] = size
        return await get(self, key, size=size, **how)

    monkeypatch.setattr(Store, "get", noting)
    return sizes


async def test_who_reads_listed_files_or_merges_them_says_how_large_they_are(
    tmp_path: Path, told: dict[str, int]
) -> None:
    folder = str(tmp_path)
    fleet = Fleet(folder)
    await fleet.commit(p0=50, p1=30)
    request = asked(folder)

    def as_they_are(count: int) -> bool:
        sizes = {key: (tmp_path / key).stat().st_size for key in told}
        found = told == sizes and len(told) == count
        told.clear()
        return found

    async with open_store(folder) as store:
        schema = await request.dataset.schema(store)
        told.clear()
        originals = await plan_batch(request, store)
        assert len(list(read(request, split_into_tasks(originals, 1), schema))) == 72  # type: ignore[arg-type]
        assert as_they_are(8), "Spark's tasks"
        await rows(store)
        assert as_they_are(8), "actorproc output"
        await compact(store)
        assert as_they_are(6), "compaction"
        await delete_originals(store)
        await rows(store)
        assert as_they_are(4), "compacted files"
        assert len(list(read(request, split_into_tasks(originals, 1), schema))) == 72  # type: ignore[arg-type]
        gone = [key for key in told if not (tmp_path / key).exists()]
        assert len(gone) == 6, "tried where they were listed"
        for key in gone:
            del told[key]
        assert as_they_are(4), "found where they have gone"

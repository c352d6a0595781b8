"""Thousands of transactions of a Delta table in virtual time, with committers that die, lost replies, late writes,
strangers, compaction and trims. No row is lost or doubled, and no file of a version of the last hour is missing."""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from random import Random

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from actorproc.admin.compact import compact
from actorproc.admin.retained import RetainedOutput
from actorproc.admin.trim import trim
from actorproc.config.settings import Settings
from actorproc.connectors.delta import DeltaTable
from actorproc.connectors.delta.log import DeltaLog
from actorproc.connectors.delta.state import DeltaState
from actorproc.errors import ActorprocError
from actorproc.retention.boundary import read_boundary
from actorproc.runtime.logger import get_logger
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.faults import Faults, FaultyBackend
from actorproc.simulation.loop import run
from actorproc.sinks.protocol import SinkError, SinkMoved, SinkPlace
from actorproc.sinks.tables.committer import TableCommitter
from actorproc.sinks.tables.protocol import TableChange, TableHome, TableSnapshot
from actorproc.storage.backend import Entry
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store, StoreLimits
from actorproc.stores.memory import MemoryStore
from tests.connectors.delta.chain import SCHEMA, Chain

LAYOUT = ProcessorLayout("Copy")
PARTITIONS = 4
FAULTS = Faults(lost_request=0.01, lost_reply=0.02, late_write=0.02, slow=0.02)
HOUR = 3600.0


class Sleepy(DeltaTable):
    """A committer that may sleep before its transaction, for longer than files are kept."""

    random = Random(0)

    async def commit(self, seen: TableSnapshot, change: TableChange) -> None:
        if self.random.random() < 0.2:
            await anyio.sleep(self.random.choice([5.0, 60.0, 1800.0, 9000.0]))
        await super().commit(seen, change)


class Chaos:
    """A chain that grows, its table, and what happens to both."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        Sleepy.random = Random(f"{seed}/sleep")
        clock = VirtualClock("truth")
        self.memory = MemoryStore(clock=clock)
        self.truth = Store(self.memory, clock=clock)
        self.faulty = FaultyBackend(self.memory, FAULTS, seed=seed)
        self.chain = Chain(self.truth, LAYOUT, PARTITIONS)
        self.foreign = self.kills = self.optimized = self.held = self.processes = self.compared = 0
        self.compacted = 0
        self.deleted: list[Entry] = []
        self.over = False
        self.rows: dict[str, list[int]] = {}
        self.following = anyio.Lock()
        self.log = DeltaLog(self.truth, f"{LAYOUT.output}_delta_log/")

    def store(self, name: str) -> Store:
        limits = StoreLimits(timeout=10, patience=30)
        self.processes += 1  # a clock makes the same nonces as another one of its name
        return Store(self.faulty.view(name), limits=limits, clock=VirtualClock(f"{name}-{self.processes}"))

    async def prepare(self) -> None:
        self.identity = await self.chain.prepare()
        self.followed = DeltaState(LAYOUT, self.identity)
        for p in range(PARTITIONS):
            await self.commit(p)
        await self.committer("first", self.truth).commit()

    async def commit(self, p: int) -> None:
        """One more commit of the chain, with a row or none."""
        number = self.chain.ends[p]
        await self.chain.commit(p, [] if number % 7 == 6 else [p * 10**9 + number])

    def committer(self, name: str, store: Store) -> TableCommitter:
        kind = DeltaTable if store is self.truth else Sleepy
        sink = kind("delta", {"history": 2 * HOUR}, SinkPlace("table", "Copy", store.clock))
        home = TableHome(store, LAYOUT, self.identity)
        return TableCommitter("table", sink, home, schema=SCHEMA, host=name, log=get_logger(__name__))

    # What happens

    async def feed(self) -> None:
        while not self.over:
            await self.commit(self.random.randrange(PARTITIONS))
            await anyio.sleep(self.random.uniform(1, 60))

    async def commit_table(self, name: str) -> None:
        """A host that makes transactions, dies at any moment, and comes back without memory."""
        while not self.over:
            committer = self.committer(name, self.store(name))
            with anyio.move_on_after(self.random.choice([self.random.uniform(1, 300), 20_000])) as life:
                while not self.over:
                    with contextlib.suppress(ActorprocError, SinkMoved, SinkError):
                        await committer.commit()
                    await anyio.sleep(self.random.uniform(0, 120))
            self.kills += life.cancelled_caught

    async def be_a_stranger(self) -> None:
        while not self.over:
            await anyio.sleep(self.random.uniform(60, 600))
            await (self.optimize() if self.random.random() < 0.6 else self.append())

    async def append(self) -> None:
        path = f"partition=0/part-{self.truth.clock.nonce()}.parquet"
        await self._land([await self._written(path, [-1], "0")], {})
        self.foreign += 1

    async def optimize(self) -> None:
        """Rewrite two files of a partition into one, or many."""
        state = await self.follow()
        p = str(self.random.randrange(PARTITIONS))
        paths = [path for path, named in state.adds.items() if named.partition == p]
        if len(paths) < 2:
            return
        chosen = self.random.sample(paths, min(self.random.choice([2, 2, 2, 50]), len(paths)))
        rows = [n for path in chosen for n in await self._rows_of(state, path)]
        made = await self._written(f"partition={p}/part-{self.truth.clock.nonce()}.parquet", rows, p, new=False)
        removes: dict[str, dict[str, object]] = {
            path: {"remove": {"path": path, "dataChange": False}} for path in chosen
        }
        self.optimized += await self._land([made], removes)

    async def _written(self, path: str, rows: list[int], partition: str, *, new: bool = True) -> dict[str, object]:
        body = io.BytesIO()
        pq.write_table(pa.table({"n": rows, "_sequence": [abs(n) % 10**9 for n in rows]}, schema=SCHEMA), body)
        await self.truth.put(LAYOUT.output + path, body.getvalue())
        return {
            "add": {
                "path": path, "partitionValues": {"partition": partition}, "size": len(body.getvalue()),
                "modificationTime": 0, "dataChange": new,
            }
        }  # fmt: skip

    async def _land(self, actions: list[dict[str, object]], removes: dict[str, dict[str, object]]) -> bool:
        async with self.following:
            await self.log.refresh(self.followed)
            while removes.keys() <= self.followed.adds.keys():
                if await self.log.append(self.followed, [*removes.values(), *actions]):
                    return True
        return False

    async def compact(self) -> None:
        while not self.over:
            await anyio.sleep(self.random.choice([600, 900, 9000]))
            with contextlib.suppress(ActorprocError):
                done = await compact(container=self.store("compact"), name="Copy", older_than=0, settings=Settings())
                self.compacted += done.files_after

    async def trim(self) -> None:
        while not self.over:
            await anyio.sleep(self.random.uniform(600, 1800))
            with contextlib.suppress(ActorprocError):
                await trim(RetainedOutput(self.store("trim"), LAYOUT), Settings(), deleted=self.deleted.append)

    async def hold(self) -> None:
        """Readers that hold a version for less than an hour."""
        while not self.over:
            state = await self.follow()
            version, held = state.version, {state.key_of(path) for path in state.adds}
            await anyio.sleep(self.random.uniform(0, HOUR - 120))
            there = {entry.key for entry in (await self.truth.list(LAYOUT.output)).entries}
            assert held - there == set(), f"of version {version}"
            self.held += 1

    # What must hold

    async def follow(self) -> DeltaState:
        """The newest version, as a reader sees it that reads each entry once. It goes on with the next call."""
        async with self.following:
            await self.log.refresh(self.followed)
        return self.followed

    async def state(self) -> DeltaState:
        """The newest version, as a reader sees it that has just come and reads a checkpoint."""
        state = DeltaState(LAYOUT, self.identity)
        await DeltaLog(self.truth, f"{LAYOUT.output}_delta_log/").refresh(state)
        return state

    async def _rows_of(self, state: DeltaState, path: str) -> list[int]:
        stored = await self.memory.get(state.key_of(path) or "")
        assert stored is not None, f"version {state.version} names {path}, which is gone"
        if path not in self.rows:  # no file is ever written anew
            self.rows[path] = pq.read_table(io.BytesIO(stored.body))["n"].to_pylist()
        return self.rows[path]

    async def check(self) -> None:
        """Each commit from the boundary to the position once, none twice, and the stranger's rows."""
        lowest = [(await read_boundary(self.truth, LAYOUT.boundary(str(p)))).lowest for p in range(PARTITIONS)]
        state, followed = await self.state(), await self.follow()
        if state.version == followed.version:
            assert (state.adds, state.txns) == (followed.adds, followed.txns)
            self.compared += 1
        found = Counter([n for path in state.adds for n in await self._rows_of(state, path)])
        assert found.pop(-1, 0) <= self.foreign
        assert [n for n, count in found.items() if count > 1] == []
        for p in range(PARTITIONS):
            place = state.places[str(p)]
            due = {p * 10**9 + n for n in range(lowest[p], place.position) if n % 7 != 6}
            assert due - found.keys() == set()
            assert {n for n in found if n // 10**9 == p and n >= p * 10**9 + lowest[p]} == due

    async def play(self, transactions: int) -> None:
        await self.prepare()
        async with anyio.create_task_group() as tasks:
            for work in (self.feed, self.be_a_stranger, self.compact, self.trim):
                tasks.start_soon(work)
            for name in ("a", "b", "c"):
                tasks.start_soon(self.commit_table, name)
            for _ in range(3):
                tasks.start_soon(self.hold)
            version = 0
            while version < transactions:
                await anyio.sleep(max(900, 3 * transactions))
                await self.check()
                version = (await self.state()).version
            self.over = True
        await self.committer("last", self.truth).commit()
        await self.check()
        assert [place.position for _, place in sorted((await self.state()).places.items())] == self.chain.ends


def play(seed: int, transactions: int) -> Chaos:
    chaos: list[Chaos] = []

    async def main() -> None:
        chaos.append(Chaos(seed))
        await chaos[0].play(transactions)

    run(main())
    return chaos[0]


def check_happened(done: Chaos) -> None:
    assert done.kills > 3
    assert done.compacted > 10
    assert len(done.deleted) > 20
    assert done.optimized
    assert done.foreign
    assert done.held > 5
    assert done.compared
    assert done.faulty.injected["late_write"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_no_row_is_lost_or_doubled_and_no_file_is_missing(seed: int) -> None:
    check_happened(play(seed, 300))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_ten_thousand_transactions() -> None:
    """Five days of virtual time, in two minutes of CPU."""
    done = play(3, 10_000)
    print(f"kills {done.kills}, optimized {done.optimized}, appended {done.foreign}, held {done.held}")
    check_happened(done)

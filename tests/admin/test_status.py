"""The state of a processor, read from its container."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest

from actorproc import Batch, PartitionContext, PartitionHandler, Processor
from actorproc.admin.fleet import Fleet
from actorproc.admin.fleet_watch import FleetWatch
from actorproc.admin.next_plan import next_plan
from actorproc.counts import Counts
from actorproc.errors import (
    CredentialsExpired,
    StoreAccessError,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    UsageError,
)
from actorproc.group.assignment import Lease, Member
from actorproc.group.heartbeat import Heartbeat
from actorproc.group.membership import GroupDocument
from actorproc.group.reports import AbandonedReport, HostReport, PartitionReport
from actorproc.output.chain import LETTERS_LIMIT, Commit, encode_commit, read_cursor
from actorproc.output.checkpoint import Checkpoint
from actorproc.output.follower import ChainFollower, ChainPosition
from actorproc.records import Cursor
from actorproc.sources.protocol import End, Start
from actorproc.storage.backend import Listing, Stored
from actorproc.storage.locations import find_processors, missing_processor
from actorproc.storage.names import ProcessorLayout, natural
from actorproc.storage.store import Store, StoreLimits
from actorproc.stores import open_store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource

LAYOUT = ProcessorLayout("p")
EXPIRATION = 60.0


class Copy(PartitionHandler):
    output_schema = "n long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, {"n": record.json()})


async def beat(store: Store, host: str, incarnation: str = "1", **report: Any) -> None:
    now = store.clock.wall()
    heartbeat = Heartbeat(host, incarnation, "127.0.0.1:1", 42, now, now, 1, HostReport(**report))
    await store.put(LAYOUT.host(host, incarnation), heartbeat.to_json())


async def put_group(store: Store, members: dict[str, Member], leases: dict[str, Lease]) -> None:
    await store.put(LAYOUT.group, GroupDocument.of(members, leases, put_id="put").to_json())


async def status_of(store: Store, **how: Any) -> Any:
    return await FleetWatch(store, LAYOUT, EXPIRATION).read_all(**how)


async def test_errors_come_from_the_owners_present_incarnation() -> None:
    store = Store(MemoryStore())
    await put_group(store, {"a": Member("1")}, {"0": Lease("a", 2), "1": Lease("a", 2)})
    troubled = PartitionReport(2, trouble="failing")
    await beat(store, "a", "1", failing={"1": "now"}, progress={"1": troubled})
    await beat(store, "a", "2", failing={"0": "before it was killed"}, progress={"0": troubled})
    assert [found.error for found in (await status_of(store)).partitions.values()] == [None, "now"]


async def test_members_are_alive_silent_joining_or_leaving() -> None:
    store = Store(MemoryStore())
    members = {"a": Member("1"), "b": Member("1", leaving=True), "c": Member("1")}
    leases = {"0": Lease("a", 4), "1": Lease("a", 2, "b"), "2": Lease("c", 1), "3": Lease(None, 7)}
    await put_group(store, members, leases)
    for host in ("a", "b", "new"):
        await beat(store, host)
    status = await status_of(store)
    seen = {m.host: (m.alive, m.leases, m.in_group, m.leaving) for m in status.hosts}
    assert seen == {
        "a": (True, 2, True, False),
        "b": (True, 0, True, True),
        "c": (False, 1, True, False),
        "new": (True, 0, False, False),
    }
    assert [(p.partition, p.owner, p.epoch, p.next_owner) for p in status.partitions.values()] == [
        ("0", "a", 4, None),
        ("1", "a", 2, "b"),
        ("2", "c", 1, None),
        ("3", None, 7, None),
    ]


async def test_a_leftover_heartbeat_does_not_bring_its_host_back() -> None:
    store = Store(MemoryStore())
    await beat(store, "a")
    await beat(store, "b")
    leases = {p: Lease("a", 1) for p in ("0", "1")}
    document = GroupDocument.of({"a": Member("1")}, leases, put_id="put", out=(("b", "1"),))
    await store.put(LAYOUT.group, document.to_json())
    assert [host.host for host in (await status_of(store)).hosts] == ["a"]
    assert not (await next_plan(store, LAYOUT, expiration=EXPIRATION)).changed


async def test_a_heartbeat_of_an_earlier_life_does_not_make_a_member_alive() -> None:
    store = Store(MemoryStore())
    await put_group(store, {"a": Member("2")}, {})
    await beat(store, "a", "1")
    (member, _) = (await status_of(store)).hosts[::-1]
    assert (member.incarnation, member.alive, member.in_group) == ("2", False, True)


async def test_an_old_heartbeat_is_silence_by_the_stores_own_clock() -> None:
    store = Store(MemoryStore())
    await put_group(store, {"a": Member("1")}, {})
    await beat(store, "a")
    status = await FleetWatch(store, LAYOUT, 1e-9).read_all()
    assert [member.alive for member in status.hosts] == [False]


async def test_commits_beyond_the_checkpoint_count() -> None:
    store, source = Store(MemoryStore()), MemorySource(1)
    source.append("0", [str(n).encode() for n in range(10)])
    processor = Processor(Copy, name="p", source=source, container=store, host="h", commit_interval=0.05)
    await processor.run(until_end=True)
    stored = await store.get(LAYOUT.checkpoint("0"))
    assert stored is not None
    old = Checkpoint(1, 0, Cursor("0"))
    await store.put(LAYOUT.checkpoint("0"), old.to_json())
    partition = (await status_of(store, source=source)).partitions["0"]
    assert (partition.position, partition.sequence, partition.output_files) == ("10", 9, 1)
    assert partition.counts.rows == 10
    assert partition.lag == 0
    assert abs(partition.last_commit - time.time()) < 60


class Vague(MemorySource):
    """Its positions do not count the records before them."""

    def sequence_before(self, partition: str, position: str) -> int | None:
        return None


async def test_lag_counts_from_the_commit_or_the_first_record() -> None:
    store, source = Store(MemoryStore()), MemorySource(4)
    for partition in ("0", "1", "2", "3"):
        source.append(partition, [b"1"] * 10)
    await store.put(LAYOUT.checkpoint("0"), Checkpoint(1, 0, Cursor("4", 3), Counts(4)).to_json())
    await store.put(LAYOUT.checkpoint("1"), Checkpoint(1, 0, Cursor("10")).to_json())  # began at the latest
    await store.put(LAYOUT.checkpoint("2"), Checkpoint(1, 0, Cursor("7")).to_json())  # began at a time
    status = await status_of(store, source=source)
    assert [partition.lag for partition in status.partitions.values()] == [6, 0, 3, 10]
    assert (status.lag, status.lag_exact, status.partitions["3"].position) == (19, True, None)


async def test_lag_is_unknown_before_the_first_commit_without_earliest() -> None:
    class Live(MemorySource):
        async def start(self, partition: str, at: Start) -> str:
            if at == "earliest":
                raise UsageError("start = 'earliest': this stream keeps nothing")
            return await super().start(partition, at)

    source = Live(1)
    source.append("0", [b"1"] * 10)
    status = await status_of(Store(MemoryStore()), source=source)
    assert [(partition.lag, partition.error) for partition in status.partitions.values()] == [(None, None)]


async def test_a_lag_that_leaves_partitions_out_says_so() -> None:
    store, source = Store(MemoryStore()), Vague(2)
    source.append("0", [b"1"] * 10)
    source.append("1", [b"1"] * 10)
    await store.put(LAYOUT.checkpoint("0"), Checkpoint(1, 0, Cursor("4", 3), Counts(4)).to_json())
    status = await status_of(store, source=source)
    assert [partition.lag for partition in status.partitions.values()] == [6, None]
    assert (status.lag, status.lag_exact) == (6, False)


@pytest.mark.parametrize("number", [0, 1], ids=["beyond the checkpoint", "before it"])
async def test_reading_the_position_skips_giant_dead_letters(number: int) -> None:
    store, totals = Store(MemoryStore()), Counts(1, 0, 1)
    giant = random.Random(1).randbytes(LETTERS_LIMIT + 1)
    commit = Commit("h", 1, Cursor("0"), Cursor("1", 0), totals, 5.0, put_id="put")
    body, letters = encode_commit(pa.table({"n": pa.array([], pa.int64())}), commit, giant)
    assert letters, "they stand elsewhere, where nobody may look: they are not put there"
    cursor = (Cursor("0"), Cursor("1", 0))[number]
    await store.put(LAYOUT.checkpoint("0"), Checkpoint(1, number, cursor, totals).to_json())
    await store.put(LAYOUT.output_file("0", 0), body)
    assert await read_cursor(store, LAYOUT, "0") == Cursor("1", 0)
    partition = (await status_of(store)).partitions["0"]
    assert (partition.error, partition.last_commit, partition.output_files) == (None, 5.0, 1)
    following = ChainFollower(store, LAYOUT, "0")
    assert await following.end() == await following.at(6.0) == ChainPosition(1, 0)


async def test_two_thousand_partitions_take_seconds_on_a_folder(tmp_path: Path) -> None:
    names = [str(number) for number in range(2000)]
    table = pa.table({"n": [1], "_sequence": pa.array([0], pa.int64())})
    totals = Counts(1, 1)
    commit = Commit("h", 1, Cursor("0"), Cursor("1", 0), totals, 5.0, rows=1, put_id="put")
    body, _ = encode_commit(table, commit, b"")
    for name in names:
        for key, content in [
            (LAYOUT.checkpoint(name), Checkpoint(1, 1, Cursor("1", 0), totals).to_json()),
            (LAYOUT.output_file(name, 0), body),
        ]:
            (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / key).write_bytes(content)
    async with open_store(str(tmp_path)) as store:
        await put_group(store, {"h": Member("1")}, {name: Lease("h", 1) for name in names})
        began = time.process_time()
        status = await status_of(store)
        seconds = time.process_time() - began
    assert [partition.partition for partition in status.partitions.values()] == names
    assert sum(partition.counts.rows for partition in status.partitions.values()) == 2000
    assert {partition.last_commit for partition in status.partitions.values()} == {5.0}
    assert seconds < 10
    print(f"status of 2,000 partitions: {seconds:.2f} s of CPU")


class Closed(MemoryStore):
    """Raises `error` for each read below `prefix`."""

    def __init__(self, prefix: str, error: StoreError) -> None:
        super().__init__()
        self._prefix, self._error = prefix, error

    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
        self._check(key)
        return await super().get(key, unless=unless, tail=tail)

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        self._check(prefix)
        return await super().list(prefix, after, limit)

    def _check(self, key: str) -> None:
        if key.startswith(self._prefix):
            raise self._error


def closed(prefix: str, error: StoreError) -> Store:
    return Store(Closed(prefix, error), limits=StoreLimits(patience=0))


REFUSALS = [StoreRefused("no right"), StoreAccessError("no right"), StoreUnavailable("no right")]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: type(refusal).__name__)
@pytest.mark.parametrize("prefix", [LAYOUT.output_dir("0"), LAYOUT.checkpoint("0")], ids=["output", "checkpoint"])
async def test_a_partition_whose_state_cannot_be_read_shows_an_error(prefix: str, refusal: StoreError) -> None:
    store, source = closed(prefix, refusal), MemorySource(2)
    for partition in ("0", "1"):
        source.append(partition, [b"1"] * 10)
        await store.put(LAYOUT.checkpoint(partition), Checkpoint(1, 0, Cursor("4", 3), Counts(4)).to_json())
    status = await status_of(store, source=source)
    assert [(p.error, p.lag) for p in status.partitions.values()] == [("no right", None), (None, 6)]
    assert not status.lag_exact


async def test_an_unreadable_end_is_shown_beside_the_state() -> None:
    class Shut(MemorySource):
        async def end(self, partition: str) -> End:
            if partition == "0":
                raise StoreRefused("no right")
            return await super().end(partition)

    store = Store(MemoryStore())
    await store.put(LAYOUT.checkpoint("0"), Checkpoint(1, 0, Cursor("4", 3), Counts(4)).to_json())
    status = await status_of(store, source=Shut(2))
    assert [(p.error, p.counts.records) for p in status.partitions.values()] == [("no right", 4), (None, 0)]


@pytest.mark.parametrize(
    ("prefix", "error"),
    [
        (LAYOUT.group, StoreRefused("no right")),
        (LAYOUT.checkpoints, StoreRefused("no right")),
        (LAYOUT.output_dir("0"), CredentialsExpired("no right")),
    ],
    ids=["group.json", "the list of partitions", "expired credentials"],
)
async def test_a_failure_of_the_whole_container_is_an_error_of_the_status(prefix: str, error: StoreError) -> None:
    store = closed(prefix, error)
    await store.put(LAYOUT.checkpoint("0"), Checkpoint(1, 0, Cursor("4", 3), Counts(4)).to_json())
    with pytest.raises(StoreRefused, match="no right"):
        await status_of(store)


async def test_the_plan_names_each_move_and_why_and_writes_nothing() -> None:
    store = Store(MemoryStore())
    await put_group(store, {"a": Member("1")}, {str(n): Lease("a", 1) for n in range(4)})
    await beat(store, "a")
    await beat(store, "b")
    before = await store.get(LAYOUT.group)
    store.requests.clear()
    plan = await next_plan(store, LAYOUT, expiration=EXPIRATION)
    assert len(plan.moves) == 2
    assert {(move.source, move.target, move.reason) for move in plan.moves} == {("a", "b", "a holds 4, b holds 0")}
    assert set(store.requests) == {"get", "list"}
    assert await store.get(LAYOUT.group) == before


async def test_the_plan_judges_silence_by_the_stores_clock() -> None:
    store = Store(MemoryStore())
    await put_group(store, {"a": Member("1"), "b": Member("1")}, {"0": Lease("a", 1), "1": Lease("b", 1)})
    await beat(store, "a")
    await beat(store, "b")
    assert not (await next_plan(store, LAYOUT, expiration=EXPIRATION)).changed


async def test_processors_of_a_container_are_found_however_full_it_is() -> None:
    store = Store(MemoryStore())
    for name in ("a", "a0", "b-1", "b"):
        await store.put(ProcessorLayout(name).group, GroupDocument.of().to_json())
        for number in range(50):
            await store.put(f"{name}/output/partition=0/{number:020d}.parquet", b"x")
    await store.put("readme.txt", b"")
    await store.put("other/things", b"")
    store.requests.clear()
    assert await find_processors(store) == ["a", "a0", "b", "b-1"]
    assert store.requests["list"] <= 8
    assert await missing_processor(store, "a") is None
    assert "there are: a, a0, b, b-1" in (await missing_processor(store, "c") or "")


async def test_hosts_that_have_only_written_heartbeats_are_shown_with_their_errors() -> None:
    store = Store(MemoryStore())
    await store.put(f"{LAYOUT.hosts}notes.txt", b"")
    assert "start it first" in (await missing_processor(store, "p") or "")
    await beat(store, "a", error="listing the partitions of PR failed: ConnectionError: db away")
    assert await missing_processor(store, "p") is None
    status = await status_of(store)
    assert [(m.host, m.alive, m.in_group, m.error) for m in status.hosts] == [
        ("a", True, False, "listing the partitions of PR failed: ConnectionError: db away"),
    ]
    assert status.partitions == {}
    assert not (await next_plan(store, LAYOUT, expiration=EXPIRATION)).moves


@pytest.mark.parametrize(("names", "ordered"), [(["10", "2", "b", "a", "1"], ["1", "2", "10", "a", "b"])])
def test_partitions_are_sorted_as_people_count(names: list[str], ordered: list[str]) -> None:
    assert sorted(names, key=natural) == ordered


async def test_a_partition_that_fails_on_its_owner_says_why() -> None:
    class Broken(Copy):
        async def opened(self, ctx: Any) -> None:
            if ctx.partition == "1":
                raise RuntimeError("no database")

    store = Store(MemoryStore())
    quick: dict[str, Any] = {
        "lease_acquire_interval": 0.5, "lease_renew_interval": 0.05, "lease_expiration_interval": 1,
        "restart_backoff": 0.01
    }  # fmt: skip
    async with Processor(Broken, name="p", source=MemorySource(2), container=store, host="a", **quick):
        with anyio.fail_after(60):
            while not (errors := {p: v.error for p, v in (await status_of(store)).partitions.items() if v.error}):
                await anyio.sleep(0.02)
    assert re.match(
        r"(failed, and was started again|fails and is started again and again): "
        r"RuntimeError: no database \(in ",
        errors["1"],
    )
    assert "Broken.opened" in errors["1"]
    assert errors.keys() == {"1"}


async def test_a_claim_by_another_owner_is_no_commit() -> None:
    class Silent(PartitionHandler):
        async def process(self, batch: Any, ctx: Any) -> None:
            pass

    store, source = Store(MemoryStore()), MemorySource(2)
    source.append("0", [b"1"])
    times = []
    for host in "abc":
        await Processor(Silent, name="p", source=source, container=store, host=host).run(until_end=True)
        times.append([partition.last_commit for partition in (await status_of(store)).partitions.values()])
    assert times[0] == times[1] == times[2]
    assert times[0][0] is not None
    assert times[0][1] is None, "nothing was ever processed there"


async def test_a_look_and_an_exact_read_agree() -> None:
    store, source = Store(MemoryStore()), MemorySource(2)
    for partition in ("0", "1"):
        source.append(partition, [b"1"] * 10)
    watch = FleetWatch(store, LAYOUT, EXPIRATION)

    def facts(fleet: Fleet) -> list[Any]:
        views = fleet.partitions.values()
        return [(v.partition, v.owner, v.epoch, v.verdict, v.state, v.sequence, v.counts) for v in views]

    quick: dict[str, Any] = {"commit_interval": 0.01, "lease_renew_interval": 0.05}
    async with Processor(Copy, name="p", source=source, container=store, host="a", **quick):
        with anyio.fail_after(30):
            running = await watch.look()
            while {view.sequence for view in running.partitions.values()} != {9}:
                await anyio.sleep(0.02)
                running = await watch.look()
        assert facts(running) == facts(await FleetWatch(store, LAYOUT, EXPIRATION).read_all())
    stopped = await watch.look()
    assert facts(stopped) == facts(await watch.read_all(source))
    assert {(v.owner, v.counts) for v in stopped.partitions.values()} == {(None, Counts(10, 10))}


@pytest.mark.parametrize("owner", [None, "b"], ids=["unowned", "its owner is silent"])
async def test_a_partition_that_was_given_up_is_stuck_while_nobody_runs_it(owner: str | None) -> None:
    store = Store(MemoryStore())
    await put_group(store, {"a": Member("1"), "b": Member("1")}, {"0": Lease(owner, 3)})
    await beat(store, "a", abandoned={"0": AbandonedReport("process() does not end", 100, "user", reached=7)})
    watch = FleetWatch(store, LAYOUT, EXPIRATION)
    for fleet in (await watch.look(), await watch.read_all()):
        view = fleet.partitions["0"]
        assert (view.verdict, view.since, view.fault) == ("stuck", 100, "user")
        assert view.error == "process() does not end, on a; its next owner has not got further yet"
